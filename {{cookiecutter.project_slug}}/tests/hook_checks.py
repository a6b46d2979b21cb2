"""All checks of the hooks of train.py, in order. train_runs.py runs them in a process of their own.

A check is a generator. It yields problems: what is wrong with the hook, and what to do.
"""

import json
import re
import traceback

from check_data import check_adapt, check_datasets, check_fetch, check_preprocess
from check_losses import check_loss_objects, check_losses, check_replica_losses, check_step_of_loss
from check_models import check_model
from check_replicas import (
    # {% if cookiecutter.distribution == "synchronous" %}
    check_draws,
    check_replica_gradients,
    # {% endif %}
    check_rounding,
    check_suspects,
)
from check_steps import (
    check_end_epoch,
    check_finite_gradients,
    check_gradients,
    check_learned_variables,
    check_metrics,
    check_score,
    check_serving_function,
    check_step_randomness,
    check_updates_of_models,
)
from check_tools import Hint, describe_error, list_first
from hook_names import HOOKS, RESULT, STEPS, TOO_EARLY, find_frames, find_hook

import train
from train import keras, tf

# Beside the hooks: what may make results differ between replicas, probably or possibly.
SUSPECTS = "suspects"
ROUNDING = "rounding"
HINTS = "hints"  # pairs of a hook and a text

CHECKS = (
    ("create_datasets", check_datasets),
    ("adapt", check_adapt),
    ("fetch", check_fetch),
    ("preprocess", check_preprocess),
    ("create_model_and_optimizer", check_model),
    ("create_loss_objects", check_loss_objects),
    ("compute_losses", check_losses),
    ("compute_losses", check_finite_gradients),
    ("compute_loss", check_replica_losses),
    ("compute_loss", check_step_of_loss),
    ("create_metrics", check_metrics),
    ("score", check_score),
    ("end_epoch", check_end_epoch),
    ("create_model_and_optimizer", check_gradients),
    # {% if cookiecutter.distribution == "synchronous" %}
    ("create_model_and_optimizer", check_draws),
    ("train_step", check_replica_gradients),
    # {% endif %}
    ("train_step", check_step_randomness),
    ("train_step", check_updates_of_models),
    ("train_step", check_learned_variables),
    ("create_serving_function", check_serving_function),
    (SUSPECTS, check_suspects),
    (ROUNDING, check_rounding),
)

# A hook can't be checked before the problems of these are solved.
NEEDED = {
    "compute_losses": ["create_loss_objects"],
    "compute_loss": ["create_loss_objects", "compute_losses"],
}


def check_hooks():
    """Return the problems of each hook, None for a hook that can't be checked, and hints."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    replicas = [tf.config.LogicalDeviceConfiguration()] * 2
    try:
        tf.config.set_logical_device_configuration(cpu, replicas)
    except RuntimeError:  # the devices are initialized
        return report_early_objects()
    report = {key: [] for key in (*HOOKS, SUSPECTS, ROUNDING, HINTS)}
    for number, (hook, check) in enumerate(CHECKS):
        print_in_case_of_crash(report, number)
        if any(report[needed] for needed in NEEDED.get(hook, ())):
            report[hook] = None
        else:
            run_check(hook, check, report)
    return report


def print_in_case_of_crash(report, number):
    """Print the report before a check, with the name of its hook.

    It is the last one if a library crashes in this check. Then the later checks find nothing.
    """
    hook, _ = CHECKS[number]
    unchecked = {name: report[name] or None for name, _ in CHECKS[number:] if name in HOOKS}
    print(f"\n{RESULT}{json.dumps({**report, **unchecked, 'crashed': hook})}", flush=True)


def report_early_objects():
    """Return a report about objects that train.py has created before its strategy."""
    names = [name for name, value in vars(train).items() if holds_tensors(value)]
    found = f"{TOO_EARLY}. Look at {list_first(names)}" if names else TOO_EARLY
    report = {hook: None for hook in HOOKS}
    report |= {SUSPECTS: [], ROUNDING: [], HINTS: []}
    report["create_model_and_optimizer"] = [found]
    return report


def holds_tensors(value):
    """Return whether a value may hold tensors or variables, as a layer does, or a list of them."""
    kinds = (tf.Tensor, tf.Variable, keras.Variable, keras.Layer, keras.optimizers.Optimizer)
    return any(isinstance(part, kinds) for part in tf.nest.flatten(value))


def run_check(hook, check, report):
    """Add the problems and hints that a check finds to the report."""
    problems = []
    try:
        for problem in check():
            if isinstance(problem, Hint):
                report[HINTS].append((hook, problem))
            else:
                problems.append(problem)
    except (Exception, SystemExit) as error:  # hooks can raise any type
        if not problems:
            report_exception(error, hook, report)
    if problems:
        report[hook] = (report[hook] or []) + problems


# Advice by a pattern in the message about an exception.
ADVICE = {
    "unknown rank": (
        "TensorFlow doesn't know the shape of a tensor, as after tf.edit_distance or "
        "tf.numpy_function; set it by tf.ensure_shape(x, [None]), say"
    ),
    "^fails in update_metrics(?!.*unknown rank)": (
        "a metric of tokens or pixels needs a weight for each of them: for labels [batch, tokens], "
        "`tf.ones_like(labels, tf.float32) * sample_weight[:, None]`, with one more None for each "
        "further dimension. Another metric needs one value per example"
    ),
    "^fails in .*values to unpack": (
        "the batch of a step is always (features, labels, sample_weight)"
    ),
    "no attribute 'numpy'|'SymbolicTensor' object cannot be": (
        "this runs in a graph, so use TensorFlow operations, or Python code in tf.numpy_function, "
        "which can't be exported with `preprocess`"
    ),
    "[Cc]annot reshape|Input to reshape": (
        "if the shape contains the batch size, write -1 or None for it: the checks also use parts "
        "of a batch"
    ),
    "out of scope|Symbolic.*[Rr]esource": (
        "create a lookup table once, in a function with @functools.cache, and there inside "
        "tf.init_scope()"
    ),
}


def has_problems(report):
    return any(problems for key, problems in report.items() if key != HINTS)


def describe_place(line, frames):
    """Return the line of a hook and, if it called another function of train.py, its line, too."""
    inner_line, function = frames[-1]
    if int(inner_line) == line:
        return f"line {line}"
    return f"line {line}, and line {inner_line} in {function}"


def report_exception(error, hook, report):
    """Add an exception to the report, unless it may follow from an earlier problem."""
    if has_problems(report):
        if hook in HOOKS:
            report[hook] = report[hook] or None
        return
    text = "".join(traceback.format_exception(error))
    name, line = find_hook(text)
    place = f" (train.py, {describe_place(line, find_frames(text))})" if line else ""
    if name in (*STEPS, "train_step"):
        place = f" in {name}{place}"
        name = "train_step"
    problem = f"fails{place}: {describe_error(error)}"
    advice = [text for pattern, text in ADVICE.items() if re.search(pattern, problem)]
    report[name or hook] = ["; ".join([problem, *advice])]
