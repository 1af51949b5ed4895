"""Events for eyes: one compact line each, and the agent's text as running text."""

from __future__ import annotations

from time import localtime, strftime

from avenor.cli.listing import count_text, elapsed_text
from avenor.cli.terminal import Style
from avenor.cli.untyped import list_in, object_in
from avenor.control.manifesttext import manifest_words
from avenor.control.safetext import clip, one_line, safe_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Event = dict[str, Any]

_TEXT_EVENTS = {
    "agent.message_chunk": (),
    "agent.thought_chunk": ("dim",),
    "user.message_chunk": ("cyan",),
}
_TONES = {"good": ("green",), "bad": ("red",), "warn": ("yellow",), "plain": ("dim",)}
# What every event carries, and so tells nothing about this one.
_ENVELOPE = frozenset(
    {"event", "seq", "ts", "run_id", "run_label", "runtime_id", "session_id", "path", "depth", "iteration", "attempt"}
)


class EventView:
    """Turns events into text for a terminal.

    Args:
        style: How to paint.
        columns: The width of the terminal; running text is left to the terminal to wrap.
        names_runtime: Whether lines say which runtime they are of.
    """

    def __init__(self, style: Style, *, columns: int, names_runtime: bool) -> None:
        self._style = style
        self._columns = columns
        self._names_runtime = names_runtime
        self._speaker: tuple[str, ...] | None = None
        self._at_line_start = True
        self._titles: dict[tuple[str, str], str] = {}

    def feed_line(self, line: bytes) -> str:
        """The text for one event line; a line that is no event is shown as it is."""
        import json

        try:
            return self.feed(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            # Not one of ours, or not of this version: no reason to stop following.
            return f"{self._end_text()}{one_line(line.decode(errors='replace'))}\n"

    def feed(self, event: Event) -> str:
        """The text for one event; empty where there is nothing to see."""
        name = str(event.get("event", ""))
        if name in _TEXT_EVENTS:
            return self._running_text(name, event)
        if name == "tool.call_update" and "status" not in event:
            return ""
        describe = _DESCRIPTIONS.get(name, _describe_other)
        word, colours, detail = describe(self, event)
        return self._end_text() + self._line(event, word, colours, detail)

    def finish(self) -> str:
        """What is missing for the cursor to stand at the start of a line."""
        return self._end_text()

    def detail(self, event: Event) -> str:
        """What there is to say about an event besides its name, whatever its members are."""
        describe = _DESCRIPTIONS.get(str(event.get("event", "")), _describe_other)
        try:
            return describe(self, event)[2]
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            return _describe_facts(event)[2]  # not one of ours, or not of this version

    def title_of(self, event: Event) -> str:
        """The title of the tool call that an event is about; remembered from its first event."""
        key = (str(event.get("runtime_id", "")), str(event.get("toolCallId", "")))
        if event.get("title"):
            self._titles[key] = str(event["title"])
        return self._titles.get(key, key[1])

    def _running_text(self, name: str, event: Event) -> str:
        content = object_in(event.get("content"))
        text = content.get("text") if content.get("type") == "text" else f"[{content.get('type', '?')}]"
        text = safe_text(str(text))
        if not text:
            return ""
        speaker = (name, str(event.get("runtime_id", "")), str(event.get("path", "")), str(event.get("phase", "")))
        before = ""
        if speaker != self._speaker:
            before = self._end_text() + self._heading(event)
            self._speaker = speaker
        self._at_line_start = text.endswith("\n")
        return before + self._style.paint(text, *_TEXT_EVENTS[name])

    def _heading(self, event: Event) -> str:
        """Whose text follows, where several could be speaking."""
        names = [str(event["runtime_id"])] if self._names_runtime and event.get("runtime_id") else []
        if event.get("phase"):
            names.append(str(event["phase"]))
        return self._style.paint(f"{one_line(' '.join(names))}:", "bold") + "\n" if names else ""

    def _end_text(self) -> str:
        missing = "" if self._at_line_start else "\n"
        self._speaker = None
        self._at_line_start = True
        return missing

    def _line(self, event: Event, word: str, colours: tuple[str, ...], detail: str) -> str:
        when = strftime("%H:%M:%S", localtime(event.get("ts", 0) / 1000))
        where = f"{one_line(str(event.get('runtime_id', '')))} " if self._names_runtime else ""
        room = self._columns - len(when) - len(where) - len(word) - 2
        painted = self._style.paint(word, *colours)
        return (
            f"{self._style.paint(when, 'dim')} {where}{painted} {clip(one_line(detail), max(room, 8))}".rstrip() + "\n"
        )


# The word, its colours, and the rest of the line.
_Description = tuple[str, tuple[str, ...], str]


def _describe_other(_view: EventView, event: Event) -> _Description:
    told = manifest_words(event)
    if told is not None:
        word, tone, detail = told
        return word, _TONES[tone], detail
    return _describe_facts(event)


def _describe_facts(event: Event) -> _Description:
    facts = [f"{name}={_value(value)}" for name, value in event.items() if name not in _ENVELOPE]
    return str(event.get("event", "?")), ("dim",), " ".join(facts)


def _value(value: Any) -> str:
    if isinstance(value, (str, int, float)):
        return str(value)
    import json

    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _run_start(_view: EventView, event: Event) -> _Description:
    label = f" {event['run_label']}" if event.get("run_label") else ""
    return "run", ("bold",), f"{event.get('run_id', '')}{label}: {event.get('backend')} in {event.get('dir')}"


def _session_start(_view: EventView, event: Event) -> _Description:
    with_what = [str(event[name]) for name in ("model", "agent") if event.get(name)]
    resumed = ["resumed"] if event.get("resumed") is True else []
    return "session", ("dim",), " ".join([str(event.get("session_id", "")), *with_what, *resumed])


def _turn_start(_view: EventView, event: Event) -> _Description:
    return "prompt", ("cyan", "bold"), str(event.get("text", ""))


def _turn_end(_view: EventView, event: Event) -> _Description:
    stop = str(event.get("stop_reason", ""))
    usage = object_in(event.get("usage"))
    tokens = f", {count_text(usage['total_tokens'])} tokens" if usage.get("total_tokens") else ""
    error = f": {event['error']}" if event.get("error") else ""
    return "turn ended", _good_or_bad(stop == "end_turn"), f"{stop}{tokens}{error}"


def _session_end(_view: EventView, event: Event) -> _Description:
    facts = [str(event.get("stop_reason", ""))]
    facts.extend(f"left {name}" for name in list_in(event.get("left_processes")))
    facts.extend(str(event[name]) for name in ("error", "unverified") if event.get(name))
    return "session ended", ("dim",), "; ".join(facts)


def _usage(_view: EventView, event: Event) -> _Description:
    return "usage", ("dim",), f"{count_text(event['used'])} of {count_text(event['size'])} tokens"


def _tool_call(view: EventView, event: Event) -> _Description:
    kind = event.get("kind", "other")
    return "tool", ("blue",), f"{view.title_of(event)} [{kind}] {event.get('status', '')}"


def _tool_update(view: EventView, event: Event) -> _Description:
    status = str(event["status"])
    return "tool", ("red",) if status == "failed" else ("blue",), f"{view.title_of(event)}: {status}"


def _permission_request(_view: EventView, event: Event) -> _Description:
    options = ", ".join(str(option.get("optionId")) for option in map(object_in, list_in(event.get("options"))))
    question = event.get("question") or event.get("tool")
    return "permission?", ("yellow", "bold"), f"{event.get('request_id')} {question} [{options}]"


def _permission_response(_view: EventView, event: Event) -> _Description:
    kind = str(event.get("kind", ""))
    detail = f"{event.get('request_id')} {kind} ({event.get('option_id')}) by {event.get('source')}"
    return "permission", _good_or_bad(kind == "allow"), detail


def _status(_view: EventView, event: Event) -> _Description:
    return "status", ("magenta",), " ".join(str(event[name]) for name in ("phase", "label") if event.get(name))


def _phase_start(_view: EventView, event: Event) -> _Description:
    round_ = f" (iteration {event['iteration']})" if event.get("iteration") else ""
    return "phase", ("bold",), f"{_phase_name(event)}{round_}"


def _phase_end(_view: EventView, event: Event) -> _Description:
    return "phase ended", _good_or_bad(event.get("exit_code") == 0), f"{_phase_name(event)}: {event.get('stop_reason')}"


def _phase_name(event: Event) -> str:
    path = f"{event['path']}/" if event.get("path") else ""
    return f"{path}{event.get('phase', '')}"


def _retry(_view: EventView, event: Event) -> _Description:
    wait = elapsed_text(event.get("delay_ms", 0) / 1000)
    return "retry", ("yellow",), f"attempt {event.get('attempt')} in {wait} ({event.get('class')})"


def _error(_view: EventView, event: Event) -> _Description:
    return "error", ("red", "bold"), f"{event.get('source')}: {event.get('message')}"


def _said(word: str) -> Callable[[EventView, Event], _Description]:
    return lambda _view, event: (word, ("dim",), str(event.get("text", "")))


def _run_end(_view: EventView, event: Event) -> _Description:
    reason = f": {event['reason']}" if event.get("reason") else ""
    detail = f"{event.get('status')} {event.get('stop_reason')}{reason}"
    return "run ended", (*_good_or_bad(event.get("status") == "DONE"), "bold"), detail


def _good_or_bad(is_good: bool) -> tuple[str, ...]:
    return ("green",) if is_good else ("red",)


_DESCRIPTIONS: dict[str, Callable[[EventView, Event], _Description]] = {
    "run.start": _run_start,
    "session.start": _session_start,
    "session.end": _session_end,
    "session.usage": _usage,
    "turn.start": _turn_start,
    "turn.end": _turn_end,
    "tool.call": _tool_call,
    "tool.call_update": _tool_update,
    "permission.request": _permission_request,
    "permission.response": _permission_response,
    "agent.status": _status,
    "agent.stderr": _said("stderr"),
    "agent.noise": _said("noise"),
    "prompt.queued": _said("queued"),
    "avenor.phase.start": _phase_start,
    "avenor.phase.end": _phase_end,
    "avenor.retry": _retry,
    "avenor.error": _error,
    "run.end": _run_end,
}
