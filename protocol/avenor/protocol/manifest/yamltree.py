"""YAML to a tree, with the place of each value; JSON, which begins with `{`, is read by `jsontree`.

What YAML has beyond JSON's values is refused: anchors and aliases, tags, merge keys, several documents, keys that are
no text. Words are read as YAML 1.2 does: `yes`, `on` and `12:30` are text. This module needs PyYAML, which takes a
while to import: nothing imports it before there is a manifest to be read.
"""

import json
import math
import re
from collections.abc import Iterator
from typing import Any, Final

import yaml
from yaml.events import (
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from avenor.protocol.manifest.jsontree import read_json_tree
from avenor.protocol.manifest.tree import MAX_DEPTH, ROOT, Located, Place, Refused, Tree, item_path, member_path
from avenor.protocol.validation import Mistake

# With libyaml a file is read thirty times as fast.
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_NULL: Final = frozenset(("", "~", "null", "Null", "NULL"))
_BOOL: Final = {word: value for value in (True, False) for word in (str(value), str(value).lower(), str(value).upper())}
_INT: Final = re.compile(r"[-+]?[0-9]{1,64}")
_BASED: Final = re.compile(r"0o[0-7]{1,64}|0x[0-9a-fA-F]{1,64}")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def read_tree(data: bytes, *, file: str) -> Tree:
    """What is in a file.

    Args:
        data: Its content.
        file: Its name: `….json` is read as JSON alone. Of others that begin with `{`, JSON is tried first.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"it is not UTF-8 (byte {error.start})"
        return Tree(value=None, places={}, mistakes=[Located(Mistake(ROOT, message), Place())])
    tree = _read(text, file)
    try:
        json.dumps(tree.value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        message = "a text has half of a surrogate pair, which is no character"
        return Tree(value=None, places=tree.places, mistakes=[*tree.mistakes, Located(Mistake(ROOT, message), Place())])
    return tree


def _read(text: str, file: str) -> Tree:
    if file.endswith(".json"):
        return read_json_tree(text)
    if text.lstrip().startswith("{"):
        tree = read_json_tree(text)
        if not tree.mistakes:
            return tree
    return read_yaml_tree(text)


def read_yaml_tree(text: str) -> Tree:
    """What is in a YAML text."""
    reader = _Reader(text)
    try:
        value = reader.document()
    except Refused as refusal:
        return Tree(value=None, places=reader.places, mistakes=[*reader.mistakes, refusal.located])
    return Tree(value=value, places=reader.places, mistakes=reader.mistakes)


class _Reader:
    """Reads one text from its events."""

    def __init__(self, text: str) -> None:
        self.places: dict[str, Place] = {}
        self.mistakes: list[Located] = []
        self._events: Iterator[Event] = _events(text)

    def document(self) -> Any:
        """The value of the only document.

        Raises:
            Refused: It cannot be read.
        """
        value: Any = None
        documents = 0
        for event in self._events:
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise Refused("there is a second document: one is expected", _place(event))
            elif isinstance(event, NodeEvent):
                value = self._value(event, ROOT, depth=1)
        return value

    def _value(self, event: Event, path: str, depth: int) -> Any:
        self.places.setdefault(path, _place(event))
        if depth > MAX_DEPTH:
            raise Refused(f"it is nested more than {MAX_DEPTH} deep", _place(event), path)
        if isinstance(event, MappingStartEvent):
            self._refuse_extras(event, path)
            return self._mapping(path, depth)
        if isinstance(event, SequenceStartEvent):
            self._refuse_extras(event, path)
            return self._sequence(path, depth)
        if isinstance(event, ScalarEvent):
            self._refuse_extras(event, path)
            return self._scalar(event, path)
        # Whatever it stands for, it can stand for something that is far larger than the file.
        self._refuse("an alias is not taken: write it out", event, path)
        return None

    def _mapping(self, path: str, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for event in self._until(MappingEndEvent):
            name = self._key(event, path, depth)
            inside = member_path(path, name)
            is_new = name not in members
            if is_new:
                self.places[inside] = _place(event)
            else:
                self._refuse("it is there twice", event, inside)
            value = self._value(next(self._events), inside, depth + 1)
            if is_new:
                members[name] = value
        return members

    def _key(self, event: Event, path: str, depth: int) -> str:
        if not isinstance(event, ScalarEvent):
            raise Refused("a key must be text", _place(event), path)
        self._refuse_extras(event, path)
        if event.value == "<<" and _is_plain(event):
            self._refuse("a merge key is not taken: write it out", event, path)
        return event.value

    def _sequence(self, path: str, depth: int) -> list[Any]:
        items = enumerate(self._until(SequenceEndEvent))
        return [self._value(event, item_path(path, index), depth + 1) for index, event in items]

    def _until(self, end: type[Event]) -> Iterator[Event]:
        for event in self._events:
            if isinstance(event, end):
                return
            yield event

    def _scalar(self, event: ScalarEvent, path: str) -> Any:
        text = event.value
        if not _is_plain(event):
            return text
        if text in _NULL:
            return None
        if text in _BOOL:
            return _BOOL[text]
        if _INT.fullmatch(text):
            return int(text)
        if _BASED.fullmatch(text):
            return int(text, 0)
        if _FLOAT.fullmatch(text) or _NOT_FINITE.fullmatch(text):
            return self._number(event, path)
        return text

    def _number(self, event: ScalarEvent, path: str) -> float | None:
        number = math.inf if _NOT_FINITE.fullmatch(event.value) else float(event.value)
        if math.isfinite(number):
            return number
        self._refuse("it must be a number of finite size", event, path)
        return None

    def _refuse_extras(self, event: Event, path: str) -> None:
        if getattr(event, "anchor", None) is not None:
            self._refuse("an anchor is not taken: write out what is meant where it is meant", event, path)
        if getattr(event, "tag", None) is not None:
            self._refuse(f"a tag is not taken: leave {getattr(event, 'tag', '')} out", event, path)

    def _refuse(self, message: str, event: Event, path: str) -> None:
        self.mistakes.append(Located(Mistake(path, message), _place(event)))


def _events(text: str) -> Iterator[Event]:
    """The events of a text; raises Refused where it is no YAML."""
    try:
        yield from yaml.parse(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place() if mark is None else Place(mark.line + 1, mark.column + 1)
        words = [word for word in (error.context, error.problem) if word]
        raise Refused(f"this is no YAML: {', '.join(words)}", place) from error
    except yaml.YAMLError as error:
        raise Refused(f"this is no YAML: {error}".replace("\n", " "), Place()) from error


def _is_plain(event: ScalarEvent) -> bool:
    """Whether it is neither quoted nor a block; libyaml gives such a style no name, PyYAML's own parser None."""
    return not event.style


def _place(event: Event) -> Place:
    mark = event.start_mark
    assert mark is not None  # both parsers give each event one
    return Place(mark.line + 1, mark.column + 1)
