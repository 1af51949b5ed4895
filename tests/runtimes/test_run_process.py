"""Runs as real processes on the scripted agent: every way to end, its sentinel, its output, and nothing left behind."""

import json
import resource
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from avenor.host.unixsock import bind_listener
from avenor.protocol.events import Error, SessionStart
from avenor.protocol.outcomes import Status
from tests.helpers import eventually_sync
from tests.runtimes.run_driver import OneShot, alive, read_log, script_of

SAY = {"do": "say", "text": "the answer"}
HANG = {"do": "hang"}


def steps_hang(directory: Path) -> dict[str, Any]:
    return {"script": script_of(directory, SAY, HANG)}


WAYS: dict[str, tuple[Callable[[Path], dict[str, Any]], int, Status, str]] = {
    "a clean turn": (lambda d: {"script": script_of(d, SAY)}, 0, Status.DONE, "end_turn"),
    "a refusal": (lambda d: {"script": script_of(d, {"do": "stop", "reason": "refusal"})}, 2, Status.FAILED, "refusal"),
    "a word of the agent's own": (
        lambda d: {"script": script_of(d, {"do": "stop", "reason": "zz"})},
        1,
        Status.FAILED,
        "zz",
    ),
    "a turn that fails": (lambda d: {"script": script_of(d, {"do": "fail"})}, 1, Status.FAILED, "error"),
    "an agent that dies": (
        lambda d: {"script": script_of(d, {"do": "die", "exit_code": 3})},
        1,
        Status.FAILED,
        "agent_exited",
    ),
    "an agent that dies at start": (
        lambda d: {"script": script_of(d, SAY, handshake={"at": "start", "fault": "die"})},
        1,
        Status.FAILED,
        "agent_exited",
    ),
    "an agent that never answers": (
        lambda d: {"script": script_of(d, SAY, handshake={"fault": "hang"}), "handshake_timeout": 0.5},
        124,
        Status.TIMEOUT,
        "timeout",
    ),
    "the timeout": (lambda d: {**steps_hang(d), "timeout": 2.0}, 124, Status.TIMEOUT, "timeout"),
    "no progress": (lambda d: {**steps_hang(d), "progress_timeout": 0.5}, 124, Status.TIMEOUT, "progress_timeout"),
    "a missing program": (
        lambda d: {"backend": "acp", "agent_command": "/nonexistent/agent --acp"},
        1,
        Status.FAILED,
        "spawn_failed",
    ),
    "an unclosed quote": (
        lambda d: {"backend": "acp", "agent_command": "agent 'oops"},
        1,
        Status.FAILED,
        "invalid_params",
    ),
    "a log that cannot be opened": (
        lambda d: {"script": script_of(d, SAY), "on_event": str(d / "missing" / "log")},
        1,
        Status.FAILED,
        "invalid_config",
    ),
    "a prompt file that is not there": (
        lambda d: {"prompt": None, "prompt_file": "missing.md"},
        1,
        Status.FAILED,
        "invalid_params",
    ),
    "an unknown model": (
        lambda d: {"script": script_of(d, SAY), "model": "no-such-model"},
        1,
        Status.FAILED,
        "unknown_model",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_end_leaves_its_sentinel_and_exit_code(tmp_path: Path, way: str) -> None:
    """The sentinel, the exit code and the last line of the log agree."""
    make, code, status, stop_reason = WAYS[way]
    run = OneShot(tmp_path, **make(tmp_path))
    returned, _, err = run.finish()
    assert (returned, run.sentinel.exit_code) == (code, code), err
    assert (run.sentinel.status, run.sentinel.stop_reason) == (status, stop_reason)
    if run.log_path.exists():
        assert run.names[-1] == "run.end"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_cancels_the_run_and_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    """KILLED with 130; the agent and its tools are gone when the run is."""
    pids = tmp_path / "pids"
    tool = {"do": "run", "command": f"sleep 300 & echo $! $$ > {pids}; wait"}
    run = OneShot(tmp_path, script=script_of(tmp_path, tool))
    eventually_sync(lambda: pids.exists() and pids.read_text().endswith("\n"))
    started = [int(word) for word in pids.read_text().split()]
    assert alive(started) == started
    run.signal(number)
    returned, _, err = run.finish()
    assert returned == 130, err
    assert (run.sentinel.status, run.sentinel.exit_code, run.sentinel.stop_reason) == (Status.KILLED, 130, "cancelled")
    assert run.names[-1] == "run.end"
    assert alive(started) == []


def test_a_run_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    """A hang-up that was ignored when we were started stays ignored."""

    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    go_on = tmp_path / "go_on"
    run = OneShot(
        tmp_path, setup=ignore, script=script_of(tmp_path, SAY, {"do": "wait_for", "path": str(go_on), "timeout": 60})
    )
    run.wait_event("agent.message_chunk")
    run.signal(signal.SIGHUP)
    go_on.touch()
    returned, _, err = run.finish()
    assert returned == 0, err
    assert run.sentinel.status is Status.DONE


def test_a_second_signal_kills_at_once_and_still_leaves_the_sentinel(tmp_path: Path) -> None:
    """An agent that ignores cancel, and whose tool ignores SIGTERM, does not hold it up."""
    pids = tmp_path / "pids"
    tool = {"do": "run", "command": f"trap '' TERM; echo $$ > {pids}; while :; do sleep 1; done"}
    run = OneShot(tmp_path, script=script_of(tmp_path, {"do": "ignore_cancel"}, tool))
    eventually_sync(lambda: pids.exists() and pids.read_text().endswith("\n"))
    run.signal(signal.SIGTERM)
    run.signal(signal.SIGINT)
    returned, _, _ = run.finish()
    assert returned == 130
    assert run.sentinel.status is Status.KILLED
    assert alive([int(pids.read_text())]) == []


def test_a_tool_that_escaped_into_a_session_of_its_own_is_ended(tmp_path: Path) -> None:
    """setsid, a double fork and a cleared environment do not hide it."""
    pids = tmp_path / "pids"
    inner = f"echo $$ >> {pids}; exec sleep 300"
    tool = {"do": "run", "command": f"(setsid env -i /bin/sh -c '{inner}' &) ; sleep 0.2", "background": True}
    run = OneShot(tmp_path, script=script_of(tmp_path, tool, SAY))
    returned, _, err = run.finish()
    assert returned == 0, err
    assert alive([int(pids.read_text())]) == []


def test_piped_output_is_the_final_reply_alone(tmp_path: Path) -> None:
    """stdout has what came after the last tool call; stderr has the rest."""
    tool = {"do": "tool", "title": "Look around"}
    run = OneShot(tmp_path, script=script_of(tmp_path, {"do": "say", "text": "first"}, tool, SAY))
    returned, out, err = run.finish()
    assert (returned, out) == (0, "the answer\n")
    assert "Look around" in err
    assert "first" not in out + err


def test_quiet_silences_both_streams(tmp_path: Path) -> None:
    """Only the exit code and the files tell."""
    run = OneShot(tmp_path, quiet=True, script=script_of(tmp_path, SAY))
    assert run.finish() == (0, "", "")


def test_the_private_directory_is_gone_afterwards(tmp_path: Path) -> None:
    """Nothing is left of the run but what was asked for."""
    run = OneShot(tmp_path, script=script_of(tmp_path, SAY))
    run.finish()
    assert list((run.state / "avenor" / "runs").iterdir()) == []


def test_a_failed_attempt_is_tried_again_in_a_new_process(tmp_path: Path) -> None:
    """The scripted agent dies once; the second attempt answers."""
    path = tmp_path / "script.json"
    path.write_text(
        '{"rules": [{"times": 1, "steps": [{"do": "die", "exit_code": 3}]},'
        ' {"steps": [{"do": "say", "text": "the answer"}]}]}'
    )
    run = OneShot(tmp_path, script=str(path), max_retries=1)
    returned, out, err = run.finish()
    assert (returned, out) == (0, "the answer\n"), err
    assert run.names.count("avenor.retry") == 1
    sessions = [event for event in run.events if isinstance(event, SessionStart)]
    assert len(sessions) == 2
    assert sessions[0].session_id == sessions[1].session_id


def test_agents_know_their_run_and_not_their_parents_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our own variables, and those of the spec."""
    monkeypatch.setenv("AVENOR_SOCKET", "/outer.sock")
    seen = tmp_path / "env"
    run = OneShot(
        tmp_path,
        script=script_of(tmp_path, {"do": "run", "command": f"env > {seen}"}),
        run_id="mine",
        env={"EXTRA": "yes"},
    )
    run.finish()
    variables = dict(line.split("=", 1) for line in seen.read_text().splitlines() if "=" in line)
    assert (variables["AVENOR_RUN_ID"], variables["EXTRA"]) == ("mine", "yes")
    assert "AVENOR_SOCKET" not in variables
    assert "AVENOR_RUNTIME_ID" not in variables


def test_a_live_control_socket_is_refused_and_left_alone(tmp_path: Path) -> None:
    """The run fails to start, and says why."""
    path = str(tmp_path / "busy.sock")
    with bind_listener(path):
        run = OneShot(tmp_path, control_socket=path, script=script_of(tmp_path, SAY))
        returned, _, err = run.finish()
        assert returned == 1
        assert "busy.sock" in err
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
    assert run.sentinel.stop_reason == "socket_in_use"


@pytest.mark.parametrize("shared", ["control_socket", "on_event", "sentinel_file"])
def test_a_start_that_fails_touches_nothing_of_a_run_that_lives(tmp_path: Path, shared: str) -> None:
    """Whichever of its files is named again, and whatever else is; what is not the live run's tells of the failure."""
    first = OneShot(tmp_path, control_socket=str(tmp_path / "run.sock"), script=script_of(tmp_path, {"do": "hang"}))
    first.wait_event("turn.start")
    log = first.log_path.read_bytes()
    other = tmp_path / "other"
    other.mkdir()
    shared_path = {"control_socket": tmp_path / "run.sock", "on_event": first.log_path}.get(shared, first.sentinel_path)
    spec: dict[str, Any] = {shared: str(shared_path)}
    second = OneShot(other, dir=str(tmp_path), environ={"XDG_STATE_HOME": str(first.state)}, **spec)
    returned, _, err = second.finish()
    assert (returned, shared_path.name in err) == (1, True)
    same = OneShot(tmp_path, control_socket=str(tmp_path / "run.sock"))
    returned, _, err = same.finish()
    assert (returned, "run.sock has a live server" in err) == (1, True)
    assert first.log_path.read_bytes().startswith(log)  # of its own, something may have come
    assert not first.sentinel_path.exists()
    assert second.sentinel_path.exists() == (shared != "sentinel_file")
    assert second.names == ([] if shared != "sentinel_file" else ["run.start", "run.end"])
    first.signal(signal.SIGTERM)
    first.finish()
    assert first.sentinel.status is Status.KILLED
    assert {event.run_id for event in first.events} == {first.events[0].run_id}
    assert [*tmp_path.glob("state/avenor/runs/*"), *tmp_path.glob("state/avenor/sentinels/*")] == []


def test_of_several_starts_with_the_same_files_one_gets_all(tmp_path: Path) -> None:
    """The others tell of their failure beside it, if anywhere."""
    socket_path, script = str(tmp_path / "run.sock"), script_of(tmp_path, {"do": "hang"})
    starts = [OneShot(tmp_path, control_socket=socket_path, script=script) for _ in range(4)]
    eventually_sync(lambda: sum(start.process.poll() is None for start in starts) == 1, seconds=60)
    winner = next(start for start in starts if start.process.poll() is None)
    winner.wait_event("turn.start")
    assert not winner.sentinel_path.exists()
    winner.signal(signal.SIGTERM)
    for start in starts:
        start.finish()
    assert winner.sentinel.status is Status.KILLED
    assert {event.run_id for event in winner.events} == {winner.events[0].run_id}


def test_a_full_disk_ends_no_run_and_tears_no_line(tmp_path: Path) -> None:
    """A file size limit cuts the log off; the run is done, and what the log has is whole."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    flood = {"do": "flood", "count": 1000, "size": 200}
    run = OneShot(tmp_path, script=script_of(tmp_path, flood), setup=limit)
    returned, _, err = run.finish()
    assert returned == 0, err
    assert run.sentinel.status is Status.DONE
    data = run.log_path.read_bytes()
    assert len(data) > 40_000
    assert data.endswith(b"\n")
    events = read_log(run.log_path)
    kept = {event.seq for event in events}
    told = [event for event in events if isinstance(event, Error) and event.lost_from is not msgspec.UNSET]
    lost = {seq for event in told for seq in range(event.lost_from, event.lost_to + 1)}  # type: ignore[arg-type,operator]
    assert [event.seq for event in events] == sorted(kept)
    assert set(range(1, max(kept) + 1)) == kept | lost
    assert not kept & lost


def test_a_reader_that_goes_away_does_not_end_the_run(tmp_path: Path) -> None:
    """Output into a closed pipe is no error of the run."""
    run = OneShot(tmp_path, script=script_of(tmp_path, {"do": "wait", "seconds": 0.5}, SAY))
    assert run.process.stdout is not None
    assert run.process.stderr is not None
    run.process.stdout.close()
    run.process.stderr.close()
    assert run.process.wait(timeout=60) == 0
    assert run.sentinel.status is Status.DONE


def test_stale_files_of_an_earlier_run_are_removed_at_the_start(tmp_path: Path) -> None:
    """An old sentinel or answer is not taken for this run's."""
    (tmp_path / "run.done").write_text("DONE\n")
    stale = tmp_path / "run.perm.req.response"
    stale.write_text("{}")
    run = OneShot(tmp_path, **steps_hang(tmp_path))
    run.wait_event("turn.start")
    assert not run.sentinel_path.exists()
    assert not stale.exists()
    run.signal(signal.SIGTERM)
    run.finish()


def test_a_permission_is_asked_through_the_file_beside_the_sentinel(tmp_path: Path) -> None:
    """The derived BASE, end to end."""
    made = tmp_path / "made.txt"
    step = {"do": "write", "path": str(made), "text": "x", "ask": True}
    run = OneShot(tmp_path, script=script_of(tmp_path, step, SAY))
    request = tmp_path / "run.perm.req"
    eventually_sync(request.exists)
    assert not made.exists()
    options = json.loads(request.read_text())["options"]
    allow = next(option["optionId"] for option in options if option["kind"] == "allow_once")
    (tmp_path / "answer").write_text(json.dumps({"outcome": "selected", "option_id": allow}))
    (tmp_path / "answer").rename(tmp_path / "run.perm.req.response")
    returned, _, err = run.finish()
    errors = [event.message for event in run.events if isinstance(event, Error)]
    assert returned == 0, (err, errors)
    assert made.exists()
    assert not request.exists()
