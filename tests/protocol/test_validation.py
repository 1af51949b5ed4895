"""Finding every mistake in a document, for shapes that the script format does not have."""

import msgspec
import pytest

from avenor.protocol.errors import ConfigError
from avenor.protocol.validation import Mistake, decode_document, find_doubles, find_mistakes


class Tolerant(msgspec.Struct):
    """A struct that allows unknown members."""

    size: int
    names: list[str] | None = None


def test_a_tolerant_struct_allows_unknown_members() -> None:
    """Only strict structs refuse what they do not know."""
    assert find_mistakes({"size": 1, "colour": "red"}, Tolerant) == []
    assert decode_document(b'{"size":1,"colour":"red"}', Tolerant, file="f") == Tolerant(size=1)


def test_a_list_in_a_union_is_looked_into() -> None:
    """The path leads to the item, not only to the member."""
    assert find_mistakes({"size": 1, "names": ["a", 2]}, Tolerant) == [
        Mistake("$.names[1]", "Expected `str`, got `int`")
    ]


def test_a_value_that_fits_no_member_of_a_union_is_refused_as_a_whole() -> None:
    """There is no member to look into."""
    assert [found.path for found in find_mistakes({"size": 1, "names": "a"}, Tolerant)] == ["$.names"]


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ('{"size": 1, "size": 1}', ["$.size"]),
        (
            '{"size": 1, "a": [{}, {"b": {"c": 1, "d": 2, "c": 3, "c": [{"e": 0, "e": 0}]}}]}',
            ["$.a[1].b.c"] * 2 + ["$.a[1].b.c[0].e"],
        ),
        ('{"a": {"size": 1}, "size": ' + "9" * 5000 + ', "b": [[1], "size", null]}', []),
        ('{"size": 1, "size": 2', []),
        ("[" * 100_000, []),
    ],
)
def test_members_that_are_there_twice_are_found(text: str, paths: list[str]) -> None:
    """In objects of any depth, whatever they hold; what is no JSON has none, and says so elsewhere."""
    found = find_doubles(text.encode())
    assert found == [Mistake(path, "it is there twice") for path in paths]


def test_a_member_that_is_there_twice_is_a_mistake_beside_all_others() -> None:
    """A document without others is refused for it too: nobody can tell which one was meant."""
    for data, messages in (
        (b'{"size":1,"size":2}', ["it is there twice"]),
        (b'{"size":"x","size":"y"}', ["it is there twice", "Expected `int`, got `str`"]),
    ):
        with pytest.raises(ConfigError) as caught:
            decode_document(data, Tolerant, file="f")
        assert caught.value.data["errors"] == [{"path": "$.size", "message": message} for message in messages]
