"""What an agent is about to do, read from its question and from what it has told of the tool call. Pure.

Agents tell the same things in different words: the keys that are looked at here are those of the real ones. What cannot
be read is left out, and then nothing is allowed that would need it.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from avenor.protocol.events import ToolCall, ToolCallUpdate
from avenor.protocol.manifest.authority import OWN_SERVER, ToolUse, own_tool_name
from avenor.protocol.manifest.roster import TOOL_KINDS, WRITING_KINDS
from avenor.runtimes.backends.base import PermissionAsk

_COMMAND_KEYS: Final = ("command", "cmd", "commands")
_PATH_KEYS: Final = ("file_path", "filePath", "filepath", "path", "fileName", "absolute_path", "notebook_path")
_PATCH_KEYS: Final = ("patch", "patchText", "input", "diff")
_PATCHED: Final = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)$", re.MULTILINE)
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
# How codex-acp names a tool of an MCP server, and how codex itself does.
_DOTTED: Final = re.compile(r"mcp\.(?P<server>[^.]+)\.(?P<tool>.+)")
_OWN_COLON: Final = f"{OWN_SERVER}: "
_VOID: Final = frozenset({"invalid", "Invalid Tool"})
_EXIT_KEYS: Final = ("exitCode", "exit_code", "exit")

_Object = dict[str, Any]
_List = list[Any]
_Texts = list[str]
T = TypeVar("T")

_object = msgspec.json.Decoder(_Object)


class Call(msgspec.Struct):
    """What an agent has told of one tool call so far.

    Attributes:
        name: What it called it first, if that is a name; later titles are for people.
    """

    name: str = ""
    title: str = ""
    kind: str | None = None
    status: str = "pending"
    given: dict[str, Any] = {}
    paths: list[str] = []
    has_exit_code: bool = False

    def take(self, event: ToolCall | ToolCallUpdate) -> None:
        """Takes what the next event tells beyond that."""
        if event.title is not UNSET:
            if not self.title and _IDENTIFIER.fullmatch(event.title):
                self.name = event.title
            self.title = event.title
        self.kind = self.kind if event.kind is UNSET else event.kind
        self.status = self.status if event.status is UNSET else event.status
        self.given = _members(event.rawInput) or self.given
        told = [*_located(event.locations), *_located(event.content)]
        self.paths = list(dict.fromkeys([*self.paths, *told]))
        self.has_exit_code = self.has_exit_code or _has_exit_code(_members(event.rawOutput))

    @property
    def is_void(self) -> bool:
        """Whether nothing was called: opencode tells so of a tool that it does not offer."""
        return self.kind == "other" and self.title in _VOID

    @property
    def has_run(self) -> bool:
        """Whether it has ended after it was really run; one that failed may just have been refused."""
        return self.status == "completed" or (self.status == "failed" and self.has_exit_code)

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.status in ("completed", "failed")


class Roots(msgspec.Struct, frozen=True, kw_only=True):
    """Where an attempt works.

    Attributes:
        top: The root of its worktree, to which paths are made relative.
        cwd: Its working directory, from which relative paths are meant.
    """

    top: str
    cwd: str

    def relative(self, path: str) -> str:
        """A path as `ToolUse.paths` wants it."""
        full = os.path.normpath(os.path.join(self.cwd, path))
        for top in (self.top, os.path.realpath(self.top)):
            if full.startswith(f"{top}/"):
                return full[len(top) + 1 :]
        return full


def use_of_call(call: Call, roots: Roots) -> ToolUse:
    """What a tool call is, from what was told of it."""
    return _use(call.kind, call.title, call.name, call.given, call.paths, roots)


def use_of_ask(ask: PermissionAsk, call: Call | None, roots: Roots) -> ToolUse:
    """What a question is about; what the question says itself counts more than what was told before."""
    call = call or Call()
    given = _members(ask.input)
    asked = _as(_Object, _members(ask.payload).get("toolCall"), {})
    paths = [*_paths_in(asked.get("locations")), *_paths_in(asked.get("content"))]
    kind, title, given = ask.kind or call.kind, ask.question or call.title, {**call.given, **given}
    if kind == "fetch":  # a command that wants to leave for the network, which it was granted without
        given = {key: value for key, value in given.items() if key not in _COMMAND_KEYS}
    if ask.server is not None:
        return ToolUse(tool=ask.tool, kind=kind, title=title, mcp=(ask.server, ask.tool))
    name = call.name or ("" if ask.tool in TOOL_KINDS else ask.tool)
    return _use(kind, title, name, given, paths or call.paths, roots)


def _use(
    kind: str | None, title: str, name: str, given: Mapping[str, Any], paths: Sequence[str], roots: Roots
) -> ToolUse:
    mcp = _mcp_given(given) or _mcp_titled(title) or _mcp_titled(name)
    command = _command(given)
    bare = ToolUse(tool=name, kind=kind, title=title, mcp=mcp)
    if command is None and kind not in WRITING_KINDS and own_tool_name(bare) is not None:
        return bare  # its arguments may well be called `path`
    if command is None and kind == "execute" and not given:
        command = title or None  # gemini's question is the command, and nothing else
    found = [*paths, *_given_paths(given)] if kind in WRITING_KINDS else paths
    relative = [roots.relative(path) for path in found]
    return msgspec.structs.replace(bare, command=command, paths=list(dict.fromkeys(relative)))


def _mcp_given(given: Mapping[str, Any]) -> tuple[str, str] | None:
    server, tool = given.get("server"), given.get("tool")
    return (server, tool) if isinstance(server, str) and isinstance(tool, str) else None


def _mcp_titled(text: str) -> tuple[str, str] | None:
    """Where a text is a tool's name in full; `server: tool` may be anything, so only ours is known by it."""
    if found := _DOTTED.fullmatch(text):
        return found["server"], found["tool"]
    return (OWN_SERVER, text.removeprefix(_OWN_COLON)) if text.startswith(_OWN_COLON) else None


def _command(given: Mapping[str, Any]) -> str | Sequence[str] | None:
    for key in _COMMAND_KEYS:
        value = given.get(key)
        words = _as(_Texts, value, [])
        if words:
            return "; ".join(words) if key == "commands" else words
        if isinstance(value, str) and value:
            return value
    return None


def _given_paths(given: Mapping[str, Any]) -> Iterator[str]:
    yield from (given[key] for key in _PATH_KEYS if isinstance(given.get(key), str))
    yield from _paths_in(given.get("changes"))
    for key in ("fileChanges", "changes"):
        yield from _as(_Object, given.get(key), {})
    for key in _PATCH_KEYS:
        if isinstance(given.get(key), str):
            yield from _PATCHED.findall(given[key])


def _located(raw: Raw | UnsetType) -> list[str]:
    if raw is UNSET:
        return []
    try:
        return list(_paths_in(msgspec.json.decode(raw)))
    except msgspec.DecodeError:
        return []


def _paths_in(listed: object) -> Iterator[str]:
    """The paths of a list of locations, diffs or changes."""
    for each in _as(_List, listed, []):
        entry = _as(_Object, each, {})
        if isinstance(path := entry.get("path"), str):
            yield path
        # codex renames
        if isinstance(moved := _as(_Object, entry.get("kind"), {}).get("move_path"), str):
            yield moved


def _has_exit_code(said: Mapping[str, Any]) -> bool:
    inner = _as(_Object, said.get("metadata"), {})
    return any(isinstance(each.get(key), int) for each in (said, inner) for key in _EXIT_KEYS)


def _as(kind: type[T], value: object, otherwise: T) -> T:
    """A value of a kind; something else where it is none."""
    try:
        return msgspec.convert(value, type=kind)
    except msgspec.ValidationError:
        return otherwise


def _members(raw: Raw | UnsetType) -> dict[str, Any]:
    if raw is UNSET:
        return {}
    try:
        return _object.decode(raw)
    except msgspec.DecodeError:
        return {}
