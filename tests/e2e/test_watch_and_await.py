"""`avenor watch` and `avenor await` beside real runs, whose processes and supervisors are lost meanwhile."""

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import ASK, WAIT_SECONDS, Place, Stable, read_log, say, steps
from tests.helpers import eventually_sync

FOUND: dict[str, Any] = {"do": "tool", "title": "git commit -m x", "kind": "execute"}


def gated(place: Place, *before: dict[str, Any]) -> dict[str, Any]:
    """A run whose turn ends when there is a file `gate`; what it is told after a loss ends it at once."""
    gate = {"do": "wait_for", "path": str(place.work / "gate"), "timeout": "60s"}
    script = place.script(
        steps({"do": "recall"}, say("Went on.", chunks=4), match="^Your process was lost"),
        steps(*before, say("Before. ", chunks=3), gate, say("After.")),
    )
    return {"script": script, "label": "lab"}


def start(place: Place, stable: Stable, *words: str) -> "subprocess.Popen[bytes]":
    """A command on the supervisor's socket."""
    return place.start(*words, environ={"AVENOR_SOCKET": str(stable.socket)})


def finish(process: "subprocess.Popen[bytes]") -> tuple[str, str, int]:
    """What it printed, and its exit status."""
    out, err = process.communicate(timeout=WAIT_SECONDS)
    return out.decode(), err.decode(), process.returncode


def wait_said(stable: Stable, runtime_id: str) -> None:
    """Return when the agent stands at the gate: it has said all that comes before."""

    def has_said() -> bool:
        events = read_log(stable.log_path(runtime_id))
        said = [event["content"]["text"] for event in events if event["event"] == "agent.message_chunk"]
        return "".join(said) == "Before. "

    eventually_sync(has_said, WAIT_SECONDS)


def complaint(process: "subprocess.Popen[bytes]") -> str:
    """The next line on its stderr."""
    assert process.stderr is not None
    return process.stderr.readline().decode()


def connections(process: "subprocess.Popen[bytes]", path: Path) -> int:
    """How many clients a server has on its socket."""
    served = _sockets_at(path)
    found = 0
    for fd in os.listdir(f"/proc/{process.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"/proc/{process.pid}/fd/{fd}") in served
    return found - 1  # the one on which it listens


def _sockets_at(path: Path) -> set[str]:
    rows = [row.split() for row in Path("/proc/net/unix").read_text().splitlines()]
    return {f"socket:[{row[6]}]" for row in rows if row[-1] == str(path)}


def leave(stable: Stable, way: str) -> None:
    """Let the supervisor go away from its runs, which go on."""
    if way == "detach":
        assert stable.shutdown("detach") == 0
    else:
        stable.signal(signal.Signals[way])
        stable.wait_exit()


@pytest.mark.parametrize("way", ["SIGKILL", "SIGHUP", "detach"])
def test_a_wait_outlives_the_supervisor(place: Place, stable: Stable, way: str) -> None:
    """It is killed or leaves, the next one adopts the run, and the wait ends with the run's own end and words."""
    runtime_id = stable.connect().spawn(place, **gated(place))["runtime_id"]
    wait_said(stable, runtime_id)
    waits = start(place, stable, "await", "lab", "--print-output")
    limited = start(place, stable, "await", runtime_id, "--timeout", "10m")
    # Both hold a connection before the supervisor goes: only then is it a break, and not a wrong socket.
    eventually_sync(lambda: connections(stable.process, stable.socket) >= 3, WAIT_SECONDS)
    leave(stable, way)
    for process in (waits, limited):
        assert complaint(process) == "avenor await: the supervisor went away; waiting for it to come back\n"
    Stable(place)
    for process in (waits, limited):
        assert complaint(process) == "avenor await: connected again\n"
    (place.work / "gate").touch()
    assert finish(waits) == ("Before. After.\n", "done\n", 0)
    assert finish(limited) == ("done\n", "", 0)


def test_a_run_that_is_resumed_is_waited_for_and_watched_on(place: Place, stable: Stable) -> None:
    """Its process is killed, and neither the wait nor the digest ends before the run has."""
    client = stable.connect()
    runtime_id = client.spawn(place, **gated(place, FOUND), on_crash="resume")["runtime_id"]
    wait_said(stable, runtime_id)
    log = str(stable.log_path(runtime_id))
    watch = place.start("watch", "--follow", "--classify", "--accumulate", log)
    waits = start(place, stable, "await", "lab")
    os.kill(stable.runtime_pid(runtime_id), signal.SIGKILL)
    assert finish(waits) == ("done\n", "", 0)
    client.call("cancel", runtime_id=runtime_id)
    out, err, status = finish(watch)
    assert (err, status) == ("", 0)
    lines = [line.split(" ", 4) for line in out.splitlines()]
    assert {line[1] for line in lines} == {"EVENT"}
    assert [line[2] for line in lines if line[2] in ("run.start", "run.resumed", "run.end")] == [
        "run.start",
        "run.resumed",
        "run.end",
    ]
    milestones = [line[2] for line in lines if line[0] == "MILESTONE"]
    assert {"session.start", "tool.call_update", "session.end"} <= set(milestones)
    chunks = [event for event in read_log(stable.log_path(runtime_id)) if event["event"] == "agent.message_chunk"]
    said = [line[4] for line in lines if line[2] == "agent.message_chunk"]
    assert "".join("".join(said).split()) == "".join("".join(c["content"]["text"] for c in chunks).split())
    assert len(said) < len(chunks)


@pytest.mark.parametrize("words", [[], ["--print-output"]])
@pytest.mark.parametrize(
    ("end", "status", "word"),
    [("cancel", 12, "killed: cancelled"), ("kill", 3, "lost: runtime_lost"), ("shutdown", 12, "killed: cancelled")],
)
def test_a_run_that_is_ended_ends_the_wait(
    place: Place, stable: Stable, end: str, status: int, word: str, words: list[str]
) -> None:
    """By a cancel, the loss of its process, or its supervisor's shutdown, which is not outrun."""
    client = stable.connect()
    runtime_id = client.spawn(place, **gated(place))["runtime_id"]
    wait_said(stable, runtime_id)
    waits = start(place, stable, "await", "lab", "--until", "done", *words)
    eventually_sync(lambda: connections(stable.process, stable.socket) >= 2, WAIT_SECONDS)
    if end == "cancel":
        client.call("cancel", runtime_id=runtime_id)
    elif end == "kill":
        os.kill(stable.runtime_pid(runtime_id), signal.SIGKILL)
    else:
        assert stable.shutdown() == 0
    out, err, code = finish(waits)
    line, rest = (err, out) if words else (out, err)
    assert (line.startswith(word), rest.strip() in ("", "Before."), code) == (True, True, status), (out, err)


def test_a_permission_wakes_who_waits_for_attention(place: Place, stable: Stable) -> None:
    """With what is asked; who waits for the end goes on until it is answered."""
    client = stable.connect()
    script = place.script(steps(ASK, say("Thanks.")))
    runtime_id = client.spawn(place, script=script, label="lab")["runtime_id"]
    to_the_end = start(place, stable, "await", "lab", "--until", "done", "--print-output")
    out, _, status = finish(start(place, stable, "await", "lab", "--json"))
    assert status == 20
    asked = json.loads(out)["permission"]
    client.call("answer_permission", runtime_id=runtime_id, request_id=asked["request_id"], option_id="once")
    assert finish(to_the_end) == ("Thanks.\n", "done\n", 0)


def test_the_own_socket_of_a_run_is_waited_on(place: Place) -> None:
    """By its run id or label; the run ends with its turn, and so does its socket, but not before the reply is given."""
    reply = "word " * 2000 + "end"
    gate = {"do": "wait_for", "path": str(place.work / "gate"), "timeout": "60s"}
    script = place.script(steps(gate, say(reply)))
    path = place.path / "own.sock"
    run = place.run("--prompt", "x", "--script", script, "--label", "lab", "--control-socket", str(path))
    run.wait_event("turn.start")
    waits = place.start("await", "lab", "--socket", str(path), "--until", "done", "--json")
    reads = place.start("await", "lab", "--socket", str(path), "--print-output")
    eventually_sync(lambda: connections(run.process, path) == 2, WAIT_SECONDS)
    (place.work / "gate").touch()
    out, err, status = finish(waits)
    assert (json.loads(out)["outcome"], err, status) == ("DONE", "", 0)
    assert finish(reads) == (f"{reply}\n", "done\n", 0)
    assert run.finish() == 0
