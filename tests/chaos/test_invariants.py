"""The invariants: a place in which all is well has no problem, and each thing that is broken in it is named."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from avenor.host.rundir import RunDir
from avenor.protocol.outcomes import Outcome, render_sentinel
from avenor.protocol.spec import OnCrash, Record, RunSpec
from tests.chaos.evidence import Answered, Evidence, Prompted, Spawned, write_evidence
from tests.chaos.invariants import STATE, check_place

Break = Callable[["MadeUp"], None]

_LOG: list[dict[str, Any]] = [
    {"event": "run.start", "seq": 1},
    {"event": "turn.start", "seq": 2, "text": "at first"},
    {"event": "prompt.queued", "seq": 3, "text": "then"},
    {"event": "permission.response", "seq": 4, "request_id": "perm_1", "option_id": "once"},
    {"event": "turn.start", "seq": 5, "text": "then"},
    {"event": "avenor.phase.end", "seq": 6, "phase": "one", "iteration": 0, "exit_code": 0},
    {"event": "run.end", "seq": 7, "status": "DONE", "exit_code": 0, "stop_reason": "end_turn"},
]


class MadeUp:
    """What one run has left, as it should be; a test breaks a part of it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.directory = RunDir(place / STATE / "rt_1")
        self.log = [dict(event) for event in _LOG]
        self.text: str | None = None
        self.key: str | None = "key"
        self.on_crash: OnCrash = "fail"
        self.sentinel: str | None = render_sentinel(Outcome.of("end_turn", run_id="run"))
        self.tombstone = "STOPPED reason=shutdown pid=1 at=2026-01-01T00:00:00Z\n"
        self.evidence = Evidence(
            spawned=[Spawned(run="r0", runtime_id="rt_1", key="key")],
            prompted=[Prompted(runtime_id="rt_1", text="then")],
            answered=[Answered(runtime_id="rt_1", request_id="perm_1", option_id="once")],
            events={"rt_1": [dict(event) for event in _LOG]},
            listed=[_snapshot("rt_1")],
        )

    def end(self, **members: Any) -> None:
        """Give the log, and what a client heard, another end."""
        self.log[-1] = {**self.log[-1], **members}
        self.hear()

    def hear(self) -> None:
        """Let the client have heard what the log has."""
        self.evidence.events["rt_1"] = [dict(event) for event in self.log]

    def write(self) -> None:
        """Put it all into files."""
        self.directory.path.mkdir(parents=True)
        self.write_record(self.directory)
        lines = self.text if self.text is not None else "".join(json.dumps(event) + "\n" for event in self.log)
        self.directory.log_path.write_text(lines)
        if self.sentinel is not None:
            self.directory.sentinel_path.write_text(self.sentinel)
        (self.place / "s.sock.dead").write_text(self.tombstone)
        write_evidence(self.place, self.evidence)

    def write_record(self, directory: RunDir) -> None:
        """Put the record of a runtime into its directory."""
        record = Record(
            runtime_id=directory.path.name,
            run_id="run",
            spec=RunSpec(prompt="at first", sentinel_file=str(directory.sentinel_path)),
            prompt="at first",
            key=self.key,
            on_crash=self.on_crash,
        )
        directory.write_record(msgspec.json.encode(record))


def _snapshot(runtime_id: str) -> dict[str, Any]:
    told = {"outcome": "DONE", "exit_code": 0, "stop_reason": "end_turn", "latest_seq": 7}
    return {"runtime_id": runtime_id, "status": "ended", **told}


def _forget_event(made: MadeUp) -> None:
    del made.evidence.events["rt_1"][3]


def _repeat_event(made: MadeUp) -> None:
    made.evidence.events["rt_1"].insert(3, made.log[2])


def _hear_otherwise(made: MadeUp) -> None:
    made.evidence.events["rt_1"][1]["text"] = "else"


def _skip_number(made: MadeUp) -> None:
    del made.log[3]
    made.hear()


def _repeat_number(made: MadeUp) -> None:
    made.log.insert(3, made.log[2])
    made.hear()


def _tell_loss_of_what_is_there(made: MadeUp) -> None:
    made.log[3] = {"event": "avenor.error", "seq": 4, "lost_from": 2, "lost_to": 3}
    made.hear()


def _end_twice(made: MadeUp) -> None:
    made.log.append({**made.log[-1], "seq": 8})
    made.hear()


def _never_end(made: MadeUp) -> None:
    del made.log[-1]
    made.hear()


def _tear(made: MadeUp) -> None:
    made.text = "".join(json.dumps(event) + "\n" for event in made.log) + '{"event":"age'


def _fuse(made: MadeUp) -> None:
    made.text = '{"event":"a{"event":"b","seq":1}\n' + "".join(json.dumps(event) + "\n" for event in made.log)


def _lose_sentinel(made: MadeUp) -> None:
    made.sentinel = None


def _tell_otherwise(made: MadeUp) -> None:
    made.sentinel = render_sentinel(Outcome.of("cancelled", run_id="run"))


def _list_otherwise(made: MadeUp) -> None:
    made.evidence.listed[0]["outcome"] = "FAILED"


def _list_nothing(made: MadeUp) -> None:
    made.evidence.listed.clear()


def _complete_twice(made: MadeUp) -> None:
    made.log.insert(6, {**made.log[5], "seq": 7})
    made.end(seq=8)
    made.evidence.listed[0]["latest_seq"] = 8


def _never_send(made: MadeUp) -> None:
    made.log[4]["text"] = "else"
    made.hear()


def _send_twice(made: MadeUp) -> None:
    made.log[1]["text"] = "then"
    made.hear()


def _forget_prompt(made: MadeUp) -> None:
    made.evidence.prompted.append(Prompted(runtime_id="rt_1", text="more"))


def _forget_answer(made: MadeUp) -> None:
    made.evidence.answered.append(Answered(runtime_id="rt_1", request_id="perm_2", option_id="once"))


def _forget_spawn(made: MadeUp) -> None:
    made.evidence.spawned.append(Spawned(run="r1", runtime_id="rt_2"))


def _use_key_twice(made: MadeUp) -> None:
    second = RunDir(made.place / STATE / "rt_2")
    second.path.mkdir(parents=True)
    made.write_record(second)


def _resume_unasked(made: MadeUp) -> None:
    made.log[3] = {"event": "run.resumed", "seq": 4}
    made.hear()


def _resume_what_was_ending(made: MadeUp) -> None:
    made.on_crash = "resume"
    made.log[2] = {"event": "run.ending", "seq": 3}
    _resume_unasked(made)


def _lose_what_was_to_go_on(made: MadeUp) -> None:
    made.on_crash = "resume"
    made.end(status="FAILED", exit_code=1, stop_reason="runtime_lost", reason="gone")
    made.sentinel = render_sentinel(Outcome.of("runtime_lost", run_id="run"))
    made.evidence.listed[0].update(outcome="FAILED", exit_code=1, stop_reason="runtime_lost")


def _leave_socket(made: MadeUp) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(made.place / "left"))


def _leave_file(made: MadeUp) -> None:
    (made.place / STATE).mkdir()
    (made.place / STATE / ".avenor-1.tmp").touch()


def _leave_process(made: MadeUp) -> None:
    made.evidence.processes.append("17 sleep 1000")


def _complain(made: MadeUp) -> None:
    (made.place / "supervisors.log").write_text('{"event": "settle.failed", "level": "error"}\n')


def _crash(made: MadeUp) -> None:
    made.tombstone = made.tombstone.replace("shutdown", "crashed")


_BREAKS: dict[str, tuple[Break, str]] = {
    "a client misses an event": (_forget_event, "a client got the events 1-3, 5-7, the log has 1-7"),
    "a client gets an event twice": (_repeat_event, "a client got the events 1-3, 3-7, the log has 1-7"),
    "a client gets another event": (_hear_otherwise, "where the log has"),
    "the log misses a number": (_skip_number, "seq 5 (turn.start) comes after 3"),
    "the log repeats a number": (_repeat_number, "seq 3 (prompt.queued) comes after 3"),
    "the log calls lost what it has": (_tell_loss_of_what_is_there, "tells that 2 to 3 are lost, after 3"),
    "there are two outcomes": (_end_twice, "2 outcomes"),
    "there is no outcome": (_never_end, "0 outcomes"),
    "the log is torn": (_tear, "half a line"),
    "two lines are one": (_fuse, "is no event"),
    "there is no sentinel": (_lose_sentinel, "there is no sentinel"),
    "the sentinel tells another outcome": (_tell_otherwise, "the sentinel tells"),
    "list shows another outcome": (_list_otherwise, "list shows"),
    "list knows it not": (_list_nothing, "list has []"),
    "a phase is completed twice": (_complete_twice, "was completed 2 times"),
    "a prompt is never sent": (_never_send, "'then' was never sent"),
    "a prompt is sent twice": (_send_twice, "'then' was sent 2 times"),
    "a prompt is lost": (_forget_prompt, "'more' was acknowledged, and is not in the log"),
    "an answer is lost": (_forget_answer, "('perm_2', 'once') was acknowledged"),
    "a spawn is lost": (_forget_spawn, "the spawn of r1 was answered with rt_2"),
    "a key is used twice": (_use_key_twice, "2 runtimes have the key key"),
    "it is resumed unasked": (_resume_unasked, "it was resumed, though it was to fail"),
    "it is resumed while ending": (_resume_what_was_ending, "it was resumed after it was told to end"),
    "it is not resumed": (_lose_what_was_to_go_on, "it was to be resumed, and was lost after 0 resumes"),
    "a socket is left": (_leave_socket, "left behind: left"),
    "a temporary file is left": (_leave_file, "left behind: s.state/.avenor-1.tmp"),
    "a process is left": (_leave_process, "a process lives on: 17 sleep 1000"),
    "an error was logged": (_complain, "settle.failed"),
    "the supervisor crashed": (_crash, "the tombstone of the last supervisor says 'STOPPED reason=crashed"),
}


def test_what_is_as_it_should_be_has_no_problem(tmp_path: Path) -> None:
    """Neither has a log that a full disk explains: lost numbers are named by a line that is there."""
    made = MadeUp(tmp_path)
    del made.log[2:4]
    made.log.insert(2, {"event": "avenor.error", "seq": 4, "lost_from": 3, "lost_to": 3})
    made.evidence.prompted.clear()
    made.evidence.answered.clear()
    made.hear()
    made.write()
    assert check_place(tmp_path) == []


@pytest.mark.parametrize("name", _BREAKS)
def test_what_is_broken_is_named(tmp_path: Path, name: str) -> None:
    """One thing after the other."""
    break_it, told = _BREAKS[name]
    made = MadeUp(tmp_path)
    break_it(made)
    made.write()
    assert [problem for problem in check_place(tmp_path) if told in problem], check_place(tmp_path)


def test_all_is_well_before_it_is_broken(tmp_path: Path) -> None:
    """So that what the tests above break is what they find."""
    MadeUp(tmp_path).write()
    assert check_place(tmp_path) == []
