"""Random layers draw the same numbers for a batch on any number of replicas.

With one replica they are Keras's own, bit by bit.
"""

import numpy as np
import pytest
from running import query

LONG = pytest.mark.long
REPLICAS = [
    2,
    pytest.param(4, marks=LONG),
    pytest.param(8, marks=LONG),
]
DTYPES = [
    "float32",
    pytest.param("bfloat16", marks=LONG),
    pytest.param("float16", marks=LONG),
]

POLICIES = [
    "float32",
    pytest.param("mixed_bfloat16", marks=LONG),
    pytest.param("mixed_float16", marks=LONG),
]
SIZES = [
    "essential",
    pytest.param("complete", marks=LONG),
]


@pytest.fixture(params=SIZES)
def any_script(request, scripts):
    return str(scripts[request.param])


def assert_same_numbers(numbers, expected):
    assert numbers.keys() == expected.keys()
    for name in expected:
        assert numbers[name] == expected[name], name


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("replicas", REPLICAS)
def test_layers_draw_the_numbers_of_one_replica(replicas, policy, any_script, once):
    expected = once(query, "random.call_layers", any_script, 1, policy)
    outputs = query("random.call_layers", any_script, replicas, policy)
    assert outputs.keys() == expected.keys()
    for name in expected:
        # Images are resampled, with rounding errors.
        np.testing.assert_allclose(
            outputs[name],
            expected[name],
            rtol=1e-5 if policy == "float32" else 1e-2,
            atol=1e-2,
            err_msg=name,
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("replicas", [1, *REPLICAS])
def test_distributions_draw_the_numbers_of_keras(replicas, dtype, any_script, once):
    expected = once(query, "random.draw_as_keras", any_script, dtype)
    numbers = query("random.draw", any_script, replicas, dtype, False)
    assert_same_numbers(numbers, expected)


@LONG
@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_distributions_draw_the_numbers_of_one_replica(dtype, complete_script, once):
    expected = once(query, "random.draw", str(complete_script), 1, dtype, True)
    numbers = query("random.draw", complete_script, 4, dtype, True)
    assert_same_numbers(numbers, expected)


SHAPES = {
    "odd": [12, 7],
    "beyond 2^32": [12 << 20, 1 << 13],
}


@pytest.mark.parametrize("name", SHAPES)
def test_second_replica_skips_the_numbers_of_the_first(name, essential_script):
    rows, columns = SHAPES[name]
    size = rows * columns
    shape = [rows, columns]
    # Three more are drawn, since the first of its numbers may be the fourth of a counter.
    counters = query("random.find_counters", essential_script, 2, shape)
    assert counters == [[0, size + 3], [size // 4, size + 3]]


@pytest.mark.parametrize("counter", [2**32 - 1, 2**33 - 1])
def test_generator_counts_beyond_32_bits(counter):
    """A counter has four numbers, so the fifth is the first of the next counter."""
    numbers, next_numbers = query("random.draw_from_counters", counter)
    assert numbers[4:] == next_numbers[:4]
    assert numbers[:4] != next_numbers[:4]


def test_parts_of_replicas_may_begin_within_a_counter(essential_script):
    # A part has 42 numbers. A counter has four.
    counters = query("random.find_counters", essential_script, 4, [6, 7])
    assert counters == [[0, 45], [10, 45], [21, 45], [31, 45]]


def test_replica_may_be_a_tensor_of_a_compiled_graph(any_script):
    assert query("random.draw_with_traced_replicas", any_script)


def test_replicas_share_numbers_without_a_batch(essential_script):
    # 5 rows are no multiple of a replica's 12 examples.
    counters = query("random.find_counters", essential_script, 2, [5, 7])
    assert counters == [[0, 35 + 3], [0, 35 + 3]]


@pytest.fixture
def text_script(task_scripts):
    return task_scripts["text_classification"]["essential"]


def count_operations(script, replicas):
    operations = query("random.count_operations", script, replicas)
    assert operations["StatelessRandomGetKeyCounter"] == 8 * replicas  # BERT's dropouts
    return operations


def test_one_replica_has_no_operations_for_its_part(text_script):
    assert "Slice" not in count_operations(text_script, 1)


def test_graph_has_computed_where_a_part_begins(text_script):
    # On GPUs, integers that are computed in each step are copied to the host.
    operations = count_operations(text_script, 2)
    assert operations["Slice"] == operations["StatelessRandomGetKeyCounter"]
    assert operations["FloorMod"] == operations["StatelessRandomGetKeyCounter"]  # Keras's own
    assert "Prod" not in operations
