"""Variants of train.py: copies with other data, another model, or a fault at a given point.

A variant is train.py with code inserted before its last lines, so it is still one script. The
code replaces functions of train.py, which the rest of the script finds by name when it calls
them:

    def preprocess(batch, seeds, training): ...             a replacement

    @wraps_original
    def preprocess(original, batch, seeds, training): ...   may call the original

No test quotes the text of train.py for that. `write_edited` edits hooks in their place, for tests
of what detects or merges edits. `replace_text` is for the few tests that need another text.
"""

import ast
import re

MAIN = '\nif __name__ == "__main__":\n'

WRAPS_ORIGINAL = '''
def wraps_original(function):
    """Give a function the one of the same name that it replaces, as its first argument."""
    original = globals()[function.__name__]

    def call(*args, **kwargs):
        return function(original, *args, **kwargs)

    call.__name__ = function.__name__
    return call

'''


def write_variant(script, folder, *codes):
    """Copy a script into a folder, with code inserted before its last lines. Return the copy."""
    text = script.read_text(encoding="utf-8")
    before, main, after = text.rpartition(MAIN)
    assert main, f"{script} has no last lines that call `run`"
    if codes:
        code = "\n".join([WRAPS_ORIGINAL, *codes])
        text = f"{before}\n{code}\n{main}{after}"
    copy = folder / script.name
    copy.write_text(text, encoding="utf-8")
    return copy


def write_copies(script, folders, *codes):
    """Write the same variant into several folders, which may be new. Return the copies."""
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    return [write_variant(script, folder, *codes) for folder in folders]


def replace_text(path, folder, *pairs):
    """Copy a file into a folder, with texts replaced that it has exactly once. Return the copy."""
    text = path.read_text(encoding="utf-8")
    for old, new in pairs:
        assert text.count(old) == 1, f"{path.name} has {text.count(old)} times: {old}"
        text = text.replace(old, new)
    copy = folder / path.name
    copy.write_text(text, encoding="utf-8")
    return copy


# --------------------------------------------------------------------------------------------------
# Functions and classes in a script's text
# --------------------------------------------------------------------------------------------------


def find_first_line(node):
    """Return the number of a definition's first line, decorators included."""
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def find_definition(text, name):
    """Return a function or class of a script as a syntax tree, or None."""
    for node in ast.parse(text).body:
        if getattr(node, "name", None) == name:
            return node
    return None


def replace_node(text, node, code):
    """Return a script's text with one definition replaced."""
    lines = text.splitlines(keepends=True)
    before = lines[: find_first_line(node) - 1]
    after = lines[node.end_lineno :]
    return "".join([*before, code, *after])


def reformat_definition(text, name):
    """Return a script's text with one definition formatted otherwise, without its comments."""
    node = find_definition(text, name)
    return replace_node(text, node, ast.unparse(node) + "\n")


def insert_statement(text, name, statement="_ = 0"):
    """Return a script's text with a statement at the start of a function, below its docstring."""
    body = find_definition(text, name).body
    has_docstring = ast.get_docstring(find_definition(text, name)) is not None
    first = body[1] if has_docstring and len(body) > 1 else body[0]
    lines = text.splitlines(keepends=True)
    lines.insert(first.lineno - 1, f"{' ' * first.col_offset}{statement}\n")
    return "".join(lines)


def list_hooks(text):
    """Return the names of the functions in sections 3 and 4 of a script: those that users edit."""
    first = text[: text.index("\n# 3. ")].count("\n")
    last = text[: text.index("\n# 5. ")].count("\n")
    names = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and first < node.lineno < last:
            names.append(node.name)
    return names


def edit_all_hooks(text):
    """Return a script's text with a statement in each hook and step, and another default."""
    for name in list_hooks(text):
        text = insert_statement(text, name)
    edited, count = re.subn(r"(\bepochs: int = \D*)\d+", r"\g<1>21", text)
    assert count == 1
    return edited


def write_edited(script, folder, *names):
    """Copy a script into a folder, with a statement inserted into some hooks. Return the copy."""
    text = script.read_text(encoding="utf-8")
    for name in names:
        text = insert_statement(text, name)
    folder.mkdir(exist_ok=True)
    copy = folder / script.name
    copy.write_text(text, encoding="utf-8")
    return copy


def split_block(block):
    """Yield (name, code) of the statements of a block; the name is None if it defines nothing."""
    lines = block.splitlines(keepends=True)
    used = 0
    for node in ast.parse(block).body:
        code = "".join(lines[used : node.end_lineno])
        used = node.end_lineno
        yield getattr(node, "name", None), code.strip("\n") + "\n"


# Each start draws the mask again.
MASK = """
class Mask(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.mask = np.random.uniform(size=10).astype("float32")

    def call(self, inputs):
        return self.mask * inputs
"""


def apply_blocks(text, blocks):
    """Return a script's text after an edit, and the names of the definitions that it replaces.

    A block's functions and classes replace definitions of the same name. Its other code is
    inserted above the next definition that it replaces.
    """
    replaced = []
    new = ""
    for block in blocks:
        for name, code in split_block(block):
            node = find_definition(text, name) if name else None
            if node is None:
                new += code + "\n\n"
            else:
                text = replace_node(text, node, new + code)
                new = ""
                replaced.append(name)
    assert not new, "a block ends with code that nothing uses"
    return text, replaced


# --------------------------------------------------------------------------------------------------
# Data
# --------------------------------------------------------------------------------------------------


def take_examples(train=None, validation=None, test=None):
    """Return code that cuts the splits to a number of examples. None leaves a split as it is."""
    return f"""
@wraps_original
def create_datasets(original):
    sizes = {(train, validation, test)}
    return [
        split if size is None else split.take(size)
        for split, size in zip(original(), sizes, strict=True)
    ]
"""


# For each task, data for a run of seconds.
SMALL_DATA = {
    "image_classification": take_examples(128, 64, 64),
    "text_classification": take_examples(640, 80, 80),
    "tabular_regression": take_examples(64, 32, 32),
}
SMALL_IMAGES = SMALL_DATA["image_classification"]

# The rate is halved after each epoch whose accuracy is not a new record.
PLATEAU = """
def score(validation):
    return -validation["accuracy"]

def end_epoch(history):
    accuracies = [line["accuracy"] for line in history]
    if config.worker_index == 0:
        with Path("calls.txt").open("a") as file:
            file.write(json.dumps(history) + "\\n")
    records = [n for n, each in enumerate(accuracies) if each > max(accuracies[:n], default=-1)]
    optimizer.learning_rate = config.learning_rate * 0.5 ** (len(accuracies) - len(records))
    return len(history) == 6
"""

# Distillation: the first model is frozen and has no optimizer.
TEACHER = """
@wraps_original
def create_model_and_optimizer(original, strategy):
    student, its_optimizer = original(strategy)
    with strategy.scope():
        teacher = keras.models.clone_model(student)
        teacher.trainable = False
    return (teacher, student), (None, its_optimizer)

def compute_gradients(batch):
    images, labels, sample_weight = batch
    teacher, student = model
    soft_labels = tf.nn.softmax(teacher(images, training=False))
    with tf.GradientTape() as tape:
        logits = student(images, training=True)
        distances = keras.losses.kl_divergence(soft_labels, tf.nn.softmax(logits))
        losses = loss_object(labels, logits) + distances
        loss = tf.nn.compute_average_loss(
            losses, sample_weight, global_batch_size=GLOBAL_BATCH_SIZE
        )
    update_metrics(train_metrics, labels, logits, sample_weight)
    return loss, tape.gradient(loss, student.trainable_variables)

def train_step(batch):
    loss, gradients = compute_gradients(batch)
    update(optimizer[1], gradients, model[1].trainable_variables)
    return tf.stack([loss * config.global_batch_size, tf.reduce_sum(batch[-1])])

def evaluation_step(batch, metrics):
    images, labels, sample_weight = batch
    logits = model[1](images, training=False)
    update_metrics(metrics, labels, logits, sample_weight)
    losses = compute_losses(labels, logits) * sample_weight
    return tf.stack([tf.reduce_sum(losses), tf.reduce_sum(sample_weight)])
"""

# The same examples in each split: the first of the training split.
SAME_SPLITS = """
@wraps_original
def create_datasets(original):
    split = original()[0].take(128)
    return split, split, split
"""

# Weights from 0 to 4.5: some examples don't count at all.
WEIGHTED = """
@wraps_original
def preprocess(original, batch, seeds, training):
    features, labels = original(batch, seeds, training)
    return features, labels, tf.cast(labels, tf.float32) / 2
"""


def make_nan(epoch, first_position, last_position=None):
    """Return code that makes the batches at some positions of one epoch NaN.

    A position is the position of a batch's first example in the order of the epoch.
    """
    last_position = first_position if last_position is None else last_position
    return f"""
@wraps_original
def preprocess(original, batch, seeds, training):
    images, labels = original(batch, seeds, training)
    # The first number of each seed depends on the epoch, the second is the position.
    key = tf.random.stateless_uniform([], [config.seed, {epoch}], None, None, tf.int32)
    is_bad = training & (seeds[0, 0] == key)
    is_bad &= (seeds[0, 1] >= {first_position}) & (seeds[0, 1] <= {last_position})
    return tf.where(is_bad, math.nan, tf.cast(images, tf.float32)), labels
"""


# --------------------------------------------------------------------------------------------------
# Models and optimizers
# --------------------------------------------------------------------------------------------------

# Exports take seconds, in the complete script twice.
NO_EXPORT = """
def export(folder, examples):
    pass
"""

# Without random numbers, runs on other numbers of replicas can be compared.
NO_DROPOUT = """
initialize_dropout = keras.layers.Dropout.__init__


def initialize_without_dropout(self, rate, *args, **kwargs):
    initialize_dropout(self, 0.0, *args, **kwargs)


keras.layers.Dropout.__init__ = initialize_without_dropout
"""

# An L2 loss of each dense layer's kernel.
REGULARIZED = """
@wraps_original
def create_model_and_optimizer(original, strategy):
    model, optimizer = original(strategy)
    for layer in model.layers:
        if isinstance(layer, keras.layers.Dense):
            layer.kernel.regularizer = keras.regularizers.L2(0.01)
    return model, optimizer
"""


def use_optimizer(optimizer):
    """Return code that replaces the optimizer, by an expression of its `learning_rate`."""
    return f"""
@wraps_original
def create_model_and_optimizer(original, strategy):
    model, optimizer = original(strategy)
    learning_rate = float(optimizer.learning_rate.numpy())
    with strategy.scope():
        return model, {optimizer}
"""


def insert_layer(layer, after):
    """Return code that inserts a layer into the image model, after the layer of a type."""
    return f"""
@wraps_original
def create_model_and_optimizer(original, strategy):
    model, optimizer = original(strategy)
    layers = list(model.layers)
    kinds = [type(layer).__name__ for layer in layers]
    with strategy.scope():
        layers.insert(kinds.index({after!r}) + 1, {layer})
        model = keras.Sequential([keras.Input(model.input_shape[1:]), *layers])
    return model, optimizer
"""


# The layers of the image model, up to the last one.
IMAGE_LAYERS = (
    "keras.layers.Rescaling(1 / 16)",
    'keras.layers.Conv2D(32, 3, strides=2, padding="same", activation="silu")',
    "keras.layers.Flatten()",
    'keras.layers.Dense(64, activation="silu")',
    "keras.layers.Dropout(0.3)",
)


def replace_image_model(*layers, optimizer="keras.optimizers.Adam(2e-3)"):
    """Return code that replaces the image model by one of these layers."""
    rows = "".join(f"                {layer},\n" for layer in layers)
    return f"""
def create_model_and_optimizer(strategy):
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([8, 8, 1]),
{rows}            ]
        )
        return model, {optimizer}
"""


# --------------------------------------------------------------------------------------------------
# Faults at a given point
# --------------------------------------------------------------------------------------------------


def run_before(function, statement):
    """Return code that executes a statement each time before a function of train.py is called."""
    return f"""
@wraps_original
def {function}(original, *args, **kwargs):
    {statement}
    return original(*args, **kwargs)
"""


def kill_after_log(step, split="train", condition="True"):
    """Return code that kills the process when it has logged the line of a step."""
    return f"""
@wraps_original
def log(original, split, values):
    line = original(split, values)
    if (state.step, split) == ({step}, {split!r}) and {condition}:
        os.kill(os.getpid(), signal.SIGKILL)
    return line
"""


def run_before_final_export(statement):
    """Return code that executes a statement before the run's own export, not before the trial."""
    return f"""
@wraps_original
def export(original, folder, *args, **kwargs):
    if Path(folder) == run_path("export"):
        {statement}
    return original(folder, *args, **kwargs)
"""


def lose_loop(condition):
    """Return code with which the first loop that fulfils a condition has a loss of NaN."""
    return f"""
failed = []

@wraps_original
def train(original, iterator, steps):
    values = original(iterator, steps)
    if {condition} and not failed:
        failed.append(True)
        values["loss"] = math.nan
    return values
"""


# A validation loss that rises in each epoch, so that the first epoch remains the best.
RISING_LOSS = """
@wraps_original
def evaluation_step(original, batch, metrics):
    loss, weight = tf.unstack(original(batch, metrics))
    return tf.stack([-loss, weight])
"""
