"""JSON to a tree, with the place of each value. A member that is there twice is a mistake."""

import json
import math
import re
from typing import Any, Final

from avenor.protocol.manifest.tree import MAX_DEPTH, ROOT, Located, Place, Refused, Tree, item_path, member_path
from avenor.protocol.validation import Mistake

_BLANK: Final = re.compile(r"[ \t\r\n]*")
_DECODER: Final = json.JSONDecoder(parse_constant=lambda word: _refuse_constant(word))


def read_json_tree(text: str) -> Tree:
    """What is in a JSON text."""
    reader = _Reader(text)
    try:
        value = reader.document()
    except Refused as refusal:
        return Tree(value=None, places=reader.places, mistakes=[*reader.mistakes, refusal.located])
    return Tree(value=value, places=reader.places, mistakes=reader.mistakes)


class _Reader:
    """Reads one text; `_at` is where it has come to."""

    def __init__(self, text: str) -> None:
        self.places: dict[str, Place] = {}
        self.mistakes: list[Located] = []
        self._text = text
        self._at = 0

    def document(self) -> Any:
        """The value, after which there is nothing more.

        Raises:
            Refused: It is no JSON.
        """
        value = self._value(ROOT, depth=1)
        self._skip_blank()
        if self._at < len(self._text):
            raise self._refusal("there is something after the end of the document")
        return value

    def _value(self, path: str, depth: int) -> Any:
        self._skip_blank()
        self.places[path] = self._place()
        if depth > MAX_DEPTH:
            raise self._refusal(f"it is nested more than {MAX_DEPTH} deep", path)
        char = self._text[self._at : self._at + 1]
        if char == "{":
            return self._object(path, depth)
        if char == "[":
            return self._list(path, depth)
        return self._scalar(path)

    def _object(self, path: str, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for _ in self._items("}"):
            self._skip_blank()
            place = self._place()
            if self._text[self._at : self._at + 1] != '"':
                raise self._refusal("the name of a member is expected, in double quotes", path)
            name = self._scalar(path)
            inside = member_path(path, name)
            self._expect(":", path)
            value = self._value(inside, depth + 1)
            if name in members:
                self.mistakes.append(Located(Mistake(inside, "it is there twice"), place))
                continue
            members[name] = value
            self.places[inside] = place
        return members

    def _list(self, path: str, depth: int) -> list[Any]:
        return [self._value(item_path(path, index), depth + 1) for index in self._items("]")]

    def _items(self, end: str) -> "_Items":
        self._at += 1
        return _Items(self, end)

    def is_at_end(self, end: str, index: int) -> bool:
        """Whether a list or object is over; takes the comma before its next item."""
        self._skip_blank()
        if self._text[self._at : self._at + 1] == end:
            self._at += 1
            return True
        if index:
            self._expect(",", ROOT)
        return False

    def _scalar(self, path: str) -> Any:
        try:
            value, end = _DECODER.raw_decode(self._text, self._at)
        except json.JSONDecodeError as error:
            self._at = error.pos
            raise self._refusal(f"this is no JSON: {error.msg}", path) from error
        except ValueError as error:  # of NaN and its like, and of integers of thousands of digits
            raise self._refusal(f"this is no JSON: {error}", path) from error
        if isinstance(value, float) and not math.isfinite(value):
            raise self._refusal("the number is too large", path)
        self._at = end
        return value

    def _expect(self, char: str, path: str) -> None:
        self._skip_blank()
        if self._text[self._at : self._at + 1] != char:
            raise self._refusal(f"this is no JSON: {char!r} is expected", path)
        self._at += 1

    def _skip_blank(self) -> None:
        found = _BLANK.match(self._text, self._at)
        assert found is not None
        self._at = found.end()

    def _place(self) -> Place:
        line = self._text.count("\n", 0, self._at) + 1
        return Place(line, self._at - self._text.rfind("\n", 0, self._at))

    def _refusal(self, message: str, path: str = ROOT) -> Refused:
        return Refused(message, self._place(), path)


class _Items:
    """The numbers of the items of a list or object, until it is over."""

    def __init__(self, reader: _Reader, end: str) -> None:
        self._reader = reader
        self._end = end
        self._index = -1

    def __iter__(self) -> "_Items":
        return self

    def __next__(self) -> int:
        self._index += 1
        if self._reader.is_at_end(self._end, self._index):
            raise StopIteration
        return self._index


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no number")
