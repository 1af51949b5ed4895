"""Items of codex that are the work of a tool, as tool calls. Pure.

Members of an item that its event has no place for, and those of its notification, are kept in `extra`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from avenor.protocol.events import ToolCall, ToolCallUpdate

Members = dict[str, Any]

# ACP's words, which our events use, for codex's.
_STATUS: Final = {"inProgress": "in_progress", "declined": "failed", "interrupted": "failed"}


class _Tool:
    """How one kind of item becomes a tool call.

    Args:
        kind: ACP's word for such a tool.
        title: What people are shown, from the item's members.
        given: Members that are the tool's input.
        gained: Members that are its output.
        is_argument: The one `given` member is the input itself.
    """

    def __init__(
        self,
        kind: str,
        title: Callable[[Members], str],
        *,
        given: tuple[str, ...],
        gained: tuple[str, ...] = (),
        is_argument: bool = False,
    ) -> None:
        self.kind = kind
        self.title = title
        self.given = given
        self.gained = gained
        self.is_argument = is_argument


def _command_title(item: Members) -> str:
    """The command as the model wrote it, without the shell that codex puts around it."""
    actions = _objects(item.get("commandActions"))
    inner = text_of(actions[0], "command") if len(actions) == 1 else ""
    return inner or text_of(item, "command") or "a command"


def _change_title(item: Members) -> str:
    return "Change " + (", ".join(path.rpartition("/")[2] for path in _changed_paths(item)) or "files")


def _search_title(item: Members) -> str:
    return f"Search the web: {text_of(item, 'query')}".rstrip(": ")


_TOOLS: Final[Mapping[str, _Tool]] = {
    "commandExecution": _Tool(
        "execute",
        _command_title,
        given=("command", "cwd"),
        gained=("aggregatedOutput", "exitCode", "durationMs"),
    ),
    "fileChange": _Tool("edit", _change_title, given=("changes",)),
    "mcpToolCall": _Tool(
        "other",
        lambda item: f"{text_of(item, 'server')}: {text_of(item, 'tool')}",
        given=("arguments",),
        gained=("result", "error"),
        is_argument=True,
    ),
    "dynamicToolCall": _Tool(
        "other",
        lambda item: text_of(item, "tool") or "a tool",
        given=("arguments",),
        gained=("contentItems", "success"),
        is_argument=True,
    ),
    "collabAgentToolCall": _Tool(
        "other",
        lambda item: f"agent: {text_of(item, 'tool')}",
        given=("prompt", "model", "reasoningEffort", "receiverThreadIds"),
        gained=("agentsStates",),
    ),
    "webSearch": _Tool("search", _search_title, given=("query", "action"), gained=("results",)),
    "imageView": _Tool("read", lambda item: f"Look at {text_of(item, 'path')}", given=("path",)),
    "imageGeneration": _Tool(
        "other", lambda _item: "Make an image", given=("revisedPrompt", "inputImages"), gained=("savedPath", "failure")
    ),
}


def tool_call(item: Members, params: Members) -> ToolCall | None:
    """The beginning of a tool's work; None for an item that is none.

    Args:
        item: The item.
        params: Those of its notification.

    Raises:
        KeyError: It has no type or no id. Likewise `msgspec.ValidationError` for one that is no text.
    """
    tool = _TOOLS.get(item["type"])
    if tool is None:
        return None
    values = _values(tool, item)
    return ToolCall(kind=tool.kind, title=tool.title(item), **values, extra=_rest(tool, item, params))


def tool_end(item: Members, params: Members) -> ToolCallUpdate | None:
    """The end of a tool's work, with what came of it; as `tool_call`."""
    tool = _TOOLS.get(item["type"])
    if tool is None:
        return None
    values = _values(tool, item)
    gained = {name: item[name] for name in tool.gained if item.get(name) is not None}
    if gained:
        values["rawOutput"] = to_raw(gained)
    output = text_of(item, "aggregatedOutput")
    if output:
        values["content"] = to_raw([{"type": "content", "content": {"type": "text", "text": output}}])
    if values["status"] == "in_progress":  # items without a status of their own have just ended well
        values["status"] = "completed"
    return ToolCallUpdate(kind=tool.kind, title=tool.title(item), **values, extra=_rest(tool, item, params))


def to_raw(value: object) -> Raw:
    """A value, encoded."""
    return Raw(msgspec.json.encode(value))


def as_text(value: Any) -> str:
    """A text; raises `msgspec.ValidationError` for anything else."""
    return msgspec.convert(value, type=str)


def text_of(members: Members, name: str) -> str:
    """A text among members; empty if it is none."""
    value = members.get(name)
    return value if isinstance(value, str) else ""


def _values(tool: _Tool, item: Members) -> dict[str, Any]:
    """What both events of a tool have."""
    given = {name: item[name] for name in tool.given if item.get(name) is not None}
    status = text_of(item, "status") or "inProgress"
    values: dict[str, Any] = {"toolCallId": as_text(item["id"]), "status": _STATUS.get(status, status)}
    if given:
        values["rawInput"] = to_raw(given[tool.given[0]] if tool.is_argument else given)
    path = text_of(item, "path")
    paths = _changed_paths(item) or ([path] if path else [])
    if paths:
        values["locations"] = to_raw([{"path": path} for path in paths])
    return values


def _rest(tool: _Tool, item: Members, params: Members) -> dict[str, Raw]:
    placed = {"id", *tool.given, *tool.gained}
    told = {name: value for name, value in params.items() if name not in ("item", "threadId")}
    kept = {name: value for name, value in item.items() if name not in placed and value is not None}
    return {name: to_raw(value) for name, value in {**told, **kept}.items()}


def _changed_paths(item: Members) -> list[str]:
    return [path for change in _objects(item.get("changes")) if (path := text_of(change, "path"))]


def _objects(value: Any) -> list[Members]:
    """A list of objects; empty if it is anything else."""
    try:
        return msgspec.convert(value, type=list[dict[str, Any]])
    except msgspec.ValidationError:
        return []
