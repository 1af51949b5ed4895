"""Additions to JSON and TOML texts that are somebody's."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avenor.cli.init_merge import CannotMerge, Differs, with_addition, with_table
from avenor.cli.init_packs import Addition, Toml

SERVER = Addition(("mcp",), "avenor", {"on": True})
DEEP = Addition(("a", "b"), "c", 1)
ITEM = Addition(("permissions", "allow"), None, "x")


def put(text: str, addition: Addition, *, replace: bool = False) -> str:
    return with_addition(text, addition, replace=replace)


@pytest.mark.parametrize(
    ("addition", "before", "after"),
    [
        (SERVER, "{}", '{\n  "mcp": {\n    "avenor": {\n      "on": true\n    }\n  }\n}'),
        (SERVER, "{\n}\n", '{\n  "mcp": {\n    "avenor": {\n      "on": true\n    }\n  }\n}\n'),
        (SERVER, '{"x": 1}', '{"x": 1, "mcp": {"avenor": {"on": true}}}'),
        (SERVER, '{"mcp":{}}', '{"mcp":{\n  "avenor": {\n    "on": true\n  }\n}}'),
        (SERVER, '{\n\t"x": 1\n}', '{\n\t"x": 1,\n\t"mcp": {\n\t\t"avenor": {\n\t\t\t"on": true\n\t\t}\n\t}\n}'),
        (DEEP, '{"a": {"b": {"d": 2}}}', '{"a": {"b": {"d": 2, "c": 1}}}'),
        (DEEP, '{"a": {"z": [1, {"b": {}}]}}', '{"a": {"z": [1, {"b": {}}], "b": {"c": 1}}}'),
        (DEEP, '{\r\n  "a": {}\r\n}', '{\r\n  "a": {\r\n    "b": {\r\n      "c": 1\r\n    }\r\n  }\r\n}'),
        (ITEM, '{"permissions": {"allow": []}}', '{"permissions": {"allow": [\n  "x"\n]}}'),
        (ITEM, '{"permissions": {"allow": ["y"]}}', '{"permissions": {"allow": ["y", "x"]}}'),
        (ITEM, '{"permissions": {\n "allow": [\n  "y"\n ]}}', '{"permissions": {\n "allow": [\n  "y",\n  "x"\n ]}}'),
        (ITEM, '{"permissions": {}}', '{"permissions": {\n  "allow": [\n    "x"\n  ]\n}}'),
        (ITEM, '{"k": "} ] \\" ,"}', '{"k": "} ] \\" ,", "permissions": {"allow": ["x"]}}'),
    ],
)  # fmt: skip
def test_an_addition_stands_at_the_end_of_its_container(addition: Addition, before: str, after: str) -> None:
    """In the way in which the text is written; a second time nothing changes."""
    assert put(before, addition) == after
    assert put(after, addition) == after


def test_what_differs_is_kept_or_replaced() -> None:
    """In its place."""
    text = '{\n  "mcp": {"avenor": [1], "b": 2}\n}'
    with pytest.raises(Differs, match=r"mcp\.avenor"):
        put(text, SERVER)
    assert json.loads(put(text, SERVER, replace=True)) == {"mcp": {"avenor": {"on": True}, "b": 2}}


@pytest.mark.parametrize(
    ("addition", "text", "why"),
    [
        (SERVER, "{// a comment\n}", "no plain JSON"),
        (SERVER, '{"x": 1,}', "no plain JSON"),
        (SERVER, "", "no plain JSON"),
        (SERVER, "[]", "an object is needed"),
        (SERVER, '{"mcp": []}', "an object is needed"),
        (SERVER, '{"mcp": null}', "an object is needed"),
        (ITEM, '{"permissions": {"allow": {}}}', "an array is needed"),
        (SERVER, '{"mcp": {}, "mcp": {}}', "it has mcp twice"),
        (SERVER, "[" * 100_000, "no plain JSON"),
    ],
)
def test_what_nothing_can_be_added_to_is_refused(addition: Addition, text: str, why: str) -> None:
    """With the reason."""
    with pytest.raises(CannotMerge, match=why):
        put(text, addition)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(
    document=st.dictionaries(st.text(), JSON, max_size=4),
    path=st.lists(st.text(), min_size=0, max_size=3),
    key=st.text(),
    value=JSON,
    indent=st.sampled_from([None, 1, 2, "\t"]),
)
def test_any_document_has_the_addition_and_all_that_it_had(
    document: dict[str, Any], path: list[str], key: str, value: Any, indent: int | str | None
) -> None:
    """Or is refused; what was there before the place is there still, byte by byte."""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    try:
        result = put(text, Addition(tuple(path), key, value), replace=True)
    except CannotMerge:
        return
    at: Any = json.loads(result)
    for step in path:
        at = at[step]
    assert at[key] == value
    del at[key]
    if path or key not in document:
        kept = {name: each for name, each in json.loads(result).items() if not path or name != path[0]}
        assert kept.items() >= {n: e for n, e in document.items() if (not path or n != path[0]) and n != key}.items()


TABLE = Toml("c.toml", ("servers", "ours"), '[servers.ours]\ncommand = "x" # why\n')


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '[servers.ours]\ncommand = "x" # why\n'),
        ("a = 1", 'a = 1\n\n[servers.ours]\ncommand = "x" # why\n'),
        ("a = 1\r\n", 'a = 1\r\n\r\n[servers.ours]\r\ncommand = "x" # why\r\n'),
        ("[servers.b]\nc = 1\n", '[servers.b]\nc = 1\n\n[servers.ours]\ncommand = "x" # why\n'),
        ('servers.ours.command = "x"\n', 'servers.ours.command = "x"\n'),
    ],
)
def test_a_table_stands_at_the_end(before: str, after: str) -> None:
    """A second time nothing changes."""
    assert with_table(before, TABLE, replace=False) == after
    assert with_table(after, TABLE, replace=True) == after


OURS = '[servers.ours]\ncommand = "x" # why\n'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('[servers.ours]\ncommand = "y"', OURS),
        ("a = 1\n[servers.ours]\r\nc = 1\r\n", "a = 1\n" + OURS.replace("\n", "\r\n")),
        ("[servers.ours] # old\nc = [\n  [1],\n]\n\n# b's\n[servers.b]\n", OURS + "\n# b's\n[servers.b]\n"),
        ("[ servers . 'ours' ]\n[servers.b]\n[servers.ours.env]\nA = '1'\n# end\n", OURS + "[servers.b]\n# end\n"),
        ("[[servers.ours]]\na = 1\n[[servers.ours]]\n[b]\n", OURS + "[b]\n"),
    ],
)  # fmt: skip
def test_a_table_that_differs_is_kept_or_replaced(before: str, after: str) -> None:
    """In its place, with the tables in it; comments after it may be about what follows, and stay."""
    with pytest.raises(Differs, match=r"servers\.ours"):
        with_table(before, TABLE, replace=False)
    assert with_table(before, TABLE, replace=True) == after


@pytest.mark.parametrize(
    "text",
    [
        'servers.ours.command = "y"',
        '[servers]\nours = { command = "y" }\n',
        '[servers]\nours.command = "y"\n',
        '[servers.ours]\nc = 1\n[b]\nc = """\n[servers.ours]\n"""\n',
        '[servers.ours]\nc = [\n["servers"]\n]\n',
    ],
)
def test_a_table_that_has_no_lines_of_its_own_is_not_replaced(text: str) -> None:
    """Nor one that cannot be told from the text of a value."""
    with pytest.raises(CannotMerge, match=r"servers\.ours"):
        with_table(text, TABLE, replace=True)
