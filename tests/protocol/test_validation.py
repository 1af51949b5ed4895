"""Finding every mistake in a document, for shapes that the script format does not have."""

import msgspec

from avenor.protocol.validation import Mistake, decode_document, find_mistakes


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
