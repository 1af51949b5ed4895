"""Loads a JSON document into a strict struct and reports every mistake in it, each with its JSON path.

msgspec stops at the first mistake. A person who wrote a file wants all of them, so a document that fails is walked
again piece by piece; and msgspec takes a member that is there twice for one. Reading the file is left to the caller.
"""

import json
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo

from avenor.protocol.errors import ConfigError

T = TypeVar("T")

_AT = " - at `"


class Mistake(msgspec.Struct, frozen=True):
    """One thing that is wrong with a document.

    Args:
        path: Where, as a JSON path that starts with `$`.
        message: What was found and what was expected.
    """

    path: str
    message: str


def decode_document(data: bytes, type_: type[T], *, file: str) -> T:
    """The document as a struct.

    Args:
        data: UTF-8 JSON, without anything after it.
        type_: The struct; its `__post_init__` may raise ValueError for what types cannot say.
        file: The name for messages.

    Raises:
        ConfigError: It cannot be used; `data.file` names it, `data.errors` lists every mistake (`path`, `message`).
    """
    doubles = find_doubles(data)
    try:
        document = msgspec.json.decode(data, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refusal(file, [*doubles, *_document_mistakes(data, type_, error)]) from error
    if doubles:
        raise _refusal(file, doubles)
    return document


def find_doubles(data: bytes) -> list[Mistake]:
    """The members that are in one object of a JSON text twice: a decoder takes the last, and what it drops is lost."""
    try:
        # Integers may be of any length, which Python's do not take.
        value = json.loads(data.decode(), object_pairs_hook=_Members, parse_int=float)
        return list(_doubles(value, "$"))
    except (ValueError, RecursionError):  # that it is no JSON, or too deep, others tell
        return []


def find_mistakes(value: object, type_: object, path: str = "$") -> list[Mistake]:
    """Every mistake in decoded JSON, in the order of the document; empty if it fits.

    Args:
        value: What `msgspec.json.decode` gave.
        type_: A struct, list, dict, union or simple type, as in a struct's annotations.
        path: Where the value stands.
    """
    origin, arguments = get_origin(type_), get_args(type_)
    if origin is Annotated:
        return find_mistakes(value, arguments[0], path) or _try_convert(value, type_, path)
    if _is_struct(type_) and isinstance(value, dict):
        return _struct_mistakes(cast("dict[str, Any]", value), cast("type[msgspec.Struct]", type_), path)
    if origin is list and isinstance(value, list):
        items = enumerate(cast("list[object]", value))
        return [found for index, item in items for found in find_mistakes(item, arguments[0], f"{path}[{index}]")]
    if origin is dict and isinstance(value, dict):
        members = cast("dict[str, Any]", value).items()
        return [found for name, item in members for found in find_mistakes(item, arguments[1], f"{path}.{name}")]
    if origin is Literal and isinstance(value, str) and value not in arguments:
        return [Mistake(path, f"{value!r} is none of {', '.join(map(str, arguments))}")]
    if origin in (Union, types.UnionType):
        return _union_mistakes(value, type_, arguments, path)
    return _try_convert(value, type_, path)


class _Members(list[tuple[str, Any]]):
    """The members of an object, all of them."""


def _doubles(value: object, path: str) -> Iterator[Mistake]:
    if isinstance(value, _Members):
        names: set[str] = set()
        for name, item in value:
            if name in names:
                yield Mistake(f"{path}.{name}", "it is there twice")
            names.add(name)
            yield from _doubles(item, f"{path}.{name}")
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[object]", value)):
            yield from _doubles(item, f"{path}[{index}]")


def _document_mistakes(data: bytes, type_: object, error: Exception) -> list[Mistake]:
    """What is wrong with a document that did not decode; `error` says it if nothing else does."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        return [Mistake("$", f"this is no JSON: {problem}")]
    return find_mistakes(value, type_) or [_located(error, "$")]


def _struct_mistakes(value: dict[str, Any], type_: type[msgspec.Struct], path: str) -> list[Mistake]:
    known = {field.encode_name: field for field in msgspec.structs.fields(type_)}
    config = type_.__struct_config__
    found: list[Mistake] = []
    sound: dict[str, Any] = {}
    for name, item in value.items():
        if name not in known:
            if name == config.tag_field:
                sound[name] = item
            elif config.forbid_unknown_fields:
                found.append(Mistake(f"{path}.{name}", f"unknown member; known here: {', '.join(known) or 'none'}"))
            continue
        inside = find_mistakes(item, known[name].type, f"{path}.{name}")
        found += inside
        if not inside:
            sound[name] = item
        elif known[name].required and isinstance(item, list) and not _try_convert([], known[name].type, path):
            sound[name] = []
    found += _missing(value, known, path)
    if any(field.required and name not in sound for name, field in known.items()):
        return found
    # Types are right now, so this asks `__post_init__`, and without the members that are known to be bad.
    return found + _try_convert(sound, type_, path)


def _missing(value: dict[str, Any], known: Mapping[str, FieldInfo], path: str) -> list[Mistake]:
    names = [name for name, field in known.items() if field.required and name not in value]
    return [Mistake(path, f"member {name!r} is missing") for name in names]


def _union_mistakes(value: object, type_: object, members: Sequence[object], path: str) -> list[Mistake]:
    """Looks into the one member of the union that the value must mean; else leaves the wording to msgspec."""
    structs = [cast("type[msgspec.Struct]", member) for member in members if _is_struct(member)]
    lists = [member for member in members if get_origin(member) is list]
    kind = type(value)
    if kind is list and lists:
        return find_mistakes(value, lists[0], path)
    if kind is dict and len(structs) == 1:
        return find_mistakes(value, structs[0], path)
    if kind is dict and structs:
        return _tagged_mistakes(cast("dict[str, Any]", value), structs, path)
    return _try_convert(value, type_, path)


def _tagged_mistakes(value: dict[str, Any], structs: Sequence[type[msgspec.Struct]], path: str) -> list[Mistake]:
    tag_field = structs[0].__struct_config__.tag_field or "type"
    by_tag = {struct.__struct_config__.tag: struct for struct in structs}
    if tag_field not in value:
        return [Mistake(path, f"member {tag_field!r} is missing")]
    tag = value[tag_field]
    if not isinstance(tag, str) or tag not in by_tag:
        return [Mistake(f"{path}.{tag_field}", f"{tag!r} is none of {', '.join(map(str, by_tag))}")]
    return find_mistakes(value, by_tag[tag], path)


def _try_convert(value: object, type_: object, path: str) -> list[Mistake]:
    try:
        msgspec.convert(value, type=cast("Any", type_))
    except msgspec.ValidationError as error:
        return [_located(error, path)]
    return []


def _is_struct(type_: object) -> bool:
    return isinstance(type_, type) and issubclass(type_, msgspec.Struct)


def _located(error: Exception, path: str) -> Mistake:
    """The mistake that msgspec names, whose own path (`… - at `$.a``) goes on from `path`."""
    message, _, tail = str(error).partition(_AT)
    return Mistake(path + tail.removesuffix("`").removeprefix("$"), message)


def _refusal(file: str, mistakes: Sequence[Mistake]) -> ConfigError:
    lines = [f"{file}: {found.path}: {found.message}" for found in mistakes]
    errors = [{"path": found.path, "message": found.message} for found in mistakes]
    return ConfigError("\n".join(lines), data={"file": file, "path": mistakes[0].path, "errors": errors})
