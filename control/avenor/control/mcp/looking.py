"""Looking into a run: raw events, and a digest of what its sessions are at. Both are bounded."""

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from avenor.control.client import Client
from avenor.control.mcp.views import Events, Inspection, Speaker, ToolUse, pending_of, status_of
from avenor.protocol.events import decode_head
from avenor.protocol.snapshot import Snapshot

# What one answer may put before a model.
ANSWER_LIMIT_BYTES: Final = 128 * 1024
_EVENT_LIMIT_BYTES: Final = 32 * 1024
_PAGE_EVENTS: Final = 1000
_INSPECTED_EVENTS: Final = 1000
_TEXT_CHARS: Final = 4000
_PROMPT_CHARS: Final = 1000
_TITLE_CHARS: Final = 200
_TOOLS: Final = 20
_PLAN_ENTRIES: Final = 50
_SESSIONS: Final = 16


async def recent_events(client: Client, snapshot: Snapshot, names: list[str] | None, limit: int) -> Events:
    """The last events of these names, oldest first."""
    found: deque[bytes] = deque()
    end = snapshot.latest_seq
    while end > 0 and len(found) < limit and _size(found) < ANSWER_LIMIT_BYTES:
        start = max(0, end - _PAGE_EVENTS)
        page = [raw for raw in await _read(client, snapshot, start, end) if _is_wanted(raw, names)]
        found.extendleft(reversed(page[len(found) - limit :]))
        end = start
    while len(found) > 1 and _size(found) > ANSWER_LIMIT_BYTES:
        found.popleft()
    return _events(found, snapshot.latest_seq, snapshot.latest_seq, complete=True)


async def raw_tail(client: Client, snapshot: Snapshot, limit_bytes: int) -> list[bytes]:
    """The last lines of the log that fit, oldest first; none is cut."""
    found: deque[bytes] = deque()
    left, end = limit_bytes, snapshot.latest_seq
    while end > 0:
        start = max(0, end - _PAGE_EVENTS)
        for raw in reversed(await _read(client, snapshot, start, end)):
            left -= len(raw) + 1
            if left < 0:
                return list(found)
            found.appendleft(raw)
        end = start
    return list(found)


async def events_after(
    client: Client, snapshot: Snapshot, names: list[str] | None, after_seq: int, limit: int
) -> Events:
    """The events of these names that follow."""
    found: list[bytes] = []
    latest = snapshot.latest_seq
    while after_seq < latest:
        page = await client.history(snapshot.runtime_id, after_seq=after_seq, limit=_PAGE_EVENTS)
        latest = max(latest, page.latest_seq)
        if not page.events:
            break
        for raw in map(bytes, page.events):
            if _is_wanted(raw, names) and (len(found) == limit or _size(found) > ANSWER_LIMIT_BYTES):
                return _events(found, latest, after_seq, complete=False)
            after_seq = _seq(raw)
            if _is_wanted(raw, names):
                found.append(raw)
    return _events(found, latest, max(after_seq, 0), complete=True)


async def inspect(client: Client, snapshot: Snapshot) -> Inspection:
    """What the sessions of a run are at, from its last events."""
    start = max(0, snapshot.latest_seq - _INSPECTED_EVENTS)
    events = await _read(client, snapshot, start, snapshot.latest_seq)
    return Inspection(
        run_id=snapshot.run_id,
        label=snapshot.label if snapshot.label is not None else msgspec.UNSET,
        status=status_of(snapshot),
        agent_phase=snapshot.phase or msgspec.UNSET,
        agent_phase_label=snapshot.phase_label or msgspec.UNSET,
        sessions=digest(map(msgspec.json.decode, events)),
        permissions=[pending for p in snapshot.permissions if (pending := pending_of(p)) is not msgspec.UNSET],
        looked_at_seqs=[start + 1, snapshot.latest_seq] if snapshot.latest_seq else [],
    )


def digest(events: Iterable[dict[str, Any]]) -> list[Speaker]:
    """The sessions that spoke in these events, each with its prompt, text, tools and plan since its last turn began."""
    speakers: dict[str, Speaker] = {}
    tools: dict[tuple[str, str], ToolUse] = {}
    for event in events:
        session = event.get("session_id")
        if session and event["event"] in _FOLDED:
            speaker = speakers.setdefault(session, Speaker(session_id=session, phase=event.get("phase", msgspec.UNSET)))
            _fold(speaker, tools, event)
    return list(speakers.values())[-_SESSIONS:]


def _fold(speaker: Speaker, tools: dict[tuple[str, str], ToolUse], event: dict[str, Any]) -> None:
    """Takes what can be shown: content and plans are what the agent has sent, whatever their shape."""
    match event:
        case {"event": "turn.start", "text": text}:
            speaker.prompt, speaker.text, speaker.tools = text[:_PROMPT_CHARS], "", []
        case {"event": "agent.message_chunk", "content": {"text": text}}:
            speaker.text = (speaker.text + str(text))[-_TEXT_CHARS:]
        case {"event": "session.plan", "entries": [*entries]}:
            speaker.plan = [_plan_entry(entry) for entry in entries[:_PLAN_ENTRIES]]
        case {"toolCallId": call_id}:
            key = (str(speaker.session_id), call_id)
            use = tools.get(key)
            if use is None:
                use = tools[key] = ToolUse(title="", kind="other", status="pending")
                speaker.tools = [*speaker.tools, use][-_TOOLS:]
            use.title = str(event.get("title") or use.title)[:_TITLE_CHARS]
            use.kind = event.get("kind") or use.kind
            use.status = event.get("status") or use.status
        case _:
            pass


def _plan_entry(entry: Any) -> dict[str, Any]:
    """An entry as ACP has it: content, priority and status, all texts. Of another shape it is all content."""
    members: dict[str, Any] = entry if isinstance(entry, dict) else {"content": entry}  # pyright: ignore[reportUnknownVariableType]
    return {name: str(value)[:_TITLE_CHARS] for name, value in members.items()}


_FOLDED: Final = frozenset({"turn.start", "agent.message_chunk", "session.plan", "tool.call", "tool.call_update"})


async def _read(client: Client, snapshot: Snapshot, start: int, end: int) -> list[bytes]:
    """The events after `start` up to `end`; one answer may hold fewer than it was asked for, when they are large."""
    events: list[bytes] = []
    while start < end:
        page = await client.history(snapshot.runtime_id, after_seq=start, limit=end - start)
        # Where seqs are missing in the log, as after a full disk, so many events go beyond the end.
        found = [raw for raw in map(bytes, page.events) if _seq(raw) <= end]
        if not found:
            break
        events.extend(found)
        start = _seq(events[-1])
    return events


def _events(found: Iterable[bytes], latest: int, next_after: int, *, complete: bool) -> Events:
    return Events(
        events=[_shown(raw) for raw in found], latest_seq=latest, next_after_seq=next_after, complete=complete
    )


def _shown(raw: bytes) -> dict[str, Any]:
    if len(raw) <= _EVENT_LIMIT_BYTES:
        return msgspec.json.decode(raw, type=dict[str, Any])
    return {**msgspec.to_builtins(decode_head(raw)), "omitted_bytes": len(raw)}


def _is_wanted(raw: bytes, names: list[str] | None) -> bool:
    return names is None or decode_head(raw).event in names


def _seq(raw: bytes) -> int:
    return decode_head(raw).seq


def _size(found: Iterable[bytes]) -> int:
    return sum(min(len(raw), _EVENT_LIMIT_BYTES) for raw in found)
