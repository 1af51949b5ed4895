"""Carries out a schedule against a real supervisor, and gathers what its client was told.

Each step waits for what can be observed, never for time: where a process dies within a step is what a schedule says by
arming a place. What is told here is judged in `invariants`.
"""

import contextlib
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from avenor.host.identity import ProcessId, is_alive, signal_process
from avenor.host.procs import ProcsFile
from avenor.host.tree import tagged, tree_tag
from avenor.runtimes.environment import RUNTIME_ID
from tests.chaos import rehearsed, rehearsed_manifest
from tests.chaos.evidence import Answered, Evidence, Prompted, Spawned, write_evidence
from tests.chaos.invariants import check_place
from tests.chaos.manifest_invariants import look_at_checkout
from tests.chaos.schedules import MANIFESTS, PHASED, UNANSWERED, Schedule, Step
from tests.chaos.supervisors import ChaosClient, Stuck, Supervisors, wait_for
from tests.chaos.watching import Watched, watch
from tests.e2e.harness import Place
from tests.helpers import kill_each

_INTERNAL_ERROR: Final = -32603
_MOST_AGENTS: Final = {"single": 1, "loop": 1, "team": len(rehearsed.TEAM_PHASES), "manifest": 2}
# The first zygote, if it was still loading when its supervisor was killed, finds out only when it has loaded.
_GONE_SECONDS: Final = 20.0


class Result(msgspec.Struct, kw_only=True):
    """What a schedule came to.

    Attributes:
        problems: What is broken; none is well.
        hits: How often each place was reached.
        killed: How often somebody was killed there.
        done: How many steps of each kind there were, kills by their target.
        kept: Where the files are, when something is broken.
    """

    problems: list[str]
    hits: Counter[str]
    killed: Counter[str]
    done: Counter[str]
    runs: int
    starts: int
    kept: str | None = None


class _Spawn(msgspec.Struct, kw_only=True):
    """A spawn that has no answer yet."""

    name: str
    params: dict[str, Any]
    request_id: int | None = None


def run_schedule(schedule: Schedule, *, can_resume: bool, environ: Mapping[str, str] | None = None) -> Result:
    """Carry out a schedule and judge it.

    Args:
        schedule: What to do.
        can_resume: Whether spawns may say `on_crash`.
        environ: More variables for the supervisors.
    """
    place = Place(Path(tempfile.mkdtemp(prefix="chaos", dir="/tmp")))
    try:
        driver = _Driver(place, schedule, can_resume=can_resume, environ=environ or {})
        try:
            driver.run()
            problems = check_place(place.path)
        except Stuck as stuck:
            problems = [*driver.evidence.problems, *driver.supervisors.problems, f"stuck: {stuck}"]
            write_evidence(place.path, driver.evidence)
        kept = _keep(place, schedule) if problems else None
        return driver.result(problems, kept)
    finally:
        place.clean_up()


def _keep(place: Place, schedule: Schedule) -> str:
    """Move the files to where they stay; what lives on there is ended by the place."""
    kept = f"/tmp/chaos-kept-{schedule.seed}-{schedule.number}-{os.urandom(2).hex()}"
    shutil.copytree(place.path, kept, ignore=_ignore_sockets)
    return kept


def _ignore_sockets(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name.endswith(".sock") or not os.path.exists(os.path.join(folder, name))]


def _is_dead(process: ProcessId) -> bool:
    return not is_alive(process)


class _Driver:
    def __init__(self, place: Place, schedule: Schedule, *, can_resume: bool, environ: Mapping[str, str]) -> None:
        self.evidence = Evidence()
        flags = ["--max-runtimes", str(schedule.max_runtimes), "--log-format", "json"]
        self.supervisors = Supervisors(place, flags, environ)
        self._place = place
        self._schedule = schedule
        self._can_resume = can_resume
        self._client: ChaosClient | None = None
        self._spawns: dict[str, _Spawn] = {}
        self._subscribed: set[str] = set()
        self._done: Counter[str] = Counter()
        self._prompts = 0
        self._is_harmed = False
        rehearsed.write_files(place.work)
        if any(step.what in MANIFESTS for step in schedule.steps):
            rehearsed_manifest.write_repository(place.path)
            self.evidence.checkout = look_at_checkout(place.path)

    def run(self) -> None:
        """Do the steps, and bring everything to its end.

        Raises:
            Stuck: Something did not happen.
        """
        for step in self._schedule.steps:
            self._do(step)
            if step.settled:
                self._settle_down()
        self._finish()
        self.evidence.problems += self.supervisors.problems
        write_evidence(self._place.path, self.evidence)

    def result(self, problems: list[str], kept: str | None) -> Result:
        """What it came to."""
        return Result(
            problems=problems,
            hits=self._places("hits"),
            killed=self._places("killed"),
            done=self._done,
            runs=len(watch(self.supervisors.state)),
            starts=self.supervisors.starts,
            kept=kept,
        )

    # ---- steps

    def _do(self, step: Step) -> None:
        doers: dict[str, Callable[[Step], None]] = {
            "spawn": self._spawn,
            "fence": self._fence,
            "prompt": self._prompt,
            "interrupt": self._prompt,
            "open": lambda step: self._open(f"r{step.run}"),
            "answer": self._answer,
            "cancel": self._cancel,
            "kill": self._kill,
            "arm": lambda step: (self.supervisors.failpoints / "kill" / step.what).touch(),
            "reconnect": lambda step: self._reconnect(),
            "restart": self._restart,
        }
        self._done[f"kill {step.what}" if step.do == "kill" else step.do] += 1
        self._is_harmed |= step.do in ("kill", "arm", "fence", "restart", "cancel")
        doers[step.do](step)

    def _spawn(self, step: Step) -> None:
        spawn = self._send_spawn(step)
        if step.wait != "none":
            self._wait_accepted(spawn)

    def _wait_accepted(self, spawn: _Spawn) -> None:
        wait_for(f"the spawn of {spawn.name} is answered, or waits", lambda: self._is_answered_or_waits(spawn))

    def _fence(self, step: Step) -> None:
        """A child that is slow to start, and a supervisor that dies meanwhile: only one of them may write an end."""
        client = self._connected()
        if client is None:
            return
        held = self.supervisors.failpoints / "hold" / "runtime.before_lock"
        held.touch()
        try:
            before = self._places("hits")["runtime.before_lock"]
            spawn = self._send_spawn(msgspec.structs.replace(step, wait="started", key=False))
            came = wait_for(f"{spawn.name} is started, or waits", lambda: self._is_held_or_waits(spawn, before))
            if came != "held":
                return
            self.supervisors.kill()
            self._lose()
            wait_for(f"the fate of {spawn.name} is decided", lambda: self._is_decided(spawn.name, before + 1))
        finally:
            held.unlink()

    def _prompt(self, step: Step) -> None:
        watched = self._find(step.run)
        if watched is None:
            return
        self._prompts += 1
        text = f"{step.what} number {self._prompts}"
        method, how = ("prompt", {}) if step.do == "prompt" else ("interrupt_and_prompt", {"keep_queue": True})
        if self._ask(method, runtime_id=watched.id, text=text, force=True, **how) is not None:
            self.evidence.prompted.append(Prompted(runtime_id=watched.id, text=text))

    def _open(self, name: str) -> None:
        for gate in self._gates(name):
            gate.touch()

    def _gates(self, name: str) -> list[Path]:
        """The files that the agents of a run wait for, if it is one of a loop or team, and if it is of a manifest."""
        gates = [rehearsed.gate(self._place.work, name)]
        return [*gates, rehearsed_manifest.gate_of(self._place.path, name)] if self.evidence.checkout else gates

    def _answer(self, step: Step) -> None:
        watched = self._find(step.run)
        pending = [] if watched is None else watched.snapshot().permissions
        if watched is None or not pending:
            return
        chosen = {"request_id": pending[0].request_id, "option_id": step.what}
        if self._ask("answer_permission", runtime_id=watched.id, force=True, **chosen) is not None:
            self.evidence.answered.append(Answered(runtime_id=watched.id, **chosen))

    def _cancel(self, step: Step) -> None:
        watched = self._find(step.run)
        if watched is None:
            return
        if step.what != UNANSWERED:
            self._cancel_runtime(watched)
        elif (client := self._connected()) is not None:
            with contextlib.suppress(OSError):  # dead: then it was not even sent
                client.send("cancel", runtime_id=watched.id, force=True)

    def _is_cancelled_or_over(self, runtime_id: str) -> bool:
        """Cancels what has not ended; False if that had no answer, as from one that has died of a place just then."""
        watched = next(each for each in watch(self.supervisors.state) if each.id == runtime_id)
        return watched.has_ended or self._cancel_runtime(watched)

    def _cancel_runtime(self, watched: Watched) -> bool:
        """Cancel; once that is answered, nothing that was started may be alive. False if it is not."""
        result = self._ask("cancel", runtime_id=watched.id, force=True)
        if result is None:
            return False
        self.evidence.cancelled.append(watched.id)
        if result["left"]:
            self.evidence.problems.append(f"{watched.id}: cancel left {result['left']}")
        if commands := self._living(watched):
            self.evidence.problems.append(f"{watched.id}: cancel was answered, and there live {commands}")
        return True

    def _living(self, watched: Watched) -> list[str]:
        """What a run has started, and lives; in a sandbox there is only the mark of the process that has started it."""
        ours, process = self._place.processes(), watched.directory.read_process()
        marks = [(RUNTIME_ID, watched.id)]
        if process is not None:
            marks.append(tree_tag(process.pid, process.start_ticks))
        pids = {each.id.pid for name, value in marks for each in tagged(name, value)}
        return [f"{pid} {ours[pid]}" for pid in sorted(pids & ours.keys())]

    def _kill(self, step: Step) -> None:
        if step.what == "supervisor":
            self.supervisors.kill()
            self._lose()
        elif step.what == "machine":
            self.supervisors.kill()
            wait_for("everything is dead", self._kill_all)
            self._lose()
        elif step.what == "zygote":
            kill_each(self.supervisors.zygotes())
        elif (watched := self._find(step.run)) is not None:
            self._kill_in(watched, step.what)

    def _kill_all(self) -> bool:
        """One round of it; True when nothing is left."""
        pids = list(self._place.processes())
        kill_each(pids)
        return not pids

    def _kill_in(self, watched: Watched, what: str) -> None:
        if what == "runtime":
            process = watched.directory.read_process() if watched.is_alive else None
            victims: list[ProcessId] = [] if process is None else [process]
        else:
            victims = [started.id for started in ProcsFile(watched.directory.procs_path).read()]
        for victim in victims:
            if signal_process(victim, signal.SIGKILL):
                wait_for("a killed process is dead", partial(_is_dead, victim))

    def _restart(self, _step: Step) -> None:
        if self._ask("shutdown", mode="detach") is not None:
            self.supervisors.wait_exit()
            self._lose()
            self._connected()

    # ---- the connection

    def _connected(self) -> ChaosClient | None:
        """The connection, made anew where it is lost; None if it was lost again at once."""
        if self._client is not None and not self.supervisors.is_up():
            self._lose()
        if self._client is None:
            self._client = self.supervisors.connect()
            self._subscribed.clear()
            self._subscribe()
            for spawn in list(self._spawns.values()):  # an answer was lost: asked again by its key
                self._transmit(spawn)
        return self._client

    def _reconnect(self) -> None:
        self._absorb()
        if self._client is not None:
            self._client.close()
            self._client = None
            self._drop_keyless()
        self._connected()

    def _lose(self) -> None:
        """The other end is dead: takes what it has still said."""
        client = self._client
        if client is None:
            return
        wait_for("the supervisor whose connection broke is dead", lambda: not self.supervisors.is_up())
        client.drain()
        self._absorb()
        client.close()
        self._client = None
        self._drop_keyless()

    def _drop_keyless(self) -> None:
        """Without a key a spawn cannot be asked for again: nobody knows whether it was accepted."""
        self._spawns = {name: spawn for name, spawn in self._spawns.items() if spawn.params.get("key")}

    def _ask(self, method: str, **params: Any) -> Any:
        """The result of a call; None if it was refused, or the supervisor has died over it."""
        client = self._connected()
        if client is None:
            return None
        try:
            answer = client.ask(method, **params)
        except TimeoutError:
            raise Stuck(f"{method} {params} was not answered") from None
        except (EOFError, OSError):
            self._lose()
            return None
        self._absorb()
        if "error" in answer:
            self._judge_error(method, answer["error"])
            return None
        return answer["result"]

    def _judge_error(self, method: str, error: dict[str, Any]) -> None:
        if error["code"] == _INTERNAL_ERROR:
            self.evidence.problems.append(f"{method} was answered with {error}")

    def _absorb(self) -> None:
        """Note what has come: events, and answers to spawns."""
        client = self._client
        if client is None:
            return
        for event in client.events:
            self.evidence.events.setdefault(event["runtime_id"], []).append(event)
        client.events.clear()
        for spawn in list(self._spawns.values()):
            if spawn.request_id is not None and client.has_answer(spawn.request_id):
                del self._spawns[spawn.name]
                self._note_spawned(spawn, client.answer(spawn.request_id))

    def _subscribe(self) -> None:
        """Ask for the events of every runtime that there is, after the last one that has come."""
        for watched in watch(self.supervisors.state):
            if watched.id not in self._subscribed:
                self._subscribed.add(watched.id)
                seen = self.evidence.events.get(watched.id, [])
                after = seen[-1]["seq"] if seen else 0
                self._ask("subscribe", runtime_id=watched.id, replay=True, after_seq=after, on_lag="disk")

    # ---- spawns

    def _send_spawn(self, step: Step) -> _Spawn:
        name = f"r{step.run}"
        params: dict[str, Any] = {
            **self._work_params(step.what),
            "label": name,
            "wait": "session" if step.wait == "session" else "started",
            "env": {rehearsed.NAME: name, rehearsed.SLEEP: self._sleep(step.run)},
        }
        if step.key:
            params["key"] = f"key-{name}"
        if self._can_resume:
            params["on_crash"] = step.on_crash
        spawn = _Spawn(name=name, params=params)
        if self._connected() is not None:
            self._spawns[name] = spawn
            self._transmit(spawn)
        return spawn

    def _work_params(self, kind: str) -> dict[str, Any]:
        """What a run of this kind does, and where."""
        if kind in MANIFESTS:
            return rehearsed_manifest.spawn_params(self._place.path, kind)
        params = {"dir": str(self._place.work), "backend": "scripted", "script": rehearsed.SCRIPT}
        if kind in PHASED:
            return {**params, f"{kind}_file": rehearsed.LOOP if kind == "loop" else rehearsed.TEAM}
        return {**params, "prompt": f"{kind} at first"}

    def _sleep(self, run: int) -> str:
        return f"{os.getpid()}{self._schedule.number:03}{run}"

    def _transmit(self, spawn: _Spawn) -> None:
        if self._client is not None:  # it may have been lost again at once
            with contextlib.suppress(OSError):  # dead: whoever waits for the answer finds out
                spawn.request_id = self._client.send("spawn", **spawn.params)

    def _is_answered_or_waits(self, spawn: _Spawn) -> bool:
        listed = self._ask("list")
        if listed is None or spawn.name not in self._spawns:
            # Answered, or nobody is left to answer; with a key it was asked for again by now.
            return spawn.name not in self._spawns
        return any(each["label"] == spawn.name and each["status"] == "queued" for each in listed)

    def _is_held_or_waits(self, spawn: _Spawn, before: int) -> str | None:
        if self._places("hits")["runtime.before_lock"] > before:
            return "held"
        return "not held" if self._is_answered_or_waits(spawn) else None

    def _is_decided(self, name: str, before: int) -> bool:
        """The next supervisor has ended it, or has started another process for it."""
        listed = self._list()
        is_listed = any(each["label"] == name and each["status"] in ("ended", "queued") for each in listed)
        return is_listed or self._places("hits")["runtime.before_lock"] > before

    def _note_spawned(self, spawn: _Spawn, answer: dict[str, Any]) -> None:
        if "result" in answer:
            runtime_id = answer["result"]["runtime_id"]
            key = spawn.params.get("key")
            self.evidence.spawned.append(Spawned(run=spawn.name, runtime_id=runtime_id, key=key))
            return
        self._judge_error("spawn", answer["error"])
        if not self._is_harmed:
            self.evidence.problems.append(f"the spawn of {spawn.name} failed, and nothing was done to it: {answer}")

    def _list(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] | None = self._ask("list")
        return listed or []

    # ---- waiting

    def _settle_down(self) -> None:
        """Return when no run moves: each waits for a step, has ended, or is dead while nobody is there to notice."""
        if self.supervisors.is_up():
            for spawn in list(self._spawns.values()):
                self._wait_accepted(spawn)
        try:
            wait_for("all runs stand still", self._all_stand_still)
        except Stuck as stuck:
            moving = [watched for watched in watch(self.supervisors.state) if not self._stands_still(watched)]
            raise Stuck(f"{stuck}: {'; '.join(watched.describe() for watched in moving)}") from None
        for watched in watch(self.supervisors.state):
            alive = watched.agents()
            if len(alive) > (0 if watched.has_ended else _MOST_AGENTS[watched.kind]):
                self.evidence.problems.append(f"{watched.id} ({watched.kind}) has the agents {alive}")

    def _all_stand_still(self) -> bool:
        return all(self._stands_still(watched) for watched in watch(self.supervisors.state))

    def _stands_still(self, watched: Watched) -> bool:
        is_alive = watched.is_alive
        if watched.has_ended:
            return not is_alive
        if is_alive:
            return watched.is_still(gate_is_open=self._gates(watched.name)[-1].exists())
        if not self.supervisors.is_up():
            return True
        listed = self._list()
        return any(each["runtime_id"] == watched.id and each["status"] == "queued" for each in listed)

    def _find(self, run: int) -> Watched | None:
        """The runtime of a run, if it was ever accepted."""
        return next((each for each in watch(self.supervisors.state) if each.name == f"r{run}"), None)

    def _places(self, file: str) -> Counter[str]:
        path = self.supervisors.failpoints / file
        lines = path.read_text().splitlines() if path.exists() else []
        return Counter(line.split()[0] for line in lines)

    # ---- the end

    def _finish(self) -> None:
        """From here on nobody is killed: a last supervisor ends everything, and is asked what it knows."""
        for armed in (self.supervisors.failpoints / "kill").iterdir():
            armed.unlink(missing_ok=True)
        self._settle_down()
        self._is_harmed = True  # a spawn that still waits for a place will fail now
        if self._schedule.ending == "graceful":
            self._shut_down()
        else:
            for watched in watch(self.supervisors.state):
                wait_for(f"the cancel of {watched.id} is answered", partial(self._is_cancelled_or_over, watched.id))
        wait_for("the client has heard of every end", self._has_heard_all)
        self.evidence.listed = self._list()
        self._shut_down()
        with contextlib.suppress(Stuck):
            wait_for("no process is left", lambda: not self._place.processes(), _GONE_SECONDS)
        self.evidence.processes = [f"{pid} {command}" for pid, command in self._place.processes().items()]

    def _shut_down(self) -> None:
        # One that has claimed its kill before all were taken back may die of it only now.
        wait_for("the last supervisor answers", lambda: self._ask("ping") is not None)
        if self._ask("shutdown", mode="graceful") is None:
            raise Stuck("the last supervisor did not take a shutdown")
        self.supervisors.wait_exit()
        if self._client is not None:
            self._client.drain()
        self._absorb()
        unanswered = [name for name, spawn in self._spawns.items() if spawn.request_id is not None]
        if unanswered:
            self.evidence.problems.append(f"the supervisor has left without an answer to the spawns of {unanswered}")
        self._lose()

    def _has_heard_all(self) -> bool:
        if self._ask("ping") is None:
            return False
        self._subscribe()
        heard = {id for id, events in self.evidence.events.items() if events and events[-1]["event"] == "run.end"}
        return all(watched.id in heard for watched in watch(self.supervisors.state))
