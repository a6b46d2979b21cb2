"""The names of the hooks and steps of train.py, and which of them a traceback ends in."""

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
STEPS = ("update_metrics", "compute_gradients", "evaluation_step")  # checked with train_step


def find_hook(text):
    """Return the innermost hook or step in a traceback and its line in train.py, or two None."""
    found = (None, None)
    for line, name in re.findall(r'train\.py", line (\d+), in (\w+)', text):
        if name in HOOKS or name in STEPS:
            found = (name, int(line))
    return found
