"""What the tests and their processes share: names of hooks and steps, and how they are printed."""

import re

HOOKS = (
    "create_datasets",
    "adapt",
    "fetch",
    "preprocess",
    "create_model_and_optimizer",
    "create_loss_objects",
    "create_metrics",
    "compute_losses",
    "compute_loss",
    "score",
    "end_epoch",
    "create_serving_function",
    "train_step",
)
RESULT = "result: "  # begins the line in which train_runs.py prints what a function returns
# What to do if TensorFlow has initialized its devices before train.py chooses them.
TOO_EARLY = (
    "train.py creates tensors or variables outside of its functions. Create them in hooks: else "
    "TensorFlow initializes the devices before train.py can choose them"
)
STEPS = ("update_metrics", "compute_gradients", "evaluation_step")  # checked with train_step


def find_hook(text):
    """Return the innermost hook or step in a traceback and its line in train.py, or two None."""
    found = (None, None)
    for line, name in find_frames(text):
        if name in HOOKS or name in STEPS:
            found = (name, int(line))
    return found


def find_frames(text):
    """Return (line, function) of each frame of train.py in a traceback, the innermost last."""
    return re.findall(r'train\.py", line (\d+), in (\w+)', text)
