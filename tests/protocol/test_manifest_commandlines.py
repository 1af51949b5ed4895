"""A pattern allows a command line only if a shell would run that one program with these words, and nothing else."""

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avenor.protocol.manifest.commandlines import find_pattern_mistake, split_line, why_not_allowed

PYTEST = "python -m pytest -q tests/test_retry.py*"


@pytest.mark.parametrize(
    "command",
    [
        "python -m pytest -q tests/test_retry.py",
        "  python  -m\tpytest -q 'tests/test_retry.py::test_a' ",
        'python -m pytest -q "tests/test_retry.py::test_\\"x\\""',
        "python -m pytest -q tests/test_retry.py::test\\ b",
        "bash -lc 'python -m pytest -q tests/test_retry.py'",
        '/bin/sh -c "python -m pytest -q tests/test_retry.py"',
        """bash -lc "bash -c 'python -m pytest -q tests/test_retry.py'" """,
    ],
)
def test_what_a_pattern_means_is_allowed(command: str) -> None:
    """However it is quoted, and in a shell that codex puts around it."""
    assert why_not_allowed(command, PYTEST) is None


@pytest.mark.parametrize(
    "command",
    [
        "python -m pytest -q tests/test_retry.py; rm -rf x",
        "python -m pytest -q tests/test_retry.py && rm x",
        "python -m pytest -q tests/test_retry.py || rm x",
        "python -m pytest -q tests/test_retry.py | sh",
        "python -m pytest -q tests/test_retry.py & rm x",
        "python -m pytest -q tests/test_retry.py\nrm x",
        "python -m pytest -q tests/test_retry.py\r\nrm x",
        "python -m pytest -q tests/test_retry.py > /etc/x",
        "python -m pytest -q tests/test_retry.py < x",
        "python -m pytest -q tests/test_retry.py$(rm x)",
        'python -m pytest -q "tests/test_retry.py$(rm x)"',
        "python -m pytest -q tests/test_retry.py`rm x`",
        'python -m pytest -q "tests/test_retry.py`rm x`"',
        "python -m pytest -q tests/test_retry.py$X",
        "python -m pytest -q tests/test_retry.py{a,b}",
        "python -m pytest -q tests/test_retry.py*",
        "python -m pytest -q tests/test_retry.py\\\nrm",
        "python -m pytest -q 'tests/test_retry.py\nrm'",
        "python -m pytest -q tests/test_retry.py -p evil",
        "python -m pytest -q tests/test_retry.py # rm",
        "python -m pytest -q tests/test_retry.py/../../evil.py",
        "python -m pytest -q 'tests/test_retry.py",
        'python -m pytest -q "tests/test_retry.py',
        "python -m pytest -q tests/test_retry.py\\",
        "python -m pytest tests/test_retry.py",
        "PYTHONPATH=/evil python -m pytest -q tests/test_retry.py",
        "env python -m pytest -q tests/test_retry.py",
        "cd /tmp && python -m pytest -q tests/test_retry.py",
        "~/python -m pytest -q tests/test_retry.py",
        "! python -m pytest -q tests/test_retry.py",
        "bash -lc 'python -m pytest -q tests/test_retry.py; rm x'",
        "bash -lc 'python -m pytest -q tests/test_retry.py' rm",
        "bash -xc 'python -m pytest -q tests/test_retry.py'",
        "./bash -lc 'python -m pytest -q tests/test_retry.py'",
        'bash -lc "$(cat x)"',
        """sh -c "sh -c \\"sh -c 'python -m pytest -q tests/test_retry.py'\\"" """,
        "",
        "\x00",
    ],
)
def test_nothing_else_is_allowed(command: str) -> None:
    """No second command, no pipe, no redirection, no expansion, no variable, no other word."""
    assert why_not_allowed(command, PYTEST)


def test_a_star_at_the_end_stands_for_any_further_words() -> None:
    """Also for none; never for shell syntax."""
    for command in ("ruff check", "ruff check src", "ruff check --fix src 'a b'"):
        assert why_not_allowed(command, "ruff check *") is None
    for command in ("ruff", "ruff format x", "ruff check; rm x", "ruff check ../x;"):
        assert why_not_allowed(command, "ruff check *")


def test_variables_before_the_program_must_be_in_the_pattern() -> None:
    """By their names; a wildcard does not stand for one."""
    pattern = "PYTHONPATH=s* python *"
    assert why_not_allowed("PYTHONPATH=src python x", pattern) is None
    for command in ("python x", "PYTHONPATH=/evil python x", "LD_PRELOAD=s python x", "PYTHONPATH=src A=1 python x"):
        assert why_not_allowed(command, pattern)
    assert why_not_allowed("LD_PRELOAD=x y", "* y")
    assert why_not_allowed("A=1 B=2", "A=1 *")
    assert why_not_allowed("LD_PRELOAD=x y", "L*=x y")


def test_a_pattern_with_shell_syntax_allows_exactly_itself() -> None:
    """Blanks at its ends apart."""
    pattern = "cd src && python -m pytest -q"
    assert why_not_allowed(f" {pattern} ", pattern) is None
    assert why_not_allowed(f"bash -lc '{pattern}'", pattern) is None
    assert why_not_allowed(f"{pattern}; rm x", pattern)
    assert why_not_allowed("cd src", pattern)


def test_a_program_line_is_taken_word_by_word() -> None:
    """No shell looks at it."""
    assert why_not_allowed(["ruff", "check", "a; rm x"], "ruff check *") is None
    assert why_not_allowed(["ruff", "check; rm x"], "ruff check *")
    assert why_not_allowed(["bash", "-lc", "ruff check; rm x"], "ruff check *")
    assert why_not_allowed(["bash", "-lc", "ruff check x"], "ruff check *") is None


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("", "it names no program"),
        ("A=1 B=2", "it names no program"),
        ("* x", "it begins with *, which"),
        ("say 'x", "a quote is not closed"),
        ('say "x', "a quote is not closed"),
        ("say \\", "it ends with a backslash"),
    ],
)
def test_a_pattern_that_allows_nothing_or_anything_is_refused(pattern: str, message: str) -> None:
    """The others are fine."""
    assert str(find_pattern_mistake(pattern)).startswith(message)
    for good in (PYTEST, "ruff *", "a && b", "git log [a-z]?"):
        assert find_pattern_mistake(good) is None


@given(st.lists(st.text(min_size=1), min_size=1))
def test_quoted_words_are_read_as_they_were_meant(words: list[str]) -> None:
    """What shlex quotes comes back word for word, or is refused for a character that no line may hold."""
    line = shlex.join(words)
    try:
        assert split_line(line) == words
    except ValueError:
        assert any(char < " " or char == "\x7f" for char in "".join(words))


ALPHABET = " ab'\"\\;&|<>()$`*?[]{}!#~=\n\t"


@given(st.text(ALPHABET, max_size=20))
def test_a_line_that_is_allowed_is_the_same_words_for_a_real_shell(tail: str) -> None:
    """Whatever is put after a granted program: it gets exactly the words that were looked at."""
    line = f"{SHOW} {tail}"
    if why_not_allowed(line, f"{SHOW} *") is not None:
        return
    ran = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=True)
    assert ran.stdout == "".join(f"<{word}>" for word in split_line(line)[2:])


# It shows each word that it is given.
SHOW = "printf '<%s>' words"


def test_the_program_of_that_property_shows_its_words() -> None:
    """So that it cannot pass by itself."""
    line = f"{SHOW} a 'b c' \"\""
    assert why_not_allowed(line, f"{SHOW} *") is None
    ran = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=True)
    assert ran.stdout == "<words><a><b c><>"
