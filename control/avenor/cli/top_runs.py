"""What `avenor top` knows of the runs of a server, kept up to date by their events; without the connection.

An event tells which run has changed, and its snapshot is asked for again: the server's fold is the one that counts. Of
what only adds text, the time is noted and nothing asked.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import msgspec

from avenor.cli.listing import MEMBERS
from avenor.cli.untyped import list_in, object_in
from avenor.control.stream import Session
from avenor.protocol.errors import AvenorError
from avenor.protocol.methods import History, HistoryParams, ListParams, SubscribeParams, Target
from avenor.protocol.snapshot import COUNTED_ONLY

Snapshot = dict[str, Any]
Key = str | None

# What a look at one run shows and keeps of its events.
EVENTS_KEPT: Final = 200
_TEXT_LIMIT_CHARS: Final = 500
# As much as the MCP tools give of one event.
_EVENT_LIMIT_BYTES: Final = 32 * 1024
_STARTS_AND_ENDS: Final = frozenset({"run.start", "run.end"})


class _Head(msgspec.Struct, frozen=True):
    event: str
    seq: int
    ts: int
    runtime_id: Key = None


_decode_head: Final = msgspec.json.Decoder(_Head).decode


class Runs:
    """The runs of one server, over one connection.

    It asks one thing at a time. `next_request` is to be called, and what it gives sent, after `start` and after each
    `feed`.

    Attributes:
        known: The snapshots, by runtime id, in the server's order.
        has_changed: Something that is shown has changed since the caller last set this to False.
        is_listed: The first list is there.
        events: The last events of the run that is looked at: number and line.
    """

    def __init__(self) -> None:
        self.known: dict[Key, Snapshot] = {}
        self.has_changed = True
        self.is_listed = False
        self.events: deque[tuple[int, bytes]] = deque(maxlen=EVENTS_KEPT)
        self._looked_at: Key = None
        self._looks = False
        self._wants_history = False
        self._wants_list = True
        self._is_subscribed = False
        self._stale: dict[Key, None] = {}
        self._asked: tuple[str, Key] | None = None
        self._session = Session(self._take_notice)

    def restart(self) -> None:
        """Forget the connection, for a new one; what is known stays until the new one has told."""
        self._session = Session(self._take_notice)
        self._asked = None
        self._is_subscribed = False
        self._wants_list = True
        self._wants_history = self._looks
        self._stale.clear()

    def read_again(self) -> None:
        """Ask for the whole list again."""
        self._wants_list = True

    def look_at(self, key: Key) -> None:
        """Gather the events of a run from now on, the latest ones first."""
        self._looked_at, self._looks, self._wants_history = key, True, True
        self.events.clear()

    def look_away(self) -> None:
        """Gather events no longer."""
        self._looks = self._wants_history = False
        self.events.clear()

    def next_request(self) -> bytes | None:
        """What to send now, if there is anything to ask and nothing is asked."""
        if self._asked is not None:
            return None
        if not self._is_subscribed:
            # Before the list: what happens in between is told twice rather than never.
            return self._ask("subscribe", None, SubscribeParams(on_lag="drop"))
        if self._wants_list:
            self._wants_list = False
            self._stale.clear()
            return self._ask("list", None, ListParams(fields=list(MEMBERS)))
        if self._wants_history:
            self._wants_history = False
            seq = self.known.get(self._looked_at, {}).get("latest_seq", 0)
            params = HistoryParams(runtime_id=self._looked_at, after_seq=max(0, seq - EVENTS_KEPT), limit=EVENTS_KEPT)
            return self._ask("history", self._looked_at, params)
        if self._stale:
            key = next(iter(self._stale))
            del self._stale[key]
            return self._ask("status", key, Target(runtime_id=key))
        return None

    def feed(self, data: bytes) -> None:
        """Take what came.

        Raises:
            AvenorError: The server refused what cannot be done without.
        """
        self._session.feed(data)
        while self._session.events:
            self._take_event(self._session.events.popleft())
        asked = self._asked
        if asked is None:
            return
        try:
            answer = self._session.take_answer()
        except AvenorError as error:
            self._asked = None
            self._take_refusal(*asked, error)
            return
        if answer is not None:
            self._asked = None
            self._take_answer(*asked, answer)

    def _ask(self, method: str, key: Key, params: object) -> bytes:
        self._asked = (method, key)
        return self._session.request(method, params)

    def _take_answer(self, method: str, key: Key, answer: msgspec.Raw) -> None:
        if method == "subscribe":
            self._is_subscribed = True
        elif method == "list":
            listed = msgspec.json.decode(answer, type=list[dict[str, Any]])
            self.known = {snapshot["runtime_id"]: _slim(snapshot) for snapshot in listed}
            self.is_listed = self.has_changed = True
        elif method == "status":
            self.known[key] = _slim(msgspec.json.decode(answer, type=dict[str, Any]))
            self.has_changed = True
        elif self._looks and key == self._looked_at:
            self._take_history(msgspec.json.decode(answer, type=History).events)

    def _take_refusal(self, method: str, key: Key, error: AvenorError) -> None:
        """One run that is not there any more is no reason to stop; any other refusal is."""
        if method not in ("status", "history"):
            raise error
        if method == "status":
            self.known.pop(key, None)
            self.has_changed = True

    def _take_history(self, events: list[msgspec.Raw]) -> None:
        """Put past events before those that have come meanwhile."""
        first = self.events[0][0] if self.events else None
        past = [_kept(bytes(line)) for line in events]
        together = [*(event for event in past if first is None or event[0] < first), *self.events]
        self.events.clear()
        self.events.extend(together)
        self.has_changed = True

    def _take_event(self, line: bytes) -> None:
        try:
            head = _decode_head(line)
        except msgspec.DecodeError:
            return  # from a newer version: what it changes comes with another event
        snapshot = self.known.get(head.runtime_id)
        if snapshot is not None:
            snapshot["updated_at"] = max(head.ts, snapshot["updated_at"] or 0)
            snapshot["latest_seq"] = max(head.seq, snapshot["latest_seq"])
        if head.event in _STARTS_AND_ENDS or snapshot is None:
            # Runs that wait for a place have no events yet, and of those that are forgotten nobody tells.
            self._wants_list = True
        elif head.event not in COUNTED_ONLY:
            self._stale[head.runtime_id] = None
        if self._looks and head.runtime_id == self._looked_at:
            self.events.append(_kept(line))
            self.has_changed = True

    def _take_notice(self, _notice: object) -> None:
        self._wants_list = True  # events were lost: what they were about is not known


def _slim(snapshot: Snapshot) -> Snapshot:
    kept = {name: snapshot.get(name) for name in MEMBERS}
    for name in ("label", "phase_label"):
        kept[name] = _short(kept[name])
    phases = map(object_in, list_in(snapshot.get("phases")))
    running = [phase for phase in phases if phase.get("state") == "running"]
    permission = snapshot.get("permission")
    asked = None
    if permission is not None:
        shown = object_in(permission)
        asked = {name: _short(shown.get(name)) or "" for name in ("request_id", "question", "tool")}
    several = len(list_in(snapshot.get("permissions")))
    return {
        **kept,
        "phases": [{"name": _short(phase.get("name")) or "", "state": "running"} for phase in running],
        "permission": asked,
        "permissions": [None] * several,
        "latest_seq": snapshot.get("latest_seq") or 0,
    }


def _kept(line: bytes) -> tuple[int, bytes]:
    """The number of an event and its line; of a huge one only what it is."""
    head = _decode_head(line)
    if len(line) > _EVENT_LIMIT_BYTES:
        line = msgspec.json.encode({"event": head.event, "seq": head.seq, "ts": head.ts, "omitted_bytes": len(line)})
    return head.seq, line


def _short(text: Any) -> str | None:
    return None if text is None else str(text)[:_TEXT_LIMIT_CHARS]
