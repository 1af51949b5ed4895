"""A document as plain values, with the place of each in its text: what YAML and JSON are both read into.

Values are those of JSON. Paths are JSON paths as `validation.find_mistakes` makes them: `$.members[0].id`.
"""

from typing import Any, Final

import msgspec

from avenor.protocol.validation import Mistake

# Nothing of ours is half as deep; Python's own limit is far above.
MAX_DEPTH: Final = 24
ROOT: Final = "$"


class Place(msgspec.Struct, frozen=True):
    """Where something stands in a text: line and column, both from 1."""

    line: int = 1
    column: int = 1


class Located(msgspec.Struct, frozen=True):
    """A mistake in the form of a text, where it stands."""

    mistake: Mistake
    place: Place


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """What was read.

    Attributes:
        value: None if nothing could be read.
        places: Of each value, by its path.
        mistakes: What is wrong with the form; the rest was read all the same where that was possible.
    """

    value: Any
    places: dict[str, Place]
    mistakes: list[Located] = []

    def place(self, path: str) -> Place:
        """Where a path leads to, or what of it there is."""
        while path not in self.places:
            cut = max(path.rfind("."), path.rfind("["))
            if cut <= 0:
                return Place()
            path = path[:cut]
        return self.places[path]


class Refused(Exception):
    """The text cannot be read any further."""

    def __init__(self, message: str, place: Place, path: str = ROOT) -> None:
        super().__init__(message)
        self.located = Located(Mistake(path, message), place)


def member_path(path: str, name: str) -> str:
    """The path of a member of an object."""
    return f"{path}.{name}"


def item_path(path: str, index: int) -> str:
    """The path of an item of a list."""
    return f"{path}[{index}]"
