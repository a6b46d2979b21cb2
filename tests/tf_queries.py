"""Answer the tests' questions that need TensorFlow: python tf_queries.py QUESTION ARGUMENTS.

A question names a function of a module query_*.py, such as "runs.hash_checkpoints"; its arguments
are a JSON list. The tests run this in a process of its own. The last line that it prints is the
answer, as JSON.
"""

import importlib
import importlib.util
import json
import os
import sys


def load_script(path):
    """Return a script as a new module, which shares nothing with earlier ones."""
    spec = importlib.util.spec_from_file_location("train", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["train"] = module  # AutoGraph looks for the module there.
    spec.loader.exec_module(module)
    return module


def begin(path, *flags):
    """Return a script that has read its flags and created its strategy, as `main` does first."""
    script = load_script(path)
    script.config = script.parse_flags([*map(str, flags)])
    script.strategy = script.create_strategy()
    script.GLOBAL_BATCH_SIZE = script.config.global_batch_size
    script.keras.utils.set_random_seed(0)
    script.train_metrics = []
    return script


def create_model(script):
    """Give a script the model and the optimizer of its hooks."""
    script.adapted.update(script.adapt(script.create_datasets()[0]))
    script.model, script.optimizer = script.create_model_and_optimizer(script.strategy)


def begin_complete(path, *flags):
    """Return a complete script as `begin` does, with its precision, clipping and accumulation."""
    script = begin(path, *flags)
    script.GLOBAL_BATCH_SIZE //= script.config.accumulation_steps
    script.keras.config.set_dtype_policy(script.config.precision)
    script.wrap_compute_gradients()
    return script


def local_values(script, variable):
    """Return the values of a variable, one for each replica, as lists."""
    value = getattr(variable, "value", variable)
    return [x.numpy().tolist() for x in script.strategy.experimental_local_results(value)]


def main():
    question, arguments = sys.argv[1:]
    if os.environ.get("NVIDIA_TF32_OVERRIDE") == "0":
        # NVIDIA's libraries read the variable when they are loaded, which may be too early.
        tensorflow = importlib.import_module("tensorflow")
        tensorflow.config.experimental.enable_tensor_float_32_execution(False)
    topic, name = question.split(".")
    function = getattr(importlib.import_module(f"query_{topic}"), name)
    print(json.dumps(function(*json.loads(arguments))))


if __name__ == "__main__":
    main()
