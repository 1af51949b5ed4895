"""Reads one config file as far as it can be read, so that a mistake in one place hides none in another.

A draft holds every phase that is an object, with the members that have the right type. It is what the rules of
`config_rules` look at; a file without a mistake gives a draft without a gap.
"""

from typing import Any, Final, cast

import msgspec

from avenor.protocol.configs import DEFAULT_MAX_ITERATIONS, ConfigKind, LoopConfig, Phase, TeamConfig
from avenor.protocol.errors import ConfigError
from avenor.protocol.events import PhaseKind
from avenor.protocol.mcp import McpServer
from avenor.protocol.validation import Mistake, decode_document, find_mistakes

LISTS: Final[dict[ConfigKind, tuple[PhaseKind, PhaseKind, PhaseKind]]] = {
    "loop": ("pre", "loop", "post"),
    "team": ("pre", "team", "post"),
}
# Of one run, with those of nested files each time that they are used: eight levels of ten references would be 10⁸.
MAX_PHASES: Final = 10_000

_STRUCTS: Final[dict[ConfigKind, type[LoopConfig] | type[TeamConfig]]] = {"loop": LoopConfig, "team": TeamConfig}
_MEMBERS: Final = {field.encode_name: field for field in msgspec.structs.fields(Phase)}
_TOP_MEMBERS: Final = {field.encode_name: field for field in msgspec.structs.fields(LoopConfig)}


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """A phase as far as it can be read.

    Attributes:
        path: Its JSON path.
        kind: The list that it stands in.
        phase: Its sound members; the name is empty if it has no sound one.
        given: The members that are there and not null, sound or not.
        has_name: Whether the name is there and a string.
    """

    path: str
    kind: PhaseKind
    phase: Phase
    given: frozenset[str]
    has_name: bool


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A config as far as it can be read.

    Attributes:
        phases: In the order of `LISTS`.
        filled: The lists that hold something, or that cannot be read.
        max_iterations: The default if it cannot be read.
        servers: Those of its MCP servers whose types are right, by their JSON paths.
    """

    kind: ConfigKind
    phases: list[Written]
    filled: frozenset[PhaseKind]
    max_iterations: int
    servers: dict[str, McpServer]


def config_kind(data: bytes) -> ConfigKind | None:
    """What a file is meant as, by the members that only one kind has; None if nothing tells."""
    value = _decode(data)
    if not isinstance(value, dict):
        return None
    if "team" in value:
        return "team"
    return "loop" if "loop" in value or "max_iterations" in value else None


def read_draft(data: bytes, kind: ConfigKind, *, file: str) -> tuple[Draft, list[Mistake]]:
    """The draft, and what is wrong with the document's form: JSON, unknown members, types.

    Args:
        data: The content of the file.
        kind: What to read it as.
        file: Its name, for messages.
    """
    value = _decode(data)
    if (count := _count(value, kind)) > MAX_PHASES:
        return _unreadable(kind), [Mistake("$", f"it has {count} phases; {MAX_PHASES} is the most that a run may have")]
    return _draft(value, kind), _form_mistakes(data, kind, file)


def _decode(data: bytes) -> object:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _count(value: object, kind: ConfigKind) -> int:
    if not isinstance(value, dict):
        return 0
    members = cast("dict[str, Any]", value)
    return sum(len(cast("list[Any]", members[name])) for name in LISTS[kind] if isinstance(members.get(name), list))


def _form_mistakes(data: bytes, kind: ConfigKind, file: str) -> list[Mistake]:
    try:
        decode_document(data, _STRUCTS[kind], file=file)
    except ConfigError as error:
        return msgspec.convert(error.data["errors"], list[Mistake])
    return []


def _unreadable(kind: ConfigKind) -> Draft:
    filled = frozenset(LISTS[kind])
    return Draft(kind=kind, phases=[], filled=filled, max_iterations=DEFAULT_MAX_ITERATIONS, servers={})


def _draft(value: object, kind: ConfigKind) -> Draft:
    if not isinstance(value, dict):
        return _unreadable(kind)
    members = cast("dict[str, Any]", value)
    phases: list[Written] = []
    for name in LISTS[kind]:
        items: object = members.get(name)
        if isinstance(items, list):
            numbered = enumerate(cast("list[object]", items))
            objects = [(index, cast("dict[str, Any]", item)) for index, item in numbered if isinstance(item, dict)]
            phases += [_written(item, name, f"$.{name}[{index}]") for index, item in objects]
    filled: frozenset[PhaseKind] = frozenset(name for name in LISTS[kind] if members.get(name, []) != [])
    return Draft(kind=kind, phases=phases, filled=filled, max_iterations=_limit(members), servers=_servers(members))


def _servers(members: dict[str, Any]) -> dict[str, McpServer]:
    given: object = members.get("mcp_servers")
    if not isinstance(given, list):
        return {}
    numbered = enumerate(cast("list[object]", given))
    sound = [(index, item) for index, item in numbered if not find_mistakes(item, McpServer)]
    return {f"$.mcp_servers[{index}]": msgspec.convert(item, McpServer) for index, item in sound}


def _limit(members: dict[str, Any]) -> int:
    limit: object = members.get("max_iterations")
    is_sound = not find_mistakes(limit, _TOP_MEMBERS["max_iterations"].type)
    return cast("int", limit) if is_sound else DEFAULT_MAX_ITERATIONS


def _written(members: dict[str, Any], kind: PhaseKind, path: str) -> Written:
    sound = {name: value for name, value in members.items() if name in _MEMBERS and _is_sound(name, value)}
    return Written(
        path=path,
        kind=kind,
        phase=msgspec.convert({"name": "", **sound}, Phase),
        given=frozenset(name for name, value in members.items() if value is not None),
        has_name="name" in sound,
    )


def _is_sound(name: str, value: object) -> bool:
    return not find_mistakes(value, _MEMBERS[name].type)
