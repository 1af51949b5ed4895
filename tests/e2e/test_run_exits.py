"""Families: every way to end leaves its sentinel and exit code; no end is told as another one."""

import contextlib
import os
import signal
from pathlib import Path

import pytest

from tests.e2e.harness import WAIT_SECONDS, Client, Place, Run, Stable, say, steps
from tests.helpers import eventually_sync

_SAYING = steps(say("Here."), {"do": "hang"})
# Python imports this by itself, before all else: a signal for whoever imports a module.
_SIGNALLED = """\
import os, sys

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == os.environ["SIGNAL_AT"]:
            os.kill(os.getpid(), int(os.environ["SIGNAL"]))

sys.meta_path.insert(0, Finder)
"""


def stop(reason: str) -> dict[str, object]:
    """A rule whose turn ends like this."""
    return steps(say("So."), {"do": "stop", "reason": reason})


def check(run: Run, status: str, code: int, stop_reason: str) -> None:
    """Exit code, sentinel and log say the same."""
    assert run.finish() == code, run.complaints
    outcome = run.outcome()
    assert (outcome.status, outcome.exit_code, outcome.stop_reason) == (status, code, stop_reason)
    last = run.events()[-1]
    assert (last["event"], last["status"], last["exit_code"], last["stop_reason"]) == (
        "run.end",
        status,
        code,
        stop_reason,
    )


def test_stop_reasons_are_kept(place: Place) -> None:
    """What the backend gave as its reason is told verbatim, with its code; the reply is the output."""
    expected = {"end_turn": 0, "refusal": 2, "max_tokens": 3, "max_turn_requests": 4, "zz": 1}
    runs = {
        reason: place.run("--prompt", "x", "--script", place.script(stop(reason), name=reason), name=reason)
        for reason in expected
    }
    for reason, run in runs.items():
        check(run, "FAILED" if expected[reason] else "DONE", expected[reason], reason)
        assert run.output == b"So.\n"
    assert place.processes() == {}


def test_an_error_fails_with_its_message(place: Place) -> None:
    """An agent's error is FAILED, and its words are in the log."""
    run = place.run("--prompt", "x", "--script", place.script(steps({"do": "fail", "message": "no money"})))
    assert run.finish() == 1
    assert run.outcome().status == "FAILED"
    assert "no money" in str(run.events()[-1]["reason"])


def test_a_death_in_the_turn_is_no_end_turn(place: Place) -> None:
    """An agent that exits with 0 in the middle of a turn has failed."""
    run = place.run("--prompt", "x", "--script", place.script(steps(say("Half"), {"do": "die", "exit_code": 0})))
    assert run.finish() == 1
    assert run.outcome().status == "FAILED"
    assert run.outcome().stop_reason != "end_turn"


def test_what_cannot_be_started_fails(place: Place) -> None:
    """A missing, failing, silent or unusable program: FAILED, and a reason that names it."""
    runs = {
        command: place.run("--prompt", "x", "--agent-command", command, backend="acp", name=f"r{number}")
        for number, command in enumerate(["/nonexistent/agent --acp", "/bin/false", "/bin/true", "/etc/passwd", "/"])
    }
    for command, run in runs.items():
        assert run.finish() == 1
        assert run.outcome().status == "FAILED"
        assert run.outcome().session_id == ""
        assert command.split()[0] in run.events()[-1]["reason"]
        assert b"Traceback" not in run.complaints


def test_what_never_comes_times_out(place: Place) -> None:
    """A handshake that hangs at any stage, and a turn that never ends: code 124, each by the limit that was set."""
    hangs = {
        at: place.script(handshake={"at": at, "fault": "hang"}, name=at) for at in ("start", "initialize", "session")
    }
    turn = place.script(_SAYING, name="turn")
    runs = [
        *(
            (place.run("--prompt", "x", "--script", script, "--handshake-timeout", "1", name=f"h_{at}"), "timeout")
            for at, script in hangs.items()
        ),
        (place.run("--prompt", "x", "--script", hangs["initialize"], "--timeout", "1", name="early"), "timeout"),
        (place.run("--prompt", "x", "--script", turn, "--timeout", "3", name="late"), "timeout"),
        (place.run("--prompt", "x", "--script", turn, "--progress-timeout", "3", name="silent"), "progress_timeout"),
    ]
    for run, stop_reason in runs:
        check(run, "TIMEOUT", 124, stop_reason)
    assert place.processes() == {}


def test_a_chatty_agent_is_no_silent_one(place: Place) -> None:
    """An agent that streams on for longer than the progress timeout is not ended by it."""
    script = place.script(steps(say("a b c d e f g h", chunks=8, every=0.8)))
    # Long enough for a piece that comes late on a busy machine.
    check(place.run("--prompt", "x", "--script", script, "--progress-timeout", "5"), "DONE", 0, "end_turn")


def test_signals_cancel(place: Place) -> None:
    """Every signal that asks a program to end leaves KILLED, 130, and no process."""
    script = place.script(_SAYING)
    numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
    runs = [place.run("--prompt", "x", "--script", script, name=number.name) for number in numbers]
    for run, number in zip(runs, numbers, strict=True):
        run.wait_event("agent.message_chunk")
        run.process.send_signal(number)
    for run in runs:
        check(run, "KILLED", 130, "cancelled")
    assert place.processes() == {}


def test_a_second_signal_ends_it_at_once(place: Place) -> None:
    """An agent that reacts to nothing is killed by the second signal, and the sentinel is there all the same."""
    script = place.script(_SAYING, ignores=["cancel", "stdin_close", "sigterm"])
    run = place.run("--prompt", "x", "--script", script)
    run.wait_event("agent.message_chunk")
    run.process.send_signal(signal.SIGINT)
    run.process.send_signal(signal.SIGTERM)
    check(run, "KILLED", 130, "cancelled")


def test_a_signal_in_the_handshake_cancels(place: Place) -> None:
    """There is no session yet, and no other outcome."""
    run = place.run("--prompt", "x", "--script", place.script(handshake={"at": "initialize", "fault": "hang"}))
    eventually_sync(lambda: place.processes_like("avenor.runtimes.scripted"), WAIT_SECONDS)
    run.process.send_signal(signal.SIGTERM)
    check(run, "KILLED", 130, "cancelled")
    assert run.outcome().session_id == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
@pytest.mark.parametrize("module", ["avenor.cli.run", "avenor.runtimes.main"])
def test_a_signal_before_there_is_a_run_cancels(place: Place, module: str, number: signal.Signals) -> None:
    """What it needs is still being imported then; the sentinel of the run before does not stay."""
    (place.path / "sitecustomize.py").write_text(_SIGNALLED)
    environ = {"PYTHONPATH": str(place.path), "SIGNAL_AT": module, "SIGNAL": str(int(number))}
    (place.path / "run.done").write_text("DONE\nSESSION=old\n")
    run = place.run("--prompt", "x", "--script", place.script(_SAYING), environ=environ)
    check(run, "KILLED", 130, "cancelled")


@pytest.mark.parametrize("method", ["cancel", "shutdown"])
def test_a_cancel_over_the_socket_is_answered(place: Place, method: str) -> None:
    """The answer comes before the process has gone, and says that nothing is left."""
    socket = place.path / "run.sock"
    run = place.run("--prompt", "x", "--script", place.script(_SAYING), "--control-socket", str(socket))
    run.wait_event("agent.message_chunk")
    with Client(socket) as client:
        answer = client.call(method)
        assert answer == ({"ok": True, "left": []} if method == "cancel" else {"shutting_down": True})
    check(run, "KILLED", 130, "cancelled")
    assert not socket.exists()


_WRONG = [
    ["--prompt", "x", "--timeout", "-1"],
    ["--prompt", "x", "--timeout", "soon"],
    ["--prompt", "x", "--prompt-file", "y"],
    ["--prompt-file", "/nonexistent"],
    ["--prompt-file", "/"],
    ["--prompt", ""],
    [],
    ["--prompt", "x", "--backend", "nobody"],
    ["--prompt", "x", "--agent-command", "x"],
    ["--prompt", "x", "--script", "/nonexistent"],
    ["--prompt", "x", "--script", "/"],
    ["--prompt", "x", "--dir", "/nonexistent"],
    ["--prompt", "x", "--nonsense"],
    ["--prompt", "x", "--max-retries", "many"],
    ["--prompt", "x", "--permission-handler", "carrier-pigeon"],
]


def test_usage_errors_leave_a_failed_sentinel(place: Place) -> None:
    """What is asked for wrongly is refused with 1, a message, and FAILED where the sentinel flag could be read."""
    for run in [place.run(*flags, name=f"r{number}") for number, flags in enumerate(_WRONG)]:
        assert run.finish() == 1, run.process.args
        assert run.outcome().status == "FAILED"
        assert run.complaints
        assert b"Traceback" not in run.complaints


def test_a_script_that_is_not_there_is_refused_before_anything_starts(place: Place) -> None:
    """By its name and reason, as a spawn is, and not as the exit of an agent."""
    run = place.run("--prompt", "x", "--script", "/nonexistent")
    assert run.finish() == 1
    assert run.complaints == b"avenor: script /nonexistent: No such file or directory\n"
    assert run.outcome().stop_reason == "invalid_params"
    assert not run.log.exists()


def test_a_config_that_is_not_there_is_refused_in_plain_words(place: Place, stable: Stable) -> None:
    """By a run and by a spawn, whose refusal has a line for each thing that it says."""
    missing = place.work / "none.json"
    run = place.run("--team-file", str(missing))
    assert run.finish() == 1
    assert run.complaints.decode() == f"avenor: {missing}: $: No such file or directory\n"
    words = ["control", "--socket", str(stable.socket), "spawn", "--dir", str(place.work), "--team-file"]
    told = place.start(*words, str(missing)).communicate(timeout=WAIT_SECONDS)[1].decode()
    assert told.splitlines()[0] == f"avenor control spawn: {missing}: $: No such file or directory [invalid_config]"
    assert "the format" not in told
    broken = place.work / "broken.json"
    broken.write_text("{}")
    told = place.start(*words, str(broken)).communicate(timeout=WAIT_SECONDS)[1].decode()
    first, *more = told.splitlines()
    assert first.startswith(f"avenor control spawn: {broken}: $")
    assert any(line.startswith("  the format: docs/reference/team.md; ") for line in more)


def test_a_stale_sentinel_is_not_believed(place: Place) -> None:
    """While a run works, an earlier run's sentinel and permission files are gone."""
    for name in ("run.done", "run.perm.req", "run.perm.req.response"):
        (place.path / name).write_text("DONE\n")
    run = place.run("--prompt", "x", "--script", place.script(_SAYING))
    run.wait_event("agent.message_chunk")
    assert sorted(path.name for path in place.path.glob("run.*")) == ["run.ndjson"]
    run.process.send_signal(signal.SIGTERM)
    check(run, "KILLED", 130, "cancelled")


def test_a_sentinel_that_cannot_be_written_is_told(place: Place) -> None:
    """The exit code stands, and stderr names the path."""
    missing = place.path / "nowhere" / "run.done"
    process = place.start("run", "--backend", "scripted", "--prompt", "x", "--sentinel-file", str(missing))
    complaints = process.communicate(timeout=WAIT_SECONDS)[1].decode()
    assert process.returncode == 0
    assert str(missing) in complaints


@pytest.mark.parametrize("name", ["run", "n" * 247])
def test_a_permission_base_that_cannot_be_used_is_no_end_of_its_own(place: Place, name: str) -> None:
    """Below a regular file, or made of a sentinel's name that leaves no room for more; the agent asks nothing."""
    (place.path / "file").touch()
    handler = ["--permission-handler", f"file:{place.path / 'file' / 'x'}"] if name == "run" else []
    run = place.run("--prompt", "x", "--script", place.script(steps(say("So."))), *handler, name=name)
    check(run, "DONE", 0, "end_turn")
    assert b"Traceback" not in run.complaints


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_prompt_file_that_never_comes_can_be_interrupted(place: Place, number: signal.Signals) -> None:
    """A FIFO is a fair prompt file of `avenor run`; while nobody writes, a signal still ends the run."""
    fifo = place.path / "prompt"
    os.mkfifo(fifo)
    run = place.run("--prompt-file", str(fifo))
    writer = eventually_sync(lambda: _open_for_writing(fifo), WAIT_SECONDS)
    assert writer is not None
    run.process.send_signal(number)
    try:
        assert run.finish() == 130
    finally:
        os.close(writer)
    assert run.outcome().status == "KILLED"


def _open_for_writing(fifo: Path) -> int | None:
    """Its descriptor once somebody reads, or waits to."""
    with contextlib.suppress(OSError):
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    return None


def test_output_that_nobody_reads_does_not_end_a_run(place: Place) -> None:
    """The reader of stdout and stderr has gone: the run ends as it would have, without a traceback."""
    run = place.run("--prompt", "x", "--script", place.script(steps(say("y" * 300_000))))
    assert run.process.stdout is not None
    assert run.process.stderr is not None
    run.process.stdout.close()
    run.process.stderr.close()
    run.process.stdout = run.process.stderr = None
    assert run.process.wait(WAIT_SECONDS) in (0, 1)
    assert run.outcome().status == "DONE"
