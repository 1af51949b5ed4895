"""What a run came to, in figures, from the events of its log. Pure; times are Unix milliseconds.

Tolerant: what an event lacks, or has of a wrong type, is left out.
"""

from __future__ import annotations

from math import isfinite

from avenor.control.manifest_figures import ManifestFigures

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    Event = dict[str, Any]
    Facts = dict[str, Any]

# The last millisecond that a calendar of four-digit years has; no count comes near it.
_LARGEST = 253_402_300_799_999
_TOKENS = ("input_tokens", "output_tokens", "total_tokens", "cached_read_tokens")
# Of whom an event is, among sessions that run side by side.
_Place = tuple[str, str]


def figures_of(events: Iterable[Event]) -> Facts:
    """The figures of one run.

    Returns:
        The members of `run.start` and `run.end`; `phases` and `turns` with their beginnings, ends, outcomes and usage;
        `permissions` with who answered them; `retries`, `errors` and `resumed`; `tools` by status; `usage` over all;
        `waits`: what was waited for, from when to when; and `manifest`, None of a run that has none.
    """
    figures = _Figures()
    for event in events:
        figures.take(event)
    return figures.finish()


class _Figures:
    def __init__(self) -> None:
        self._run: Facts = {}
        self._end: Facts = {}
        self._phases: list[Facts] = []
        self._turns: list[Facts] = []
        self._permissions: dict[str, Facts] = {}
        self._retries: list[Facts] = []
        self._errors: list[Facts] = []
        self._resumed: list[Facts] = []
        self._tools: dict[tuple[_Place, str, str], str] = {}
        self._manifest = ManifestFigures()
        self._first_session_at: int | None = None
        self._first_at: int | None = None
        self._last_at = 0
        self._count = 0

    def take(self, event: Event) -> None:
        at = _int(event.get("ts"))
        self._first_at = at if self._first_at is None else self._first_at
        self._last_at = max(self._last_at, at)
        self._count += 1
        self._manifest.take(event, at)
        handler = _HANDLERS.get(str(event.get("event")))
        if handler is not None:
            handler(self, event, at)

    def finish(self) -> Facts:
        started = _int(self._run.get("started_at", self._first_at))
        for each in (*self._phases, *self._turns):
            _close(each, self._last_at)
        return {
            "run_id": "",
            **self._run,
            "status": None,
            "exit_code": None,
            "stop_reason": None,
            "reason": None,
            **self._end,
            "started_at": started,
            "ended_at": self._last_at if self._end else None,
            "duration_ms": max(0, self._last_at - started),
            "events": self._count,
            "phases": self._phases,
            "turns": self._turns,
            "permissions": list(self._permissions.values()),
            "retries": self._retries,
            "errors": self._errors,
            "resumed": self._resumed,
            "tools": {"calls": len(self._tools), **_counts(self._tools.values())},
            "usage": _sum([turn["usage"] for turn in self._turns]),
            "manifest": self._manifest.finish(),
            "waits": sorted(self._waits(started), key=lambda wait: wait["from"]),
        }

    def _waits(self, started: int) -> list[Facts]:
        waits: list[Facts] = []
        if self._first_session_at is not None:
            waits.append(_wait("start", "the agent's session", started, self._first_session_at))
        for asked in self._permissions.values():
            end = asked["answered_at"] or self._last_at
            waits.append(_wait("permission", asked["question"] or asked["tool"], asked["asked_at"], end))
        for retry in self._retries:
            what = " ".join(filter(None, (retry["phase"], retry["class"])))
            waits.append(_wait("retry", what, retry["at"], min(retry["at"] + retry["delay_ms"], self._last_at)))
        return waits

    def run_start(self, event: Event, at: int) -> None:
        self._run = _some(event, "run_id", "run_label", "runtime_id", "kind", "backend", "dir", "version")
        self._run["started_at"] = at

    def run_end(self, event: Event, _at: int) -> None:
        self._end = _some(event, "status", "exit_code", "stop_reason", "reason")

    def run_resumed(self, event: Event, at: int) -> None:
        self._resumed.append({"at": at, **_some(event, "cut", "goes_on")})

    def session_start(self, _event: Event, at: int) -> None:
        self._first_session_at = at if self._first_session_at is None else self._first_session_at

    def phase_start(self, event: Event, at: int) -> None:
        _close_open(self._phases, _key(event), at, "lost")  # a process that was lost has not told its end
        self._phases.append(
            {
                "path": _str(event.get("path")),
                "name": _str(event.get("phase")),
                "kind": _str(event.get("kind")),
                "iteration": _int(event.get("iteration")),
                "attempt": _int(event.get("attempt")) or 1,
                "started_at": at,
                "ended_at": None,
                "outcome": None,
                "stop_reason": None,
                "exit_code": None,
                "usage": _sum([]),
            }
        )

    def phase_end(self, event: Event, at: int) -> None:
        phase = _last_open(self._phases, _key(event))
        if phase is None:
            self.phase_start(event, at)
            phase = self._phases[-1]
        outcome = "done" if event.get("exit_code") == 0 else "failed"
        if event.get("retried") is True:
            outcome = "retried"
        elif event.get("abort_marker") is True:
            outcome = "aborted"
        phase.update(_some(event, "stop_reason", "exit_code", "commit", "exit_marker_label", "abort_marker_label"))
        phase.update(outcome=outcome, ended_at=at)

    def turn_start(self, event: Event, at: int) -> None:
        _close_open(self._turns, _key(event), at, "lost")
        self._turns.append(
            {
                "path": _str(event.get("path")),
                "name": _str(event.get("phase")),
                "prompt": _str(event.get("text")),
                "source": _str(event.get("source")),
                "started_at": at,
                "ended_at": None,
                "outcome": None,
                "stop_reason": None,
                "usage": _sum([]),
            }
        )

    def turn_end(self, event: Event, at: int) -> None:
        turn = _last_open(self._turns, _key(event))
        if turn is None:
            self.turn_start(event, at)
            turn = self._turns[-1]
        stop = _str(event.get("stop_reason"))
        usage = _sum([event.get("usage")])
        turn.update(ended_at=at, stop_reason=stop, outcome="done" if stop == "end_turn" else "failed", usage=usage)
        turn.update(_some(event, "error"))
        phase = _last_open(self._phases, _key(event))
        if phase is not None:
            phase["usage"] = _sum([phase["usage"], usage])

    def permission_request(self, event: Event, at: int) -> None:
        # The same request again means that another resolver has it now.
        self._permissions.setdefault(
            _str(event.get("request_id")),
            {
                "request_id": _str(event.get("request_id")),
                "phase": _str(event.get("phase")),
                "tool": _str(event.get("tool")),
                "question": _str(event.get("question")),
                "asked_at": at,
                "answered_at": None,
                "answer": None,
                "option_id": None,
                "source": None,
            },
        )

    def permission_response(self, event: Event, at: int) -> None:
        asked = self._permissions.get(_str(event.get("request_id")))
        if asked is not None and asked["answered_at"] is None:
            asked.update(answered_at=at, answer=_str(event.get("kind")), **_some(event, "option_id", "source"))

    def tool(self, event: Event, _at: int) -> None:
        key = (_key(event), _str(event.get("session_id")), _str(event.get("toolCallId")))
        self._tools[key] = _str(event.get("status")) or self._tools.get(key, "pending")

    def retry(self, event: Event, at: int) -> None:
        self._retries.append(
            {
                "at": at,
                "phase": _str(event.get("phase")),
                "attempt": _int(event.get("attempt")),
                "class": _str(event.get("class")),
                "delay_ms": _int(event.get("delay_ms")),
            }
        )

    def error(self, event: Event, at: int) -> None:
        self._errors.append({"at": at, **_some(event, "source", "message", "phase")})


_HANDLERS = {
    "run.start": _Figures.run_start,
    "run.end": _Figures.run_end,
    "run.resumed": _Figures.run_resumed,
    "session.start": _Figures.session_start,
    "avenor.phase.start": _Figures.phase_start,
    "avenor.phase.end": _Figures.phase_end,
    "turn.start": _Figures.turn_start,
    "turn.end": _Figures.turn_end,
    "permission.request": _Figures.permission_request,
    "permission.response": _Figures.permission_response,
    "tool.call": _Figures.tool,
    "tool.call_update": _Figures.tool,
    "avenor.retry": _Figures.retry,
    "avenor.error": _Figures.error,
}


def _key(event: Event) -> _Place:
    return _str(event.get("path")), _str(event.get("phase"))


def _last_open(entries: list[Facts], key: _Place) -> Facts | None:
    return next(
        (each for each in reversed(entries) if (each["path"], each["name"]) == key and each["ended_at"] is None),
        None,
    )


def _close_open(entries: list[Facts], key: _Place, at: int, outcome: str) -> None:
    entry = _last_open(entries, key)
    if entry is not None:
        entry.update(ended_at=at, outcome=outcome)


def _close(entry: Facts, last_at: int) -> None:
    if entry["outcome"] is None:
        entry["outcome"] = "open"
    end = last_at if entry["ended_at"] is None else entry["ended_at"]
    entry["duration_ms"] = max(0, end - entry["started_at"])


def _wait(what: str, detail: str, start: int, end: int) -> Facts:
    return {"what": what, "detail": detail, "from": start, "to": max(start, end), "ms": max(0, end - start)}


def _counts(values: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts


def _sum(usages: list[Any]) -> Facts:
    """The tokens of several usages; `cost_usd` only if one of them has it."""
    known: list[Facts] = [usage for usage in usages if isinstance(usage, dict)]
    total: Facts = {name: sum(_int(usage.get(name)) for usage in known) for name in _TOKENS}
    costs = [cost for usage in known if isinstance(cost := usage.get("cost_usd"), (int, float)) and isfinite(cost)]
    return {**total, "cost_usd": sum(costs)} if costs else total


def _some(event: Event, *names: str) -> Facts:
    return {name: event[name] for name in names if isinstance(event.get(name), (str, int, float))}


def _int(value: object) -> int:
    return int(value) if isinstance(value, (int, float)) and 0 <= value <= _LARGEST else 0


def _str(value: object) -> str:
    return value if isinstance(value, str) else ""
