"""The order of the data is a function of seed, epoch and position, and as good as random."""

import statistics

import pytest
from rendering import SIZES
from running import WORKERS, begin_query, query, read_answer, train, worker_environments
from variants import write_variant

EXAMPLES = 203
BATCH_SIZE = 20
STEPS = EXAMPLES // BATCH_SIZE  # per epoch


@pytest.fixture(scope="module")
def batches(once, complete_script):
    """Return a function that returns the batches that some replicas read."""

    def read_batches(replicas):
        path = str(complete_script)
        return once(query, "input.read_batches", path, replicas, EXAMPLES, BATCH_SIZE)

    return read_batches


def join_parts(batches, name):
    """Return the numbers, seeds or weights of some batches as one list."""
    return [value for batch in batches for value in batch[name]]


def count_equal(values, others):
    pairs = zip(values, others, strict=False)
    return sum(value == other for value, other in pairs)


def read_epoch(batches, epoch):
    """Return the numbers of the examples of an epoch, in order."""
    first = epoch * STEPS
    return join_parts(batches["seed 0"][first : first + STEPS], "numbers")


@pytest.mark.parametrize(
    "replicas",
    [2, pytest.param(4, marks=pytest.mark.long)],
)
def test_replicas_read_the_batches_of_one_replica(replicas, batches):
    expected = batches(1)
    assert len(expected["seed 0"]) == 32
    assert all(len(batch["numbers"]) == BATCH_SIZE for batch in expected["seed 0"])
    assert batches(replicas) == expected


def test_order_is_a_function_of_the_position(batches):
    expected = batches(1)["seed 0"]
    assert batches(1)["seed 0 from step 7"] == expected[7:15]
    assert batches(1)["seed 0 from step 23"] == expected[23:32]


def test_epoch_has_each_example_at_most_once(batches):
    for epoch in range(3):
        numbers = read_epoch(batches(1), epoch)
        assert len(set(numbers)) == STEPS * BATCH_SIZE
        assert set(numbers) <= set(range(EXAMPLES))


def test_epochs_have_different_orders(batches):
    first, second, third = (read_epoch(batches(1), epoch) for epoch in range(3))
    assert count_equal(first, second) < 10
    assert count_equal(first, third) < 10
    assert count_equal(second, third) < 10
    assert count_equal(first, range(EXAMPLES)) < 10


def test_each_example_has_its_own_seed(batches):
    steps = batches(1)["seed 0"] + batches(1)["seed 1"]
    seeds = [tuple(seed) for seed in join_parts(steps, "seeds")]
    assert len(set(seeds)) == len(seeds) == 2 * 32 * BATCH_SIZE


def test_seeds_give_different_orders(batches):
    numbers = join_parts(batches(1)["seed 0"], "numbers")
    others = join_parts(batches(1)["seed 1"], "numbers")
    assert count_equal(numbers, others) < 32


def test_evaluation_reads_the_split_in_order(batches):
    steps = batches(2)["evaluation"]
    numbers = join_parts(steps, "numbers")
    weights = join_parts(steps, "weights")
    assert batches(2)["steps per evaluation"] == STEPS + 1
    assert len(numbers) == 2 * (STEPS + 1) * BATCH_SIZE
    counted = [number for number, weight in zip(numbers, weights, strict=True) if weight]
    assert counted == 2 * list(range(EXAMPLES))
    assert set(weights) == {0.0, 1.0}


def test_each_evaluation_has_the_same_seeds(batches):
    # Otherwise a resumed run would evaluate with other random numbers.
    seeds = join_parts(batches(1)["evaluation"], "seeds")
    half = len(seeds) // 2
    assert seeds[:half] == seeds[half:]


@pytest.mark.parametrize("size", SIZES)
def test_many_cores_hold_few_batches(size, scripts):
    assert query("input.count_batches_ahead", scripts[size], 64) < 25


@pytest.mark.parametrize("size", SIZES)
def test_small_examples_are_loaded_in_little_memory(size, scripts):
    # One tf.data batch of all examples would need 14 times their size.
    largest = {"essential": 2.5, "complete": 1.2}
    peak = query("input.measure_loading_peak", scripts[size], 500_000)
    assert peak < largest[size]


ITERATORS = {
    "essential": 1,  # it loads without one
    "complete": 4,
}


@pytest.mark.parametrize("size", SIZES)
def test_no_iterator_waits_for_autotuning(size, scripts):
    # Its thread sleeps twice as long each time, and the end of an iterator waits for it.
    tuned = query("input.record_autotuning", scripts[size])
    assert set(tuned) == {False}  # the default, None, means yes
    assert len(tuned) == ITERATORS[size]


def test_workers_read_the_batches_of_one_process(complete_script):
    results = query("input.compare_worker_shares", complete_script)
    assert len(results) == 3 * 24 * 3  # numbers, seeds and weights of 24 batches, three times
    assert all(results)


# --------------------------------------------------------------------------------------------------
# Randomness
# --------------------------------------------------------------------------------------------------

ORDER_BATCH_SIZE = 64
# Seeds and epochs. A shuffle by seed + epoch, or by the low bits of either, would repeat itself.
EPOCHS = [
    (0, 0),
    (0, 1),
    (0, 2),
    (0, 256),
    (1, 0),
    (1, 1),
    (2, 0),
]
# By statistic, the range of its z-scores: 4 to 5 standard deviations.
LIMITS = {
    "broken": (0, 0),
    "correlation": (0, 5),
    "meeting": (0, 5),
    "mean meeting": (-5, 5),
    "spread of meetings": (0.4, 1.8),
    "places": (0, 2.2),  # 1 of 10,000 random orders is above this limit.
}


def find_patterns(script, size, use_index_shuffle=False):
    """Return the statistics of randomness that the orders of some epochs fail."""
    arguments = (script, size, EPOCHS, ORDER_BATCH_SIZE, use_index_shuffle)
    scores = query("input.examine_orders", *arguments)
    print(scores)
    assert scores.keys() == LIMITS.keys()
    return {key for key, (low, high) in LIMITS.items() if not low <= scores[key] <= high}


@pytest.mark.parametrize(
    "size",
    [
        65_537,
        pytest.param(1797, marks=pytest.mark.long),
        pytest.param(1_281_167, marks=pytest.mark.long),
    ],
)
def test_order_is_as_good_as_random(size, complete_script):
    assert find_patterns(complete_script, size) == set()


@pytest.mark.long
@pytest.mark.parametrize("size", [1797, 65_537])
def test_statistics_find_a_bad_shuffle(size, complete_script):
    # tf.random.experimental.index_shuffle never draws one of 4^k + 1 examples.
    found = find_patterns(complete_script, size, use_index_shuffle=True)
    assert {"correlation", "meeting"} <= found
    assert ("broken" in found) == (size == 65_537)


# --------------------------------------------------------------------------------------------------
# Input pipelines
# --------------------------------------------------------------------------------------------------


def test_input_starts_at_a_late_step_at_once(complete_script):
    arguments = (complete_script, 1_281_167, 1_000_000, ORDER_BATCH_SIZE)
    answer = query("input.measure_late_start", *arguments)
    assert answer["is right"]
    assert answer["is the same"]
    assert statistics.median(answer["seconds"]) < 1


def test_input_is_endless_to_tensorflow(complete_script):
    # Otherwise workers ask each other before each step whether there is more data. Each of two
    # workers traces the graph for CPUs and for accelerators.
    environments = worker_environments(WORKERS)
    question = "input.describe_pipelines"
    processes = [begin_query(question, complete_script, env=env) for env in environments]
    for answer in [read_answer(process) for process in processes]:
        for pipeline in answer.values():
            assert pipeline["training is endless"]
            assert pipeline["evaluation is endless"]
            assert pipeline["shapes"] == [
                [10, 8, 8, 1],
                [10],
                [10],
            ]
            assert pipeline["optionals"] == 0
        assert answer["GPU"]["collectives"] == answer["CPU"]["collectives"] > 0


# Writes how many training batches are being created, each time that one is begun.
COUNT_PARALLEL_BATCHES = """
import threading

lock = threading.Lock()
running = 0


def work(images):
    global running
    with lock:
        running += 1
        with open("running", "a") as file:
            print(running, file=file)
    time.sleep(0.1)
    with lock:
        running -= 1
    return images


def preprocess(batch, seeds, training):
    images, labels = batch
    if training:
        # Without `stateful`, the function is as parallel as TensorFlow's own.
        worked = tf.numpy_function(work, [images], images.dtype, stateful=False)
        images = tf.ensure_shape(worked, images.shape)
    return images, labels


os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:{cores}])
"""


def count_parallel_batches(script, folder, cores, *flags):
    """Return the numbers of batches that are being created when one is begun."""
    code = COUNT_PARALLEL_BATCHES.replace("{cores}", str(cores))
    variant = write_variant(script, folder, code)
    train(variant, "--epochs", "1", *flags)
    counts = (folder / "running").read_text().split()
    return set(map(int, counts))


@pytest.mark.parametrize("flags", [(), ("--deterministic",)])
@pytest.mark.parametrize("size", SIZES)
def test_cores_create_batches_in_parallel(size, flags, scripts, tmp_path):
    script = scripts[size]
    counts = count_parallel_batches(script, tmp_path, 2, *flags)
    assert counts == {1, 2}


@pytest.mark.long
@pytest.mark.parametrize("size", SIZES)
def test_one_core_creates_one_batch_at_a_time(size, scripts, tmp_path):
    script = scripts[size]
    counts = count_parallel_batches(script, tmp_path, 1)
    assert counts == {1}


def test_speed_counts_the_time_of_the_device(complete_script):
    line = query("input.log_delayed_loop", complete_script)
    assert line["loss"] == 2
    assert 70 < line["examples_per_second"] <= 700  # 7 steps of 100 in at least a second
    assert 0.05 < line["input_wait"] <= 0.5
