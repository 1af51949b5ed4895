"""Families: SIGPIPE, full pipes and full disks: nobody needs to read what we say on standard error.

A reply gets out whole, or its loss is told.
"""

import array
import fcntl
import os
import subprocess
import termios

import pytest

from tests.e2e.harness import AVENOR, WAIT_SECONDS, Client, Place, Stable, say, steps
from tests.helpers import eventually_sync


def test_a_supervisor_survives_the_reader_of_its_log(place: Place) -> None:
    """The terminal or log pipe behind standard error has gone: it works on, and stops in good order."""
    stable = Stable(place, "--log-level", "debug")
    assert stable.process.stderr is not None
    stable.process.stderr.close()
    stable.process.stderr = None
    client = stable.connect()
    runtime_id = client.spawn(place, script=place.script(steps(say("ok"))))["runtime_id"]
    assert client.call("wait", runtime_id=runtime_id, until="done")["outcome"] == "DONE"
    assert stable.shutdown() == 0
    assert "reason=shutdown" in stable.tombstone.read_text()
    assert place.processes() == {}


def test_a_supervisor_does_not_hang_on_a_full_pipe(place: Place) -> None:
    """Standard error is a pipe that nobody reads: when it is full, clients are served all the same."""
    stable = Stable(place, "--log-level", "debug", "--max-runtimes", "100")
    client = stable.connect()
    for _ in range(10):
        asked = [
            client.send("spawn", prompt="x", dir="/nonexistent", backend="scripted", run_id="y" * 1000)
            for _ in range(60)
        ]
        assert all("error" in client.answer(each) for each in asked)
    runtimes = [
        client.send(
            "spawn", prompt="x", dir=str(place.work), backend="acp", agent_command="/" + "n" * 200, label="z" * 1000
        )
        for _ in range(60)
    ]
    assert all("error" in client.answer(each) for each in runtimes)
    with Client(stable.socket) as other:
        assert other.call("ping")["mode"] == "stable"
    client.call("shutdown", mode="graceful")
    assert stable.process.wait(WAIT_SECONDS) == 0


def test_a_run_with_closed_streams_ends_truly(place: Place) -> None:
    """Started with 0, 1 and 2 closed, as by a careless daemon: the outcome is the same, and no file gets our output."""
    sentinel = place.path / "run.done"
    script = place.script(steps(say("ok")))
    command = f"exec {AVENOR} run --backend scripted --script {script} --prompt x --sentinel-file {sentinel}"
    process = subprocess.Popen(
        ["sh", "-c", f"{command} <&- >&- 2>&-"], cwd=place.work, env=place.environ(), start_new_session=True
    )
    assert process.wait(WAIT_SECONDS) == 0
    assert sentinel.read_text().startswith("DONE\n")


def start_run(place: Place, stdout: int, *rules: dict[str, object]) -> "subprocess.Popen[bytes]":
    """A run of the scripted agent whose reply goes there."""
    words = ["--backend", "scripted", "--script", place.script(*rules), "--prompt", "x", "--sentinel-file", "run.done"]
    return subprocess.Popen(
        [AVENOR, "run", *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        cwd=place.work,
        env=place.environ(),
        start_new_session=True,
    )


def test_a_reply_comes_whole_through_a_pipe_that_is_not_blocking(place: Place) -> None:
    """As the pipes of a host that waits for events are; it reads when it has time."""
    reply = "".join(f"{number:09}\n" for number in range(40_000))
    out, into = os.pipe()
    os.set_blocking(into, False)
    process = start_run(place, into, steps(say(reply)))

    def is_full() -> bool:
        waiting = array.array("i", [0])
        fcntl.ioctl(out, termios.FIONREAD, waiting)
        return waiting[0] == fcntl.fcntl(out, fcntl.F_GETPIPE_SZ)

    os.close(into)
    eventually_sync(is_full, WAIT_SECONDS)
    with open(out, "rb") as file:
        assert file.read().decode() == reply
    assert process.communicate(timeout=WAIT_SECONDS)[1] != b""
    assert process.returncode == 0


def test_a_reply_that_cannot_be_written_is_told(place: Place) -> None:
    """On a full disk: the run has ended well, and says so in its sentinel, but its caller has no reply."""
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    full = os.open("/dev/full", os.O_WRONLY)
    process = start_run(place, full, steps(say("lost")))
    os.close(full)
    complaints = process.communicate(timeout=WAIT_SECONDS)[1].decode()
    assert process.returncode == 1
    assert complaints.splitlines()[-1] == "avenor: cannot write the output: No space left on device"
    assert (place.work / "run.done").read_text().startswith("DONE\n")


def test_a_reader_that_has_left_before_the_reply_is_no_failure(place: Place) -> None:
    """Somebody did not want it."""
    out, into = os.pipe()
    os.close(out)
    process = start_run(place, into, steps(say("unheard")))
    os.close(into)
    complaints = process.communicate(timeout=WAIT_SECONDS)[1].decode()
    assert "cannot write" not in complaints
    assert process.returncode == 0
