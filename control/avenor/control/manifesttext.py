"""The events of a manifest run in words: one short line each, for eyes. Pure, and tolerant of what an event lacks."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal

    Event = dict[str, Any]
    Tone = Literal["good", "bad", "warn", "plain"]
    Told = tuple[str, Tone, str]

_GOOD = frozenset({"accepted", "joined", "done", "decided"})
_UNITS = {
    "model_calls": "model calls",
    "tool_calls": "tool calls",
    "tokens": "tokens",
    "cost_usd": "USD",
    "seconds": "s",
}


def manifest_words(event: Event) -> Told | None:
    """What an event is called, how it sounds, and what there is to say about it; None if it is none of a manifest."""
    describe = _WORDS.get(str(event.get("event", "")))
    return None if describe is None else describe(event)


def is_telling(event: Event) -> bool:
    """Whether somebody who looks now and then wants to know of it."""
    name = event.get("event")
    if name == "avenor.budget":
        return event.get("op") in ("warn", "block")
    if name == "avenor.authority":
        return event.get("decision") != "allow"
    if name == "avenor.result":
        return event.get("status") != "accepted"
    if name == "avenor.task":
        return event.get("state") not in ("created", "started", "submitted", "done")
    return name in _WORDS and name != "avenor.lease"


def _start(event: Event) -> Told:
    sandbox = "" if event.get("sandbox") != "none" else ", NO SANDBOX"
    detail = f"{_of(event, 'team_id')} at {_of(event, 'source_revision')}, epoch {_of(event, 'plan_epoch')}{sandbox}"
    return "manifest", "warn" if sandbox else "plain", detail


def _end(event: Event) -> Told:
    facts = [_of(event, name) for name in ("reason", "revision") if event.get(name)]
    return "manifest ended", _tone(event.get("state")), _joined(_of(event, "state"), facts)


def _task(event: Event) -> Told:
    state = _of(event, "state")
    who = _of(event, "attempt_id") or _of(event, "task_id")
    tone: Tone = "plain" if state in ("created", "started", "submitted", "done") else "bad"
    facts = [_of(event, name) for name in ("reason", "partial") if event.get(name)]
    return "task", tone, _joined(f"{who} {state.replace('_', ' ')}", facts)


def _lease(event: Event) -> Told:
    return "lease", "plain", _of(event, "attempt_id")


def _budget(event: Event) -> Told:
    op, account = _of(event, "op"), _of(event, "account")
    if op in ("warn", "block"):
        return f"budget {op}", "bad" if op == "block" else "warn", f"{account}: {_of(event, 'reason')}"
    amounts = event.get("limits" if op == "reserve" else "amounts")
    return "budget", "plain", f"{account} {op} {_amounts(amounts)}".rstrip()


def _amounts(amounts: Any) -> str:
    known: dict[str, Any] = amounts if isinstance(amounts, dict) else {}  # pyright: ignore[reportUnknownVariableType]
    return ", ".join(f"{known[unit]} {name}" for unit, name in _UNITS.items() if unit in known)


def _authority(event: Event) -> Told:
    decision = _of(event, "decision")
    detail = f"{_of(event, 'attempt_id')} {_of(event, 'tool')} by {_of(event, 'permitted_by')}"
    return decision or "authority", "plain" if decision == "allow" else "bad", _joined(detail, [_of(event, "detail")])


def _result(event: Event) -> Told:
    status = _of(event, "status")
    detail = _joined(f"{_of(event, 'attempt_id')} {status}", [_of(event, "reason")])
    return "result", "plain" if status == "accepted" else "warn", detail


def _join(event: Event) -> Told:
    state = _of(event, "state")
    facts = [_of(event, "decision")] if event.get("decision") else []
    if event.get("missing"):
        facts.append(f"missing {', '.join(map(str, event['missing']))}")
    conflicts = [str(each.get("subject", "")) for each in event.get("conflicts") or ()]
    facts += [f"about {subject}" for subject in conflicts if state == "conflict"]
    tone: Tone = "good" if state in _GOOD else "bad" if state == "missing" else "warn"
    return "join", tone, _joined(f"{_of(event, 'join_id')} {state}", facts)


def _candidate(event: Event) -> Told:
    files = ", ".join(map(str, event.get("files") or ()))
    return "candidate", "plain", _joined(f"{_of(event, 'revision')[:12]} of {_of(event, 'attempt_id')}", [files])


def _receipt(event: Event) -> Told:
    passed = event.get("passed") is True
    code = _of(event, "exit_code")
    how = "passed" if passed else f"failed with exit code {code}" if code else "failed"
    # Without an exit code it was ended, or could not be run: the output says why.
    facts = [] if passed or code else [_of(event, "output").strip().rpartition("\n")[2]]
    told = _joined(f"{_of(event, 'name')} {how} on {_of(event, 'revision')[:12]}", facts)
    return "receipt", "good" if passed else "bad", told


def _verdict(event: Event) -> Told:
    verdict, counted = _of(event, "verdict"), _of(event, "counted_as")
    facts = [_of(event, name) for name in ("failed_criterion", "reason") if event.get(name)]
    return "verdict", _tone(counted), _joined(f"{verdict}, counted as {counted}", facts)


def _plan(event: Event) -> Told:
    return "new plan", "warn", _joined(f"epoch {_of(event, 'plan_epoch')}", [_of(event, "reason")])


def _handoff(event: Event) -> Told:
    detail = f"{_of(event, 'from_task')} to {_of(event, 'to_task')} {_of(event, 'state')}"
    return "hand-off", "warn" if event.get("state") == "rejected" else "plain", _joined(detail, [_of(event, "reason")])


_WORDS: dict[str, Callable[[Event], Told]] = {
    "avenor.manifest.start": _start,
    "avenor.manifest.end": _end,
    "avenor.task": _task,
    "avenor.lease": _lease,
    "avenor.budget": _budget,
    "avenor.authority": _authority,
    "avenor.result": _result,
    "avenor.join": _join,
    "avenor.candidate": _candidate,
    "avenor.receipt": _receipt,
    "avenor.verdict": _verdict,
    "avenor.plan": _plan,
    "avenor.handoff": _handoff,
}


def _of(event: Event, name: str) -> str:
    value = event.get(name)
    return "" if value is None else str(value)


def _joined(text: str, facts: list[str]) -> str:
    return ": ".join([text, *filter(None, facts)])


def _tone(word: object) -> Tone:
    return "good" if word in _GOOD else "bad"
