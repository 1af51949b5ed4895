"""Globs of write targets: what fits one, what could fit two, and which are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avenor.protocol.manifest.globs import find_glob_mistake, matches_glob, overlap


@pytest.mark.parametrize(
    ("glob", "fits", "others"),
    [
        ("src/a.py", ["src/a.py", "src/a.py/b"], ["src/a.pyc", "src", "a.py", "src/ab.py"]),
        ("src/", ["src/a", "src/a/b"], ["src", "srcs/a"]),
        ("src/*.py", ["src/a.py", "src/.py"], ["src/a/b.py", "src/a.pyc"]),
        ("src/**", ["src/a", "src/a/b"], ["src"]),
        ("src/**/t.py", ["src/t.py", "src/a/b/t.py"], ["src/at.py", "t.py"]),
        ("**/t.py", ["t.py", "a/t.py"], ["at.py"]),
        ("t?.py", ["t1.py"], ["t.py", "t/.py", "t12.py"]),
        ("t[a-c!].py", ["tb.py", "t!.py"], ["td.py"]),
        ("t[!a-c].py", ["td.py"], ["tb.py", "t/.py"]),
        ("t[]x].py", ["t].py", "tx.py"], ["ta.py"]),
        ("t[a-].py", ["t-.py", "ta.py"], ["tb.py"]),
        ("*", ["a"], ["a/b"]),
    ],
)
def test_what_fits_a_glob(glob: str, fits: list[str], others: list[str]) -> None:
    """And what does not."""
    assert find_glob_mistake(glob) is None
    assert [path for path in fits if not matches_glob(glob, path)] == []
    assert [path for path in others if matches_glob(glob, path)] == []


@pytest.mark.parametrize("path", ["/a", "../a", "a/../b", "./a", "a//b", "", "a/", "a/."])
def test_a_path_that_leads_elsewhere_fits_nothing(path: str) -> None:
    """Not even what fits all."""
    assert not matches_glob("**", path)


@pytest.mark.parametrize(
    ("one", "other", "meets"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a/*", "a/b", True),
        ("a/*.py", "a/*.md", False),
        ("a/*.py", "a/b*", True),
        ("a/", "a/b/c", True),
        ("a/", "ab", False),
        ("**/x", "a/**", True),
        ("a/**/x", "a/x", True),
        ("a/**/x", "b/**", False),
        ("[a-c]", "[c-e]", True),
        ("[a-c]", "[d-e]", False),
        ("[!a]", "a", False),
        ("[!a]", "[!b]", True),
        ("[ab]", "[!ab]", False),
        ("[!ab]", "[abc]", True),
        ("?", "ab", False),
    ],
)
def test_whether_a_path_could_fit_two_globs(one: str, other: str, meets: bool) -> None:
    """In either order."""
    assert overlap(one, other) is meets
    assert overlap(other, one) is meets


PARTS = st.text("ab.", min_size=1, max_size=3).filter(lambda part: part not in (".", ".."))
PATHS = st.lists(PARTS, min_size=1, max_size=4).map("/".join)
GLOB_PARTS = st.one_of(
    st.just("**"), st.text("ab.*?", min_size=1, max_size=4).filter(lambda p: p not in (".", "..") and "**" not in p)
)
GLOBS = st.lists(GLOB_PARTS, min_size=1, max_size=4).map("/".join)


@given(GLOBS, GLOBS, PATHS)
def test_a_path_that_fits_both_is_an_overlap(one: str, other: str, path: str) -> None:
    """No two writers of one path are ever let through."""
    if matches_glob(one, path) and matches_glob(other, path):
        assert overlap(one, other)


@given(GLOBS)
def test_a_glob_overlaps_with_itself(glob: str) -> None:
    """There is always a path that fits."""
    assert overlap(glob, glob)


@given(PATHS)
def test_a_path_is_a_glob_that_fits_it(path: str) -> None:
    """And is found by those that fit all."""
    assert matches_glob(path, path)
    assert matches_glob("**", path)


def test_long_globs_are_compared_in_time() -> None:
    """Their product is walked once, not each way through it."""
    assert not overlap("*a" * 200 + "b", "*c" * 200)


@pytest.mark.parametrize(
    ("glob", "message"),
    [
        ("x" * 513, "it has more than 512 characters"),
        ("/a", "it must be relative"),
        ("~/a", "it must be relative"),
        ("a/../b", "it has an empty part"),
        ("./a", "it has an empty part"),
        ("a//b", "it has an empty part"),
        ("", "it has an empty part"),
        (".git/hooks", "nobody writes into .git"),
        ("a/**b", "`**` must be a whole part"),
        ("a\\b", "it has a backslash"),
        ("a\nb", "it has a backslash or a control character"),
        ("a[bc", "a `[` is not closed"),
        ("[a]b[", "a `[` is not closed"),
        ("a[b/c]", "a set holds ASCII characters"),
        ("a[ä-ö]", "a set holds ASCII characters"),
    ],
)
def test_what_is_no_good_glob_is_refused(glob: str, message: str) -> None:
    """With the reason."""
    assert str(find_glob_mistake(glob)).startswith(message)
