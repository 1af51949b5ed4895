"""YAML and JSON are read into plain values with their places; whatever is more than a value is refused."""

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from avenor.protocol.manifest import yamltree
from avenor.protocol.manifest.jsontree import read_json_tree
from avenor.protocol.manifest.tree import MAX_DEPTH, Place
from avenor.protocol.manifest.yamltree import read_tree, read_yaml_tree


def mistakes(text: str, file: str = "a.yaml") -> list[str]:
    found = read_tree(text.encode(), file=file).mistakes
    return [f"{each.place.line}:{each.place.column} {each.mistake.path} {each.mistake.message}" for each in found]


@pytest.fixture(params=["libyaml", "python"])
def _parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both parsers of PyYAML: not every build has libyaml."""
    if request.param == "python":
        monkeypatch.setattr(yamltree, "_LOADER", yaml.SafeLoader)


@pytest.mark.usefixtures("_parser")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1", {"a": 1}),
        ("a: [1, -2, +3, 0x1F, 0o17, 010]", {"a": [1, -2, 3, 31, 15, 10]}),
        ("a: [1.5, .5, 1e3, 1., -0.1]", {"a": [1.5, 0.5, 1000.0, 1.0, -0.1]}),
        ("a: [true, False, TRUE, ~, null, ]", {"a": [True, False, True, None, None]}),
        (
            "a: [yes, no, on, off, 12:30, 1_000, 2026-11-30]",
            {"a": ["yes", "no", "on", "off", "12:30", "1_000", "2026-11-30"]},
        ),
        ("a: '1'\nb: \"true\"", {"a": "1", "b": "true"}),
        ("a: |\n  x\n  y\n", {"a": "x\ny\n"}),
        ("a:\n  - b: c\n    d:\n", {"a": [{"b": "c", "d": None}]}),
        ("1: x\ntrue: y", {"1": "x", "true": "y"}),
        ("# nothing", None),
        ("--- {a: b}", {"a": "b"}),
    ],
)
def test_values_are_those_of_json_read_as_yaml_1_2(text: str, value: Any) -> None:
    """Words that YAML 1.1 took for something else are text."""
    tree = read_yaml_tree(text)
    assert (tree.value, tree.mistakes) == (value, [])


@pytest.mark.usefixtures("_parser")
def test_each_value_has_its_place() -> None:
    """Members where their names stand, items where they begin; what is not there has that of what it is missing in."""
    tree = read_yaml_tree("a:\n  - b: c\n  - d\n")
    places = {path: tree.place(path) for path in ("$", "$.a", "$.a[0].b", "$.a[1]", "$.a[1].x.y", "$.a[7]", "$.z")}
    assert places == {
        "$": Place(1, 1),
        "$.a": Place(1, 1),
        "$.a[0].b": Place(2, 5),
        "$.a[1]": Place(3, 5),
        "$.a[1].x.y": Place(3, 5),
        "$.a[7]": Place(1, 1),
        "$.z": Place(1, 1),
    }
    assert read_yaml_tree("").place("$") == Place(1, 1)


@pytest.mark.usefixtures("_parser")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x 1", "1:4 $.a an anchor is not taken"),
        ("a: &x [1]", "1:4 $.a an anchor is not taken"),
        ("a: 1\nb: *x", "2:4 $.b an alias is not taken"),
        ("a: !!str 1", "1:4 $.a a tag is not taken: leave tag:yaml.org,2002:str out"),
        ("a: !!python/object/apply:os.system [id]", "1:4 $.a a tag is not taken"),
        ("a: !x {}", "1:4 $.a a tag is not taken: leave !x out"),
        ("a: 1\na: 2", "2:1 $.a it is there twice"),
        ("a:\n  b: 1\n  b: {c: d}", "3:3 $.a.b it is there twice"),
        ("<<: {a: 1}", "1:1 $ a merge key is not taken"),
        ("? [a]\n: 1", "1:3 $ a key must be text"),
        ("a: .nan", "1:4 $.a it must be a number of finite size"),
        ("a: [-.inf]", "1:5 $.a[0] it must be a number of finite size"),
        ("a: 1e999", "1:4 $.a it must be a number of finite size"),
        ("a: 1\n---\nb: 1", "2:1 $ there is a second document"),
        ("a: [1", "$ this is no YAML: while parsing a flow sequence"),
        ("a: b: c", "$ this is no YAML:"),
        ("a: \x07", "1:1 $ this is no YAML:"),
    ],
)
def test_what_is_more_than_a_value_is_refused(text: str, message: str) -> None:
    """Nothing is made of tags, nothing grows by aliases, nothing is silently overwritten."""
    assert any(message in found for found in mistakes(text))


@pytest.mark.usefixtures("_parser")
def test_an_alias_bomb_is_no_larger_than_its_file() -> None:
    """Each alias is a mistake of its own."""
    text = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"
    tree = read_yaml_tree(text)
    assert tree.value == {"a": ["x", "x"], "b": [None, None], "c": [None, None]}
    assert len(tree.mistakes) == 6


@pytest.mark.parametrize("file", ["a.yaml", "a.json"])
def test_what_is_nested_too_deeply_is_refused(file: str) -> None:
    """Before Python or libyaml give up; what is too deep for them is refused by them."""
    depth = 500
    [found] = mistakes("[" * depth + "]" * depth, file)
    assert f"it is nested more than {MAX_DEPTH} deep" in found
    assert len(mistakes("[" * 100_000, file)) == 1
    assert mistakes("[" * MAX_DEPTH + "]" * MAX_DEPTH, file) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "1:10 $.a it is there twice"),
        ('{"a": NaN}', "1:7 $.a this is no JSON: NaN is no number"),
        ('{"a": 1e999}', "1:7 $.a the number is too large"),
        ('{"a": 1} x', "1:10 $ there is something after the end"),
        ('{"a": 1,}', "1:9 $ the name of a member is expected"),
        ('{"a" 1}', "1:6 $ this is no JSON: ':' is expected"),
        ('{"a": [1 2]}', "1:10 $ this is no JSON: ',' is expected"),
        ('{"a":\n "b', "2:2 $.a this is no JSON: Unterminated string"),
        ("{a: 1}", "1:2 $ the name of a member is expected"),
        ("", "1:1 $ this is no JSON: Expecting value"),
        ('{"a": ' + "9" * 5000 + "}", "1:7 $.a this is no JSON: Exceeds the limit"),
    ],
)
def test_json_files_are_json(text: str, message: str) -> None:
    """With the place of what is wrong."""
    assert any(found.startswith(message) for found in mistakes(text, "a.json"))


@pytest.mark.usefixtures("_parser")
def test_half_a_character_is_no_text() -> None:
    """Neither in a value nor in a name; no record could hold it. libyaml refuses it by itself."""
    for text in ('{"a": "\\udcff"}', '{"\\ud800": 1}'):
        assert mistakes(text, "a.json") == ["1:1 $ a text has half of a surrogate pair, which is no character"]
        assert len(mistakes(text.strip("{}"))) == 1


def test_a_file_that_only_looks_like_json_is_read_as_yaml() -> None:
    """Unless its name says JSON."""
    assert read_tree(b"{a: 1}", file="a.yaml").value == {"a": 1}
    assert read_tree(b'\xef\xbb\xbf {"a":\t"\\ud83d\\ude00"}', file="x").value == {"a": "\N{GRINNING FACE}"}


def test_places_in_json_are_those_of_names_and_items() -> None:
    """As in YAML."""
    tree = read_json_tree('{\n "a": [1,\n  {"b": 2}]\n}')
    assert (tree.place("$.a"), tree.place("$.a[1]"), tree.place("$.a[1].b")) == (Place(2, 2), Place(3, 3), Place(3, 4))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(VALUES, st.sampled_from([None, 1]))
def test_json_comes_back_as_it_was(value: Any, indent: int | None) -> None:
    """However it is laid out."""
    tree = read_json_tree(json.dumps(value, indent=indent))
    assert (tree.value, tree.mistakes) == (value, [])


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text makes the readers fail in another way."""
    for tree in (read_yaml_tree(text), read_json_tree(text)):
        assert tree.value is None or not any(found.mistake.path == "" for found in tree.mistakes)
