"""Runs in every state under one supervisor, and whoever follows them: what must be as it was under the next one."""

import contextlib
import functools
import json
import sys
from pathlib import Path
from typing import Any

from avenor.host.identity import read_stat
from tests.e2e.harness import ASK, WAIT_SECONDS, Client, Place, Stable, is_alive, read_log, say, steps
from tests.helpers import eventually_sync


class Watcher:
    """A client that follows every runtime, and what it has had of each; it goes on where it was, on the next server."""

    def __init__(self, stable: Stable) -> None:
        self.client = stable.connect()
        self.client.call("subscribe", on_lag="disk")
        self._had: list[dict[str, Any]] = []

    def lose(self) -> None:
        """Take what the server has still sent before it died."""
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                self.client.take()
        self._had += self.client.events

    def go_on(self, stable: Stable) -> None:
        """Subscribe again, after the last event that was had of each, if any; no server may have forgotten any."""
        self.client = stable.connect()
        last = {each["runtime_id"]: 0 for each in self.client.call("list")}
        last |= {event["runtime_id"]: event["seq"] for event in self._had}
        asked = [
            self.client.send("subscribe", runtime_id=runtime_id, after_seq=seq, on_lag="disk")
            for runtime_id, seq in last.items()
        ]
        assert [self.client.answer(each)["result"].get("reset") for each in asked] == [None] * len(asked)

    def of(self, runtime_id: str) -> list[dict[str, Any]]:
        """All that has come of one runtime, over whatever connection."""
        return [event for event in [*self._had, *self.client.events] if event["runtime_id"] == runtime_id]


class Company:
    """A run in each state, in a supervisor that is about to die.

    Attributes:
        gate: Those that wait for it go on when it is there.
        ids: The runtime of each state.
        before: Their snapshots, by id.
    """

    def __init__(self, place: Place, stable: Stable) -> None:
        self.place = place
        self.gate = place.work / "gate"
        self.client = stable.connect()
        self.watcher = Watcher(stable)
        self.ids: dict[str, str] = {}
        self._add_single_runs()
        self._add_phased_runs()
        for state in _SEEN:
            eventually_sync(functools.partial(self._is_at, stable, state), WAIT_SECONDS)
        self._begin_cancel(stable)
        self.before = {each["runtime_id"]: each for each in self.client.call("list")}
        self.processes = self._processes(stable)

    def answer_with_knowledge(self, client: Client, state: str) -> None:
        """A follow-up is answered by the agent's own memory of the turn before the restart."""
        runtime_id = self.ids[state]
        client.call("wait", runtime_id=runtime_id, until="done")
        client.call("prompt", runtime_id=runtime_id, text="again: what was it?")
        settled = client.call("wait", runtime_id=runtime_id, until="done")
        assert settled["session_id"] == self.before[runtime_id]["session_id"]
        assert f"{state} it" in client.call("result", runtime_id=runtime_id)["final_output"]

    def check_identity(self, stable: Stable, client: Client) -> None:
        """The same ids, runs and processes as before; nobody owns what a vanished client owned."""
        listed = {each["runtime_id"]: each for each in client.call("list")}
        assert {id: each["run_id"] for id, each in listed.items()} == {
            id: each["run_id"] for id, each in self.before.items()
        }
        assert self._processes(stable) == self.processes
        for state, runtime_id in self.ids.items():
            if state != "ending":
                pid, start_ticks = self.processes[runtime_id]
                found = read_stat(pid)
                assert found is not None
                assert (found.id.start_ticks, found.is_dead) == (start_ticks, False)
                assert (listed[runtime_id]["pid"], listed[runtime_id]["owner"]) == (pid, None)
            if state not in ("ending", "retry"):  # those two get on in a time of their own
                assert listed[runtime_id]["status"] == self.before[runtime_id]["status"]

    def check_logs(self, stable: Stable) -> None:
        """Each follower's events are the log, line by line: no gap and no repeat over the restart."""
        for runtime_id in self.ids.values():
            self.watcher.client.wait_event("run.end", runtime_id)
            log = read_log(stable.log_path(runtime_id))
            assert self.watcher.of(runtime_id) == log
            assert [event["seq"] for event in log] == list(range(1, len(log) + 1))

    def _add_single_runs(self) -> None:
        script = self.place.script(
            steps({"do": "recall"}, match="^again"),
            steps(say("Before."), {"do": "wait_for", "path": str(self.gate)}, say("After."), match="^turn"),
            steps(ASK, say("Allowed."), match="^permission"),
            steps({"do": "fail", "message": "overloaded", "retry_after": 4}, match="^retry", times=1),
            steps(say("Said.")),
            name="single.json",
        )
        for state in ("turn", "permission", "parked", "retry"):
            self._spawn(state, script=script, max_retries=2)
        waits = f"while ! test -e {self.gate}; do sleep 0.05; done"
        agent = f"sh -c '{waits}; exec {sys.executable} -m avenor.runtimes.scripted --script {script}'"
        self._spawn("handshake", backend="acp", agent_command=agent)
        hang = steps(say("Deaf."), {"do": "ignore_cancel"}, {"do": "hang"})
        deaf = self.place.script(hang, name="deaf.json", ignores=["cancel", "stdin_close"])
        self._spawn("ending", script=deaf)

    def _add_phased_runs(self) -> None:
        script = self.place.script(
            steps(say("Gated."), {"do": "wait_for", "path": str(self.gate)}, say("On."), match="gated"),
            steps(say("Quick.")),
            name="phased.json",
        )
        quick, gated = {"name": "quick", "prompt": "quick"}, {"name": "gated", "prompt": "gated"}
        last = {"name": "last", "prompt": "last"}
        configs = {
            "team": {"pre": [quick], "team": [{**quick, "name": "other"}, gated], "post": [last]},
            "loop": {"pre": [quick], "loop": [gated], "post": [last], "max_iterations": 2},
        }
        for kind, config in configs.items():
            path = self.place.path / f"{kind}.json"
            path.write_text(json.dumps(config))
            self._spawn(kind, prompt=None, script=script, **{f"{kind}_file": str(path)})

    def _spawn(self, state: str, **params: Any) -> None:
        chosen = {"prompt": f"{state} it", "wait": "started", **params}
        self.ids[state] = self.client.spawn(self.place, **chosen)["runtime_id"]

    def _is_at(self, stable: Stable, state: str) -> bool:
        return holds(stable.log_path(self.ids[state]), _SEEN[state])

    def _begin_cancel(self, stable: Stable) -> None:
        """Once a prompt is refused, the run is ending; the agent that hears nothing keeps it at that for seconds."""
        self.client.send("cancel", runtime_id=self.ids["ending"])
        answer = self.client.ask("prompt", runtime_id=self.ids["ending"], text="too late")
        assert answer["error"]["data"]["reason"] == "run_ending"
        assert is_alive(stable.runtime_pid(self.ids["ending"]))

    def _processes(self, stable: Stable) -> dict[str, tuple[int, int]]:
        found = {id: json.loads((stable.state / id / "process.json").read_text()) for id in self.ids.values()}
        return {id: (each["pid"], each["start_ticks"]) for id, each in found.items()}


# By state: what the log holds when a run is there.
_SEEN = {
    "turn": "Before.",
    "permission": "permission.request",
    "parked": '"turn.end"',
    "retry": "avenor.retry",
    "handshake": '"run.start"',
    "ending": "Deaf.",
    "team": "Gated.",
    "loop": "Gated.",
}


def holds(log: Path, text: str) -> bool:
    """Whether this is in a log that may not be there yet."""
    return log.exists() and text in log.read_text()
