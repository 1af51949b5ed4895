"""Makes a struct of a document that has mistakes, so that what is right in it can be checked as well.

What is missing or wrong is replaced, and the paths of these replacements are kept: nothing that is said about them
would be about what somebody has written.
"""

import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

import msgspec

from avenor.protocol.manifest.tree import ROOT, item_path, member_path
from avenor.protocol.validation import Mistake, find_mistakes

T = TypeVar("T", bound=msgspec.Struct)


class Draft:
    """A struct, and the paths of what in it was made up."""

    def __init__(self) -> None:
        self.made_up: set[str] = set()

    def is_made_up(self, path: str) -> bool:
        """Whether what stands there, or what it stands in, was not written so."""
        return any(path == each or path.startswith((f"{each}.", f"{each}[")) for each in self.made_up)


def read_draft(value: object, type_: type[T]) -> tuple[T, Draft, list[Mistake]]:
    """The document as a struct, what of that was made up, and its mistakes."""
    draft = Draft()
    mistakes = find_mistakes(value, type_)
    fitting = value if not mistakes else _mended(value, type_, ROOT, draft)
    return msgspec.convert(fitting, type=type_), draft, mistakes


def _mended(value: object, type_: Any, path: str, draft: Draft) -> Any:
    """The value, with what does not fit the type replaced."""
    if not find_mistakes(value, type_):
        return value
    origin, arguments = get_origin(type_), get_args(type_)
    if origin is Annotated:
        inside = _mended(value, arguments[0], path, draft)
        return inside if not find_mistakes(inside, type_) else _made_up(type_, path, draft)
    if _is_struct(type_) and isinstance(value, dict):
        return _mended_struct(cast("dict[str, Any]", value), type_, path, draft)
    if origin is list and isinstance(value, list):
        items = enumerate(cast("list[object]", value))
        return [_mended(item, arguments[0], item_path(path, index), draft) for index, item in items]
    if origin is dict and isinstance(value, dict):
        members = cast("dict[str, object]", value).items()
        return {name: _mended(item, arguments[1], member_path(path, name), draft) for name, item in members}
    if origin in (Union, types.UnionType):
        return _mended_union(value, arguments, path, draft)
    return _made_up(type_, path, draft)


def _mended_union(value: object, arguments: tuple[Any, ...], path: str, draft: Draft) -> Any:
    """The value as the one type of `X | None` that it must mean."""
    for argument in arguments:
        if _is_struct(argument) and isinstance(value, dict):
            return _mended(cast("object", value), argument, path, draft)
    return _made_up(arguments[0], path, draft)


def _mended_struct(value: Mapping[str, object], type_: Any, path: str, draft: Draft) -> dict[str, Any]:
    mended: dict[str, Any] = {}
    for field in msgspec.structs.fields(type_):
        name, inside = field.encode_name, member_path(path, field.encode_name)
        if name in value:
            mended[name] = _mended(value[name], field.type, inside, draft)
        elif field.required:
            mended[name] = _made_up(field.type, inside, draft)
    return mended


def _made_up(type_: Any, path: str, draft: Draft) -> Any:
    """A value of the type that means as little as can be."""
    draft.made_up.add(path)
    return _least(type_)


def _least(type_: Any) -> Any:
    origin, arguments = get_origin(type_), get_args(type_)
    if origin is Annotated:
        return _least_annotated(type_, arguments[0])
    if origin is Literal:
        return arguments[0]
    if _is_struct(type_):
        return {field.encode_name: _least(field.type) for field in msgspec.structs.fields(type_) if field.required}
    return (origin or type_)()


def _least_annotated(type_: Any, bare: Any) -> Any:
    """Of a type with bounds: nothing, one, or a list of one, whichever it takes."""
    least = _least(bare)
    more: list[Any] = [1, "unnamed", "git:unnamed", "http://unnamed"]
    if get_origin(bare) is list:
        more = [[_least(get_args(bare)[0])]]
    return next(each for each in (least, *more) if not find_mistakes(each, type_))


def _is_struct(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, msgspec.Struct)
