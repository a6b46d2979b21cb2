"""The prose is plain English: no banned phrase, no long sentence, no long README.

The prose is pages, comments, docstrings, messages and prompts. A failure names the file, the line,
the phrase and its replacement.
"""

import io
import re
import tokenize
import typing

import pytest
from rendering import PRODUCT, TEMPLATE, combine_choices

README_WORDS = 1500
SENTENCE_WORDS = 25

# This file quotes the phrases.
THIS = "tests/test_vocabulary.py"

# By regular expression, without regard to case, what to write instead.
BANNED = {
    r"\b(goes|went|going) on\b|\bgo on (with|under|until)\b": "resumes, continues",
    r"\b(take|takes|took|taking) over\b": "resumes, continues, replaces",
    r"\bsame bits\b|\bthe bits of\b": "bit-identical",
    r"\bin (the )?place of\b|\b(take|takes|took) the place of\b": "instead of, replaces",
    r"\banew\b": "again",
    r"\bwhom\b|\bwhoever\b": "which; arrival order",
    r"\bheld (to|against)\b": "checked against, compared with",
    r"\b(is|are|was|were|be) refused\b|\brefuses\b": "is rejected, raises an error",
    r"\bdamages?\b|\bdamaged\b": "corrupt",
    r"\b(that|those) of\b": "repeat the noun",
    r"\bwon't do\b": "the constraint: is not …, must be …",
    r"\baverages of (the )?weights\b": "EMA of the weights",
    r"\bfirst weights\b": "initial weights",
    r"\b(hear|hears|heard)\b": "handles, receives",
    r"\bwhat is not here\b": "non-goals",
    r"\bstands?\b(?! (for|in))|\bas (it|they) stands?\b": "is",
    r"\b(bears|bear)\b": "has",
    r"\b(is|are) told\b|\btells\b|\bsays? (so|what|why|which|how)\b": "logs, reports, states",
    r"\bone truth\b": "results don't depend on …",
    r"\bends? in (a|one) line\b": "prints a one-line error",
    r"\bmachine's links\b": "network",
    r"\bby the (clock|processor)\b": "wall-clock time, CPU time",
    r"\bshall\b|\b(is|are) to (be|work|have)\b": "must",
    r"\bone another\b": "each other",
    r"\baccus(e|es|ed)\b": "fail",
    r"\bbut for\b|\bsave for\b": "except",
    r"\bgoes through\b|\bwent through\b": "passes, succeeds",
    r"\bso (does|is|are|do|was)\b": "too, also",
    r"\b(hence|thus|lest|upon|amidst?|whereof|thereof|whereby|hereby)\b": "so, because, on",
    r"\b(TensorFlow|Keras|Python|Slurm|train\.py) (knows|wants|thinks|sees|looks for)\b": (
        "the fact, without a person"
    ),
}
COMMENTS_ONLY = {r"^of\b": "begin with a noun; a comment can be read alone"}


class Prose(typing.NamedTuple):
    """A text, the line on which it starts, and whether it is a comment."""

    line: int
    text: str
    is_comment: bool = False


# --------------------------------------------------------------------------------------------------
# Reading
# --------------------------------------------------------------------------------------------------


def read_strings(tokens):
    """Return the strings, docstrings included."""
    kinds = ("STRING", "FSTRING_MIDDLE")  # Python 3.12 splits f-strings.
    strings = [token for token in tokens if tokenize.tok_name[token.type] in kinds]
    return [Prose(token.start[0], token.string) for token in strings]


def read_comments(tokens):
    """Return the comments. Comments on successive lines are one text."""
    comments = []
    last_line = None
    for token in tokens:
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        text = token.string.lstrip("# ")
        if line - 1 == last_line:
            first = comments.pop()
            comments.append(Prose(first.line, f"{first.text} {text}", True))
        else:
            comments.append(Prose(line, text, True))
        last_line = line
    return comments


def read_python(text):
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    return read_strings(tokens) + read_comments(tokens)


def read_paragraphs(text):
    """Return the paragraphs of a file that is not Python. Comment signs are removed."""
    paragraphs = []
    for match in re.finditer(r"(?s)\S.*?(?=\n\s*\n|\s*\Z)", text):
        line = 1 + text.count("\n", 0, match.start())
        paragraphs.append(Prose(line, re.sub(r"(?m)^ *# ", "", match[0])))
    return paragraphs


def has_prose(path):
    """Return whether a file is one to check. Golden files repeat others."""
    name = path.relative_to(TEMPLATE).as_posix()
    is_generated = "golden" in path.parts or "__pycache__" in path.parts
    is_text = path.is_file() and path.suffix not in (".png", ".gif")
    return is_text and not is_generated and name != THIS


def list_files():
    """Return the names of the files with prose."""
    paths = [TEMPLATE / "cookiecutter.json", TEMPLATE / ".ci" / "run", *TEMPLATE.glob("*.md")]
    for folder in ("templates", "hooks", "tests", "benchmarks", "docs", PRODUCT.name):
        paths += sorted((TEMPLATE / folder).rglob("*"))
    return [path.relative_to(TEMPLATE).as_posix() for path in paths if has_prose(path)]


def read_prose(name):
    """Return the prose of a file. Released sections of the changelog stay as they are."""
    text = (TEMPLATE / name).read_text(encoding="utf-8")
    if name == "CHANGELOG.md":
        text = re.split(r"(?m)^## \[\d", text)[0]
    return read_python(text) if name.endswith(".py") else read_paragraphs(text)


# --------------------------------------------------------------------------------------------------
# Phrases
# --------------------------------------------------------------------------------------------------


def find_phrases(prose):
    """Return the banned phrases of a text, each with what to write instead."""
    text = " ".join(prose.text.split())
    banned = BANNED | COMMENTS_ONLY if prose.is_comment else BANNED
    found = []
    for pattern, replacement in banned.items():
        for match in re.finditer(pattern, text, re.IGNORECASE):
            start = max(0, match.start() - 30)
            excerpt = text[start : match.end() + 30]
            found.append(f"line {prose.line}: …{excerpt}…: write {replacement}")
    return found


@pytest.mark.parametrize("name", list_files())
def test_prose_has_no_banned_phrase(name):
    found = [phrase for prose in read_prose(name) for phrase in find_phrases(prose)]
    assert found == [], name


@pytest.mark.parametrize(
    "text",
    [
        "The run goes on.",
        "as they\n    stand there",
        "the same bits",
        "a flag whose value is that\nof the chief",
        "It tells why.",
    ],
)
def test_banned_phrase_is_found(text):
    for each in read_python(f'"""{text}"""') + read_paragraphs(f"Text.\n\n# {text}"):
        assert len(find_phrases(each)) == (each.text != "Text.")


def test_comment_that_continues_a_name_is_found():
    comments = read_comments(list(tokenize.generate_tokens(io.StringIO("x = 1  # of y").readline)))
    assert len(find_phrases(comments[0])) == 1


# --------------------------------------------------------------------------------------------------
# Sentences and READMEs
# --------------------------------------------------------------------------------------------------


def split_sentences(page):
    """Return the sentences of a page, without blocks of code, tables and headings.

    Items of a list are separate sentences. An introduction ends with a colon at the end of a line.
    """
    page = re.sub(r"(?ms)^ *```.*?^ *```$|^ {4}.*?$", "", page)
    page = re.sub(r"(?m)^(\||#).*$", "", page)
    page = re.sub(r"`[^`]*`", "code", page)
    page = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", page)
    parts = re.split(r"\n\s*\n|\n *- |\n *\d+\. |(?<=[.!?])\s|:\s*\n", page)
    return [" ".join(part.split()) for part in parts]


def find_long_sentences(page):
    found = [text for text in split_sentences(page) if len(text.split()) > SENTENCE_WORDS]
    return [f"{len(text.split())} words: {text}" for text in found]


@pytest.mark.parametrize("name", [name for name in list_files() if name.endswith(".md")])
def test_page_has_no_long_sentence(name):
    page = "\n\n".join(prose.text for prose in read_prose(name))
    assert find_long_sentences(page) == [], name


def test_long_sentence_is_found():
    words = "word " * SENTENCE_WORDS
    assert find_long_sentences(f"- One.\n- {words}\n\n```\n{words} {words}\n```") == []
    [found] = find_long_sentences(f"One. {words} more,\nand. Two.")
    assert found.startswith("27 words: word")


def test_readme_of_a_project_is_short(render, tmp_path):
    """Render all combinations of answers in one test: this takes seconds."""
    for answers in combine_choices():
        name = "-".join(answers.values())
        project = render(tmp_path / name, accept_hooks=False, project_slug="a_project", **answers)
        text = (project / "README.md").read_text(encoding="utf-8")
        assert len(text.split()) <= README_WORDS, name
        assert find_long_sentences(text) == [], name
        for prose in read_paragraphs(text):
            assert find_phrases(prose) == [], name
