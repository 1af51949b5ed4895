"""Putting our part into a configuration file that is somebody's, without touching a byte of the rest. Pure."""

from __future__ import annotations

import json
import re
from itertools import pairwise

from avenor.cli.untyped import list_in, object_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from avenor.cli.init_packs import Addition, Toml

_SPACE = re.compile(r"[ \t\r\n]*")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_FIRST_INDENT = re.compile(r"\n([ \t]+)\S")
_decoder = json.JSONDecoder()


class Differs(Exception):
    """Something else is there already; the message says where."""


class CannotMerge(Exception):
    """The file is not of a kind that we can add to; the message says why."""


class _Part:
    """A member or an element as it stands in a text: its key (None in an array), its place and its value's."""

    __slots__ = ("end", "key", "start", "value")

    def __init__(self, key: str | None, start: int, value: int, end: int) -> None:
        self.key = key
        self.start = start
        self.value = value
        self.end = end


def with_addition(text: str, addition: Addition, *, replace: bool) -> str:
    """The JSON text with the addition in it; the same text if it has it already.

    Args:
        text: A JSON document.
        addition: See there.
        replace: Put it in the place of what differs.

    Raises:
        Differs: Its key has another value, and that is not to be replaced.
        CannotMerge: The text is no plain JSON (comments, a comma too many), or has something else where a container is
            needed.
    """
    try:
        before = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CannotMerge(f"it is no plain JSON ({error})") from error
    position = _SPACE.match(text).end()  # type: ignore[union-attr]  # it matches everything
    path = list(addition.path)
    while path:
        _require(text, position, "{")
        part = _find(text, position, path[0])
        if part is None:
            break
        position = part.value
        del path[0]
    result = _put(text, position, addition, path, replace=replace)
    if json.loads(result) != _merged(before, addition):
        raise CannotMerge(f"it has {addition.place.split('.')[0]} twice")
    return result


def with_table(text: str, file: Toml, *, replace: bool) -> str:
    """The TOML text with the table at its end; the same text if it has it already.

    Args:
        text: A TOML document.
        file: See there.
        replace: Put it in the place of a table that differs.

    Raises:
        Differs: It has a table of this name with something else in it, and that is not to be replaced.
        CannotMerge: The text is no TOML, or no table can be added to it, or what differs has no header of its own.
    """
    import tomllib

    ours = tomllib.loads(file.text)
    try:
        before = tomllib.loads(text)
    except ValueError as error:
        raise CannotMerge(f"it is no TOML ({error})") from error
    there, wanted = _at(before, file.table), _at(ours, file.table)
    name = ".".join(file.table)
    if there == wanted:
        return text
    if there is not None and not replace:
        raise Differs(name)
    newline = _newline(text)
    if there is None:
        kept = text if not text or text.endswith("\n") else text + newline
        head, tail = kept + (newline if text else ""), ""
    else:
        head, tail = _around_table(text, file.table)
    result = head + file.text.replace("\n", newline) + tail
    try:
        after = tomllib.loads(result)
    except ValueError as error:
        raise CannotMerge(f"no table {name} can be put into it ({error})") from error
    if _at(after, file.table) != wanted or _without(after, file.table) != _without(before, file.table):
        raise CannotMerge(f"the table {name} in it cannot be told from the rest")
    return result


def _around_table(text: str, table: tuple[str, ...]) -> tuple[str, str]:
    """What stands before the first header of a table, and what after it that is not the table's."""
    lines = _LINE.findall(text)
    headers = [index for index, line in enumerate(lines) if _header(line)]
    dropped: set[int] = set()
    for start, end in pairwise([*headers, len(lines)]):
        if _at(_header(lines[start]), table) is not None:
            # Comments at the end may be about what follows.
            while lines[end - 1].strip()[:1] in ("", "#"):
                end -= 1
            dropped.update(range(start, end))
    first = min(dropped, default=len(lines))
    return "".join(lines[:first]), "".join(lines[index] for index in range(first, len(lines)) if index not in dropped)


def _header(line: str) -> dict[str, Any]:
    """The document that a line is, if it looks like the header of a table; what is none may stand in a value."""
    import tomllib

    if not line.lstrip().startswith("["):
        return {}
    try:
        return tomllib.loads(line)
    except ValueError:
        return {}


def _put(text: str, position: int, addition: Addition, missing: list[str], *, replace: bool) -> str:
    """The text with the addition in the container at `position`, and the containers that are missing on the way."""
    key, value = addition.key, addition.value
    if missing:
        value = [value] if key is None else {key: value}
        for step in reversed(missing[1:]):
            value = {step: value}
        return _append(text, position, missing[0], value)
    if key is None:
        _require(text, position, "[")
        has_it = any(json.loads(text[part.value : part.end]) == value for part in _parts(text, position))
        return text if has_it else _append(text, position, None, value)
    _require(text, position, "{")
    part = _find(text, position, key)
    if part is None:
        return _append(text, position, key, value)
    if json.loads(text[part.value : part.end]) == value:
        return text
    if not replace:
        raise Differs(addition.place)
    return text[: part.value] + _rendered(text, None, value, _line_indent(text, part.start)) + text[part.end :]


def _append(text: str, position: int, key: str | None, value: Any) -> str:
    """The text with one more part at the end of the container at `position`."""
    parts = _parts(text, position)
    if not parts:
        indent = _line_indent(text, position)
        inner = indent + _unit(text)
        end = _SPACE.match(text, position + 1).end()  # type: ignore[union-attr]
        newline = _newline(text)
        body = newline + inner + _rendered(text, key, value, inner) + newline + indent
        return text[: position + 1] + body + text[end:]
    last = parts[-1]
    line = text.rfind("\n", 0, last.start) + 1
    if line == 0 or text[line : last.start].strip():  # it shares its line with what is before it
        short = json.dumps(value, ensure_ascii=False)
        return text[: last.end] + ", " + (short if key is None else f"{_key(key)}{short}") + text[last.end :]
    indent = text[line : last.start]
    return text[: last.end] + "," + _newline(text) + indent + _rendered(text, key, value, indent) + text[last.end :]


def _rendered(text: str, key: str | None, value: Any, indent: str) -> str:
    lines = json.dumps(value, indent=_unit(text), ensure_ascii=False).split("\n")
    return ("" if key is None else _key(key)) + (_newline(text) + indent).join(lines)


def _key(key: str) -> str:
    return json.dumps(key, ensure_ascii=False) + ": "


def _parts(text: str, position: int) -> list[_Part]:
    """The parts of the container that begins at `position`."""
    is_object = text[position] == "{"
    parts: list[_Part] = []
    at = _skip(text, position + 1)
    while text[at] not in "}]":
        start, key = at, None
        if is_object:
            key, at = _decoder.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)
        _, end = _decoder.raw_decode(text, at)
        parts.append(_Part(key, start, at, end))
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return parts


def _find(text: str, position: int, key: str) -> _Part | None:
    return next((part for part in _parts(text, position) if part.key == key), None)


def _require(text: str, position: int, opening: str) -> None:
    if text[position] != opening:
        kind = "an object" if opening == "{" else "an array"
        raise CannotMerge(f"it has {text[position : position + 20]!r} where {kind} is needed")


def _merged(document: Any, addition: Addition) -> Any:
    """What the document is to be, made another way."""
    result: dict[str, Any] = json.loads(json.dumps(document))
    place: Any = result
    for index, step in enumerate(addition.path):
        is_last = index == len(addition.path) - 1
        place = place.setdefault(step, [] if is_last and addition.key is None else {})
    if addition.key is not None:
        place[addition.key] = addition.value
    elif addition.value not in list_in(place):
        place.append(addition.value)
    return result


def _without(document: Any, path: tuple[str, ...]) -> Any:
    """The document without what is at this path."""
    step, *deeper = path
    kept = dict(object_in(document))
    inner = kept.pop(step, None)
    return {**kept, step: _without(inner, tuple(deeper))} if deeper else kept


def _at(document: Any, path: tuple[str, ...]) -> Any:
    for step in path:
        document = object_in(document).get(step)
    return document


def _skip(text: str, position: int) -> int:
    return _SPACE.match(text, position).end()  # type: ignore[union-attr]


def _line_indent(text: str, position: int) -> str:
    line = text[text.rfind("\n", 0, position) + 1 : position]
    return line[: len(line) - len(line.lstrip())]


def _unit(text: str) -> str:
    """One step of indentation, as the text has it."""
    found = _FIRST_INDENT.search(text)
    return found[1] if found else "  "


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"
