"""Evaluation counts every example exactly once, for any split, batch size and replicas."""

import pytest
from running import assert_close, flags_of, query, read_numbers, read_split
from variants import NO_DROPOUT, WEIGHTED, take_examples

LONG = pytest.mark.long

SIZES_3_AND_65 = (take_examples(200, 3, 65),)
SIZES_65_AND_3 = (take_examples(200, 65, 3),)

# By name: batch size, replicas and variant, of one epoch. Replicas share batches of which the last
# is not full. With 1000 examples per batch, 270 fill one replica and part of a second of four.
# With 3 and 65 examples and a batch size of 64, three of four replicas get none.
CASES = {
    "7-by-1": (7, 1, ()),
    "1000-by-4": (1000, 4, ()),
    "sizes-by-1": (64, 1, SIZES_3_AND_65),
    "sizes-by-4": (64, 4, SIZES_65_AND_3),
    "plain-by-2": (64, 2, ()),
    "weighted-by-1": (64, 1, (NO_DROPOUT, WEIGHTED)),
    "weighted-by-2": (64, 2, (NO_DROPOUT, WEIGHTED)),
}
# The examples of the validation and the test split, if not 270 each.
EXAMPLES = {"sizes-by-1": (3, 65), "sizes-by-4": (65, 3)}


@pytest.fixture
def evaluate(train_once):
    """Return a function that trains one of CASES and returns the run's folder."""

    def train_case(name):
        batch_size, replicas, code = CASES[name]
        flags = ("--epochs", "1", "--global-batch-size", str(batch_size))
        return train_once(*flags, *flags_of(replicas), code=code)

    return train_case


def assert_same_evaluation(line, expected):
    """Assert that a log line has the loss and accuracy that NumPy has computed."""
    for name in ("loss", "accuracy"):
        value = pytest.approx(expected[name], rel=1e-6, abs=1e-6)
        assert line[name] == value, name


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("7-by-1", marks=LONG),
        "1000-by-4",
        pytest.param("sizes-by-1", marks=LONG),
        pytest.param("sizes-by-4", marks=LONG),
        "plain-by-2",
        "weighted-by-2",
    ],
)
def test_evaluation_counts_every_example_once(name, evaluate):
    run_dir = evaluate(name)
    [exports] = query("runs.evaluate_exports", run_dir)
    validation_size, test_size = EXAMPLES.get(name, (270, 270))
    [validation] = read_split(run_dir, "validation")
    [test] = read_split(run_dir, "test")
    for splits in exports.values():
        assert splits["validation"]["examples"] == validation_size
        assert splits["test"]["examples"] == test_size
        assert_same_evaluation(validation, splits["validation"])
        assert_same_evaluation(test, splits["test"])


def test_sample_weights_do_not_depend_on_replicas(evaluate):
    one = read_numbers(evaluate("weighted-by-1"))
    two = read_numbers(evaluate("weighted-by-2"))
    assert_close(two, one, rel=1e-5)
