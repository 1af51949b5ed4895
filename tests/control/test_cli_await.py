"""`avenor await`: a wait on a run, and its exit status."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from avenor.cli import await_run, main
from avenor.cli.await_run import exit_status
from tests.control.scripted_server import Refusal, ScriptedServer, Then, event_line, in_turn
from tests.helpers import eventually_sync

LIVE: dict[str, Any] = {
    "runtime_id": "rt_1",
    "run_id": "run_a",
    "label": "lab",
    "status": "running",
    "pending_permission": False,
    "permission": None,
    "outcome": None,
    "stop_reason": None,
    "reason": None,
}
DONE = {**LIVE, "status": "ended", "outcome": "DONE", "stop_reason": "end_turn"}
ASKING = {
    **LIVE,
    "pending_permission": True,
    "permission": {"request_id": "p1", "tool": "execute", "question": "ls?", "options": [{"optionId": "once"}]},
}
NO_SUCH = Refusal(-32000, "there is no runtime", reason="no_such_runtime", candidates=[])


def ended(outcome: str, stop_reason: str, **more: Any) -> dict[str, Any]:
    return {**LIVE, "status": "ended", "outcome": outcome, "stop_reason": stop_reason, **more}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the server will be; the default of the command."""
    monkeypatch.setenv("AVENOR_SOCKET", str(tmp_path / "s"))
    return str(tmp_path / "s")


@pytest.mark.parametrize(
    ("snapshot", "status"),
    [
        (LIVE, None),
        ({**LIVE, "status": "queued"}, None),
        ({**LIVE, "status": "starting"}, None),
        (ASKING, 20),
        (DONE, 0),
        ({**LIVE, "status": "idle", "outcome": "DONE"}, 0),
        (ended("DONE", "max_iterations"), 0),
        (ended("FAILED", "refusal"), 10),
        (ended("FAILED", "cancelled", exit_code=130), 10),
        (ended("UNHEARD", "x"), 10),
        ({**LIVE, "status": "ended"}, 10),
        (ended("TIMEOUT", "timeout"), 11),
        (ended("TIMEOUT", "progress_timeout"), 11),
        (ended("KILLED", "cancelled"), 12),
        (ended("BLOCKED", "blocked"), 13),
        (ended("FAILED", "budget_exhausted"), 14),
        (ended("FAILED", "runtime_lost"), 3),
        (ended("FAILED", "launch_lost"), 3),
    ],
)
def test_what_a_run_came_to_is_an_exit_status(snapshot: dict[str, Any], status: int | None) -> None:
    """None where it goes on; a phase's own code is a failure of the run."""
    assert exit_status(snapshot) == status


def test_it_waits_in_one_call_for_the_run_that_the_target_names(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    """By its id from then on: the label may become another's. No event can come between look and wait."""
    with ScriptedServer(path, {"status": LIVE, "wait": DONE}) as server:
        assert main(["await", "lab"]) == 0
    assert server.requests == [
        ("status", {"runtime_id": "lab"}),
        ("wait", {"runtime_id": "rt_1", "until": "attention"}),
    ]
    assert capfd.readouterr() == ("done\n", "")


def test_the_flags_are_params_of_the_wait(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The server is told how long, too; a permission that is pending then is not what was waited for."""
    with ScriptedServer(path, {"status": LIVE, "wait": ASKING}) as server:
        assert main(["await", "--socket", path, "lab", "--until", "done", "--timeout", "1h"]) == 124
    params = server.requests[1][1]
    assert 3_590_000 < params.pop("timeout_ms") <= 3_600_000
    assert params == {"runtime_id": "rt_1", "until": "done"}
    assert capfd.readouterr() == ("", "avenor await: the time is over, and rt_1 is running\n")


def test_no_time_is_too_long(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The server gets one that it can count."""
    with ScriptedServer(path, {"status": LIVE, "wait": DONE}) as server:
        assert main(["await", "lab", "--timeout", f"1{'0' * 300}h"]) == 0
    assert server.requests[1][1]["timeout_ms"] <= 10**12


@pytest.mark.parametrize(
    ("snapshot", "status", "line"),
    [
        (
            ended("FAILED", "agent_exited", reason="exit status 3\x1b[2J\nx"),
            10,
            "failed: agent_exited: exit status 3 x",
        ),
        (ended("TIMEOUT", "timeout"), 11, "timed out: timeout"),
        (ended("BLOCKED", "blocked", reason="need a key"), 13, "blocked: blocked: need a key"),
        (ended("FAILED", "runtime_lost"), 3, "lost: runtime_lost"),
        (ASKING, 20, "permission pending: p1 ls? [once]"),
    ],
)
def test_one_line_tells_what_it_came_to(
    path: str, capfd: pytest.CaptureFixture[str], snapshot: dict[str, Any], status: int, line: str
) -> None:
    """On stdout, with why."""
    with ScriptedServer(path, {"status": LIVE, "wait": snapshot}):
        assert main(["await", "rt_1"]) == status
    assert capfd.readouterr() == (f"{line}\n", "")


def test_print_output_gives_the_final_reply_alone(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    """It comes with the wait's own answer, since the server may have left after that; what it came to is on stderr."""
    snapshot = {**DONE, "final_output": "all ä", "final_output_truncated": False}
    with ScriptedServer(path, {"status": LIVE, "wait": Then(snapshot, close=True)}) as server:
        assert main(["await", "rt_1", "--print-output"]) == 0
        assert server.requests[-1] == (
            "wait",
            {"runtime_id": "rt_1", "until": "attention", "complete_output": True},
        )
        assert capfd.readouterr() == ("all ä\n", "done\n")
        assert main(["await", "rt_1", "--print-output", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == snapshot


def test_print_output_asks_for_the_rest_of_a_reply_that_was_too_long(
    path: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A snapshot does not hold any length."""
    snapshot = {**DONE, "final_output": "a", "final_output_truncated": True}
    replies = {"status": LIVE, "wait": snapshot, "result": {"final_output": "all ä", "stop_reason": "end_turn"}}
    with ScriptedServer(path, replies):
        assert main(["await", "rt_1", "--print-output"]) == 0
        assert capfd.readouterr() == ("all ä\n", "done\n")
        assert main(["await", "rt_1", "--print-output", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told == {**DONE, "final_output": "all ä", "final_output_truncated": False}


@pytest.mark.parametrize("close", [True, False])
def test_what_a_run_came_to_is_told_without_the_rest_of_its_reply(
    path: str, capfd: pytest.CaptureFixture[str], close: bool
) -> None:
    """Where the server has left, or refuses: the beginning is printed, and that it is one is said."""
    snapshot = {**ended("KILLED", "cancelled"), "final_output": "beginning", "final_output_truncated": True}
    closing = Refusal(-32000, "the server is closing", reason="closed", retryable=True)
    with ScriptedServer(path, {"status": LIVE, "wait": Then(snapshot, close=close), "result": closing}):
        assert main(["await", "rt_1", "--print-output"]) == 12
    out, err = capfd.readouterr()
    assert out == "beginning\n"
    assert err.startswith("avenor await: only the beginning of the final reply is known: ")
    assert err.endswith("\nkilled: cancelled\n")


@pytest.mark.parametrize("snapshot", [ASKING, LIVE])
def test_print_output_prints_nothing_of_a_run_that_goes_on(
    path: str, capfd: pytest.CaptureFixture[str], snapshot: dict[str, Any]
) -> None:
    """What it said in the turn before is not its reply."""
    with ScriptedServer(path, {"status": LIVE, "wait": {**snapshot, "final_output": "earlier"}}):
        main(["await", "rt_1", "--print-output", "--timeout", "1h"])
    assert capfd.readouterr().out == ""


def test_a_run_that_said_nothing_prints_nothing(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Its final output is null."""
    with ScriptedServer(path, {"status": LIVE, "wait": {**DONE, "final_output": None}}):
        assert main(["await", "rt_1", "--print-output"]) == 0
    assert capfd.readouterr() == ("", "done\n")


@pytest.mark.parametrize(("snapshot", "status"), [(DONE, 0), (ASKING, 20), (LIVE, 124)])
def test_json_is_the_snapshot(
    path: str, capfd: pytest.CaptureFixture[str], snapshot: dict[str, Any], status: int
) -> None:
    """On one line, whatever it came to."""
    with ScriptedServer(path, {"status": LIVE, "wait": snapshot}):
        assert main(["await", "rt_1", "--json", "--timeout", "1h"]) == status
    out = capfd.readouterr().out
    assert json.loads(out) == snapshot
    assert out.count("\n") == 1


def test_a_target_that_is_not_there_is_status_3(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    """It is not waited for: a name that was mistyped would be waited for for ever."""
    with ScriptedServer(path, {"status": NO_SUCH, "list": [LIVE]}):
        assert main(["await", "lob"]) == 3
    assert capfd.readouterr().err == (
        f"avenor await: there is no runtime, run or label 'lob' at {path}: nothing to wait for\n"
    )


def test_a_label_of_several_live_runs_is_status_2(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The live ones are named."""
    past = {**LIVE, **ended("DONE", "end_turn"), "runtime_id": "rt_0"}
    with ScriptedServer(path, {"status": NO_SUCH, "list": [past, LIVE, {**LIVE, "runtime_id": "rt_2"}]}):
        assert main(["await", "lab"]) == 2
    err = capfd.readouterr().err
    assert err == "avenor await: 2 runtimes are called 'lab': name one of them by its id (rt_1, rt_2)\n"


def test_another_refusal_is_told_as_it_is(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    """In words, or as JSON."""
    refusal = Refusal(-32601, "no method wait")
    with ScriptedServer(path, {"status": LIVE, "wait": refusal}):
        assert main(["await", "rt_1"]) == 3
        assert capfd.readouterr().err == "avenor await: no method wait\n"
        assert main(["await", "rt_1", "--json"]) == 3
        assert json.loads(capfd.readouterr().err) == refusal.error


def test_no_server_is_status_3_at_once(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    """It is more likely a wrong socket than a supervisor that is about to start."""
    assert main(["await", "rt_1", "--timeout", "1h"]) == 3
    assert capfd.readouterr().err.startswith(f"avenor await: no server at {path} ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "TARGET is missing"),
        (["a", "b"], "'b' is one argument too many"),
        (["a", "--until", "never"], "--until: 'never' is none of attention, done"),
        (["a", "--timeout", "-1s"], "--timeout: '-1s' is negative"),
    ],
)
def test_usage_errors_are_status_2(capfd: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    """Before any server is asked."""
    assert main(["await", *words]) == 2
    assert capfd.readouterr().err.startswith(f"avenor await: {message}")


AWAY = "avenor await: the supervisor went away; waiting for it to come back\n"
BACK = "avenor await: connected again\n"


def serving(path: str, status: list[Any], waits: list[Any]) -> ScriptedServer:
    """A server that answers these, one after the other, and hangs up in place of an answer that is None."""

    def wait(_params: dict[str, Any]) -> Any:
        answer = waits.pop(0)
        if answer is None:
            server.hang_up()
        return answer

    server = ScriptedServer(path, {"status": in_turn(*status), "wait": wait})
    return server


def test_a_wait_goes_on_with_the_next_supervisor(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Which is asked for the same run by its id; stderr tells of each break."""
    with serving(path, [LIVE, LIVE, LIVE], [None, None, DONE]) as server:
        assert main(["await", "lab"]) == 0
    names = [params.get("runtime_id") for method, params in server.requests if method == "status"]
    assert names == ["lab", "rt_1", "rt_1"]
    assert capfd.readouterr() == ("done\n", (AWAY + BACK) * 2)


def test_a_wait_that_is_refused_because_the_server_closes_goes_on_with_the_next(
    path: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """So ends a supervisor that is upgraded: it refuses what waits, and hangs up then. Its time ends the wait, too."""
    closing = Refusal(-32000, "wait: the server is closing; ask again when it is back", reason="closed", retryable=True)
    with ScriptedServer(path, {"status": LIVE, "wait": in_turn(closing, closing, DONE)}) as server:
        assert main(["await", "lab"]) == 0
    names = [params.get("runtime_id") for method, params in server.requests if method == "status"]
    assert names == ["lab", "rt_1", "rt_1"]
    assert capfd.readouterr() == ("done\n", (AWAY + BACK) * 2)
    with ScriptedServer(f"{path}2", {"status": LIVE, "wait": closing}):
        assert main(["await", "lab", "--socket", f"{path}2", "--timeout", "200ms"]) == 124
    err = capfd.readouterr().err
    assert err.endswith(
        "the time is over, and the supervisor is away: wait: the server is closing; ask again when it is back\n"
    )


def test_a_break_before_the_first_answer_is_waited_out_too(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    """There was a server: then it is no wrong socket."""
    statuses: list[Any] = [None, LIVE]

    def status(_params: dict[str, Any]) -> Any:
        answer = statuses.pop(0)
        if answer is None:
            server.hang_up()
        return answer

    with ScriptedServer(path, {"status": status, "wait": DONE}) as server:
        assert main(["await", "lab"]) == 0
    assert [params.get("runtime_id") for _, params in server.requests] == ["lab", "lab", "rt_1"]
    assert capfd.readouterr() == ("done\n", AWAY + BACK)


def test_another_run_of_that_id_is_not_waited_for(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    """As when a supervisor with another state directory serves the socket: the run is lost."""
    with serving(path, [LIVE, {**LIVE, "run_id": "run_b"}], [None]):
        assert main(["await", "lab"]) == 3
    out, err = capfd.readouterr()
    assert out == ""
    assert err == f"{AWAY}avenor await: another supervisor serves {path} now, which does not know run run_a\n"


def test_a_run_that_the_next_supervisor_does_not_know_is_lost(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    """What it says is told."""
    with serving(path, [LIVE, NO_SUCH], [None]):
        assert main(["await", "lab"]) == 3
    assert "there is no runtime [no_such_runtime]" in capfd.readouterr().err


def gone(path: str) -> ScriptedServer:
    """A server that is gone, with its socket, as soon as somebody waits."""

    def wait(_params: dict[str, Any]) -> Any:
        Path(path).unlink()
        server.hang_up()

    server = ScriptedServer(path, {"status": LIVE, "wait": wait})
    return server


def test_the_own_time_ends_the_search_for_a_supervisor(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Status 124, as for a run that takes too long."""
    with gone(path):
        assert main(["await", "lab", "--timeout", "400ms"]) == 124
    err = capfd.readouterr().err
    assert err.startswith(f"{AWAY}avenor await: the time is over, and the supervisor is away: no server at {path} ")


def test_without_a_time_the_search_ends_all_the_same(
    path: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 3: the supervisor is lost."""
    monkeypatch.setattr(await_run, "_GONE_SECONDS", 0.3)
    with gone(path):
        assert main(["await", "lab"]) == 3
    err = capfd.readouterr().err
    assert err.startswith(f"{AWAY}avenor await: the supervisor has not come back: no server at {path} ")


def test_a_server_that_hangs_does_not_outlast_the_time(
    path: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It should have said itself that the time is over."""
    monkeypatch.setattr(await_run, "_HUNG_SECONDS", 0.1)
    release = threading.Event()

    def hang(_params: dict[str, Any]) -> Any:
        release.wait(60)
        return DONE

    with ScriptedServer(path, {"status": LIVE, "wait": hang}):
        assert main(["await", "lab", "--timeout", "100ms"]) == 124
        release.set()
    assert "the time is over" in capfd.readouterr().err


def closed(streams: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """What a command came to that was started with these streams closed, as `2>&-`."""
    command = f'exec "$0" -m avenor.cli "$@" {streams}'
    return subprocess.run(
        ["sh", "-c", command, sys.executable, *words], capture_output=True, text=True, check=False, timeout=60
    )


def test_a_wait_without_stderr_goes_on_with_the_next_supervisor(path: str) -> None:
    """What it has to say of that goes to nobody, and not to the server."""
    with serving(path, [LIVE, LIVE], [None, DONE]) as server:
        done = closed("2>&-", "await", "lab")
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)
    assert [method for method, _ in server.requests] == ["status", "wait", "status", "wait"]


@pytest.mark.parametrize("words", [["await", "lab"], ["control", "tail", "lab"]])
def test_a_command_without_stdout_says_that_it_cannot_write(path: str, words: list[str]) -> None:
    """To the server it says nothing but its requests."""
    event = event_line(event="run.end", seq=1)
    replies = {"status": LIVE, "wait": DONE, "subscribe": Then({"subscribed": True, "id": "s"}, event)}
    with ScriptedServer(path, replies) as server:
        done = closed(">&-", *words)
    assert (done.stderr, done.returncode) == ("avenor: cannot write the output: Bad file descriptor\n", 1)
    assert {method for method, _ in server.requests} <= {"status", "wait", "subscribe"}


def test_an_interrupt_ends_the_wait(path: str) -> None:
    """Status 130, and no traceback."""
    release = threading.Event()

    def hang(_params: dict[str, Any]) -> Any:
        release.wait(60)
        return DONE

    with ScriptedServer(path, {"status": LIVE, "wait": hang}) as server:
        words = [sys.executable, "-m", "avenor.cli", "await", "lab"]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        eventually_sync(lambda: len(server.requests) == 2)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == (b"", b"")
        assert process.returncode == 130
        release.set()
