"""`avenor await`: waits on a run, over restarts of its supervisor, and tells by its exit status what it came to."""

from __future__ import annotations

import json
from time import monotonic, sleep

from avenor.cli.commands import AWAIT
from avenor.cli.output import complain, dump, is_terminal, write_out, write_text
from avenor.cli.parsing import parse
from avenor.cli.refusal import refusal_text
from avenor.cli.socket_path import control_socket
from avenor.cli.untyped import list_in, object_in
from avenor.cli.wire import Connection, NoServer, SaidNo
from avenor.control.safetext import one_line, safe_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from avenor.cli.parsing import Values

    Snapshot = dict[str, Any]

DONE = 0
USAGE = 2
LOST = 3
FAILED = 10
TIMED_OUT = 11
KILLED = 12
BLOCKED = 13
BUDGET_EXHAUSTED = 14
PERMISSION_PENDING = 20
NOT_YET = 124

_NAMES = ("runtime_id", "run_id", "label", "status")

_WORDS = {
    DONE: "done",
    LOST: "lost",
    FAILED: "failed",
    TIMED_OUT: "timed out",
    KILLED: "killed",
    BLOCKED: "blocked",
    BUDGET_EXHAUSTED: "budget exhausted",
    PERMISSION_PENDING: "permission pending",
}
_BY_OUTCOME = {"DONE": DONE, "TIMEOUT": TIMED_OUT, "KILLED": KILLED, "BLOCKED": BLOCKED}
_BY_STOP_REASON = {"runtime_lost": LOST, "launch_lost": LOST, "budget_exhausted": BUDGET_EXHAUSTED}

# After a break: soon, then slower, since a supervisor that is being replaced needs a moment. Nothing tells when a
# socket takes connections again, so it is tried.
_RETRY_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0)
# How long to look for a supervisor that went away, where no --timeout says how long to wait at all.
_GONE_SECONDS = 60.0
# How much longer than asked for a server may take to say that the time is over, before it is taken for hung.
_HUNG_SECONDS = 2.0
# Thirty years are as good as any longer time, which neither a socket nor the protocol could count.
_LONGEST_SECONDS = 1e9


class GivenUp(Exception):
    """There is nothing to wait for (any more), or it is not clear for what; `status` is the exit status for that."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def await_run(words: Sequence[str]) -> int:
    """Run `avenor await` with these words and give its exit status.

    Raises:
        UsageError: They make no sense.
        HelpAsked: They ask for help.
    """
    values = parse(AWAIT, words)
    try:
        return _Wait(values).run()
    except GivenUp as error:
        complain(f"avenor await: {error}")
        return error.status
    except NoServer as error:
        complain(f"avenor await: {error}")
        return LOST
    except SaidNo as refusal:
        complain(refusal_text(AWAIT, refusal.error, as_json=values.switch("json")))
        return LOST


def exit_status(snapshot: Snapshot) -> int | None:
    """What a snapshot comes to; None if the run goes on and asks for nothing."""
    if snapshot.get("status") in ("idle", "ended"):
        by_reason = _BY_STOP_REASON.get(str(snapshot.get("stop_reason")))
        return _BY_OUTCOME.get(str(snapshot.get("outcome")), FAILED) if by_reason is None else by_reason
    return PERMISSION_PENDING if snapshot.get("pending_permission") else None


class _Wait:
    """One wait, over as many connections as it takes."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._socket = control_socket(values.text("socket"))
        timeout = values.raw("timeout")
        self._deadline = monotonic() + min(timeout, _LONGEST_SECONDS) if isinstance(timeout, float) else None
        self._until = values.text("until") or "attention"
        # Which run is meant is settled once: its label may be another's when the supervisor has been replaced.
        self._found: Snapshot | None = None
        self._was_connected = False
        self._away_since: float | None = None
        self._attempts = 0

    def run(self) -> int:
        """Wait, print, and give the exit status.

        Raises:
            GivenUp: There is no such run, it is gone, or so is the supervisor.
            NoServer: There was none to begin with: a socket that nobody serves is more likely a wrong one.
            SaidNo: The server refused.
        """
        while True:
            try:
                with self._dial() as connection:
                    self._was_connected = True
                    return self._tell(self._ask(connection))
            except NoServer as error:
                if not self._was_connected:
                    raise
                self._pause(error)
            except SaidNo as refusal:
                if not _is_farewell(refusal):
                    raise
                self._pause(refusal)

    def _ask(self, connection: Connection) -> Snapshot:
        """The snapshot that ends the wait, its output complete if that is wanted."""
        found = self._find(connection)
        target = {} if found["runtime_id"] is None else {"runtime_id": found["runtime_id"]}
        left = self._left()
        limit = {} if left is None else {"timeout_ms": round(left * 1000)}
        wanted = {"complete_output": True} if self._values.switch("print_output") else {}
        # The server looks, waits and gives the output in one step: nothing can happen in between, not even its own end.
        snapshot = object_in(json.loads(connection.call("wait", {**target, "until": self._until, **limit, **wanted})))
        if wanted and snapshot.get("final_output_truncated"):  # too long for a snapshot
            return {**snapshot, **_whole_output(connection, target)}
        return snapshot

    def _pause(self, error: NoServer | SaidNo) -> None:
        """Let the supervisor come back."""
        if self._left() == 0:
            raise GivenUp(f"the time is over, and the supervisor is away: {error}", NOT_YET) from error
        if self._away_since is None:
            self._away_since = monotonic()
            self._attempts = 0
            complain("avenor await: the supervisor went away; waiting for it to come back")
        left = self._left()
        if left is None and monotonic() - self._away_since >= _GONE_SECONDS:
            raise GivenUp(f"the supervisor has not come back: {error}", LOST) from error
        pause = _RETRY_SECONDS[min(self._attempts, len(_RETRY_SECONDS) - 1)]
        sleep(pause if left is None else min(pause, left))
        self._attempts += 1

    def _dial(self) -> Connection:
        left = self._left()
        return Connection(self._socket, timeout_seconds=None if left is None else left + _HUNG_SECONDS)

    def _find(self, connection: Connection) -> Snapshot:
        known = self._found
        if known is None:
            found = _find(connection, self._values.text("target") or "")
        else:
            target = {} if known["runtime_id"] is None else {"runtime_id": known["runtime_id"]}
            found = object_in(json.loads(connection.call("status", target)))
        if known is not None and found["run_id"] != known["run_id"]:
            message = f"another supervisor serves {self._socket} now, which does not know run {known['run_id']}"
            raise GivenUp(message, LOST)
        self._found = found
        if self._away_since is not None:
            self._away_since = None
            complain("avenor await: connected again")
        return found

    def _left(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - monotonic())

    def _tell(self, snapshot: Snapshot) -> int:
        status = exit_status(snapshot)
        if status == PERMISSION_PENDING and self._until == "done":
            status = None  # the time was over first
        if self._values.switch("json"):
            write_out(dump(snapshot, indent=2 if is_terminal(1) else None) + b"\n")
        elif self._values.switch("print_output") and status not in (None, PERMISSION_PENDING):
            _print(snapshot.get("final_output"))
        if status is None:
            who = snapshot["runtime_id"] or snapshot["run_id"]
            complain(f"avenor await: the time is over, and {one_line(who)} is {snapshot['status']}")
            return NOT_YET
        if not self._values.switch("json"):
            self._say(f"{_WORDS[status]}{_detail(snapshot, status)}")
        return status

    def _say(self, line: str) -> None:
        """One line for people; on stderr where stdout is for the agent's words."""
        if self._values.switch("print_output"):
            complain(line)
        else:
            write_text(line + "\n")


def _find(connection: Connection, name: str) -> Snapshot:
    """The run of this runtime id, run id or label.

    Raises:
        GivenUp: There is none, or several could be meant.
        SaidNo: The server refused for another reason.
    """
    try:
        return object_in(json.loads(connection.call("status", {"runtime_id": name})))
    except SaidNo as refusal:
        if _reason(refusal) != "no_such_runtime":
            raise
    # Only several that live have one name; those that have ended do not stand in each other's way.
    listed = map(object_in, list_in(json.loads(connection.call("list", {"fields": _NAMES}))))
    named = [each for each in listed if name in (each["run_id"], each["label"]) and each["status"] != "ended"]
    if named:
        ids = ", ".join(one_line(str(each["runtime_id"])) for each in named)
        raise GivenUp(f"{len(named)} runtimes are called {name!r}: name one of them by its id ({ids})", USAGE)
    raise GivenUp(f"there is no runtime, run or label {name!r} at {connection.path}: nothing to wait for", LOST)


def _whole_output(connection: Connection, target: dict[str, Any]) -> dict[str, Any]:
    """The members of a snapshot whose output is complete; none, and a word about it, where the server gives it no more.

    What the run came to is known by then, and is not given up for the rest of what it said.
    """
    try:
        result = object_in(json.loads(connection.call("result", target)))
    except (NoServer, SaidNo) as error:
        complain(f"avenor await: only the beginning of the final reply is known: {error}")
        return {}
    return {"final_output": result.get("final_output"), "final_output_truncated": False}


def _print(output: str | None) -> None:
    if output:
        shown = safe_text(output) if is_terminal(1) else output
        write_text(shown if shown.endswith("\n") else shown + "\n")


def _is_farewell(refusal: SaidNo) -> bool:
    """Whether the server refused because it closes, as before an upgrade: its successor will answer."""
    return _reason(refusal) == "closed"


def _reason(refusal: SaidNo) -> object:
    return object_in(refusal.error.get("data")).get("reason")


def _detail(snapshot: Snapshot, status: int) -> str:
    if status == PERMISSION_PENDING:
        asked = object_in(snapshot.get("permission"))
        options = ", ".join(str(option.get("optionId")) for option in map(object_in, list_in(asked.get("options"))))
        return one_line(f": {asked.get('request_id')} {asked.get('question') or asked.get('tool')} [{options}]")
    facts = [str(fact) for fact in (snapshot.get("stop_reason"), snapshot.get("reason")) if fact]
    return one_line(": " + ": ".join(facts)) if facts and status != DONE else ""
