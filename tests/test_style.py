"""The code is plain: limits on size, density, length and complexity, measured here.

Tokens are counted by Python's `tokenize`, without comments, docstrings, line ends and indentation.
A code line is a line on which such a token starts. Complexity is cyclomatic complexity, with
comprehensions, assertions and conditional expressions, nested functions included.
"""

import ast
import collections
import dataclasses
import io
import tokenize

import pytest
from rendering import TEMPLATE

TOKENS = {"essential": 6_500, "complete": 11_500, "parameter_server": 7_500}
MORE_TOKENS = {"text_classification": 900}
TOKENS_PER_LINE = 9.0
DENSE_LINE = 25  # tokens
DENSE_LINES = 0.03  # share of the code lines
FUNCTION_LINES = 50
COMPLEXITY = 10
GLOBAL_NAMES = 12

FORMATTING = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)
BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.Assert,
    ast.comprehension,
    ast.match_case,
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (*FUNCTIONS, ast.ClassDef, ast.Module)

FILES = [
    *TEMPLATE.glob("hooks/*.py"),
    *TEMPLATE.glob("tests/*.py"),
    *TEMPLATE.glob("benchmarks/*.py"),
]


@dataclasses.dataclass
class Measurement:
    """The figures of one file."""

    tokens: int
    tokens_per_line: float
    dense_lines: float
    global_names: int
    large_functions: list[str]


def find_docstrings(tree):
    """Return the positions, (line, column), at which docstrings start."""
    positions = set()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            positions.add((docstring.lineno, docstring.col_offset))
    return positions


def read_tokens(text, tree):
    """Return the tokens of a file that count."""
    docstrings = find_docstrings(tree)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [
        token for token in tokens if token.type not in FORMATTING and token.start not in docstrings
    ]


def measure_complexity(function):
    complexity = 1
    for node in ast.walk(function):
        if isinstance(node, BRANCHES):
            complexity += 1
        if isinstance(node, ast.comprehension):
            complexity += len(node.ifs)
        if isinstance(node, ast.BoolOp):
            complexity += len(node.values) - 1
    return complexity


def find_large_functions(tree):
    """Return the functions that are too long or too complex, with their figures."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            lines = node.end_lineno - node.lineno + 1
            complexity = measure_complexity(node)
            if lines > FUNCTION_LINES or complexity > COMPLEXITY:
                found.append(f"{node.name}: {lines} lines, complexity {complexity}")
    return found


def find_global_names(tree):
    """Return the names in `global` statements."""
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.Global)]
    return {name for statement in statements for name in statement.names}


def measure(text):
    tree = ast.parse(text)
    tokens = read_tokens(text, tree)
    lines = collections.Counter(token.start[0] for token in tokens)
    code_lines = max(1, len(lines))
    dense = [line for line, count in lines.items() if count >= DENSE_LINE]
    return Measurement(
        tokens=len(tokens),
        tokens_per_line=len(tokens) / code_lines,
        dense_lines=len(dense) / code_lines,
        global_names=len(find_global_names(tree)),
        large_functions=find_large_functions(tree),
    )


def assert_plain(measurement):
    """Assert that a file is within the limits of density, length and complexity."""
    assert measurement.large_functions == []
    assert measurement.tokens_per_line <= TOKENS_PER_LINE
    assert measurement.dense_lines <= DENSE_LINES


def test_script_is_plain(answers, render, tmp_path):
    project = render(tmp_path, accept_hooks=False, **answers)
    measurement = measure((project / "train.py").read_text(encoding="utf-8"))
    size = answers["script"]
    if answers["distribution"] == "parameter_server":  # has one size
        size = "parameter_server"
    assert measurement.tokens <= TOKENS[size] + MORE_TOKENS.get(answers["task"], 0)
    assert measurement.global_names <= GLOBAL_NAMES
    assert_plain(measurement)


def name_path(path):
    return path.relative_to(TEMPLATE).as_posix()


@pytest.mark.parametrize("path", FILES, ids=name_path)
def test_code_of_the_template_is_plain(path):
    assert_plain(measure(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("distribution", ["synchronous", "parameter_server"])
@pytest.mark.parametrize("script", ["essential", "complete"])
def test_other_code_of_a_project_is_plain(script, distribution, render, tmp_path):
    answers = {"script": script, "distribution": distribution}
    project = render(tmp_path, accept_hooks=False, **answers)
    for path in project.rglob("*.py"):
        if path.name != "train.py":
            assert_plain(measure(path.read_text(encoding="utf-8")))


# --------------------------------------------------------------------------------------------------
# The measurement
# --------------------------------------------------------------------------------------------------

EXAMPLE = '''"""A docstring."""


def count(items):  # a comment
    """A docstring."""
    global total
    total = len([item for item in items if item and item > 1])
    return total if total else 0
'''


def test_measurement_counts_tokens_lines_and_names():
    measurement = measure(EXAMPLE)
    # Tokens by line: "def …:" has 6 tokens, "global …" 2, "total = …" 18 and "return …" 6.
    assert measurement.tokens == 6 + 2 + 18 + 6
    assert measurement.tokens_per_line == measurement.tokens / 4
    assert measurement.dense_lines == 0
    assert measurement.global_names == 1


def test_measurement_counts_branches():
    [function] = ast.parse(EXAMPLE).body[1:]
    # A comprehension with a condition of two parts, and a conditional expression.
    assert measure_complexity(function) == 1 + 1 + 1 + 1 + 1


def test_measurement_finds_large_functions():
    long = "def long():\n" + "    x = 1\n" * FUNCTION_LINES
    branches = "def branchy(x):\n" + "    assert x\n" * COMPLEXITY
    found = measure(long + branches).large_functions
    assert found == ["long: 51 lines, complexity 1", "branchy: 11 lines, complexity 11"]
