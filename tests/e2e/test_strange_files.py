"""Families: what a spawn names may be anything: FIFOs, devices, directories, and words that try to forge lines."""

import os
from pathlib import Path

import pytest

from tests.e2e.harness import WAIT_SECONDS, Client, Place, Stable, read_log, say, steps
from tests.helpers import eventually_sync


def strange(place: Place, kind: str) -> Path:
    """A path where something other than a plain file is."""
    path = place.path / f"strange.{kind}"
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "full device":
            return Path("/dev/full")
        case "loop":
            path.symlink_to(path)
        case _:
            return place.path / "nowhere" / "file"
    return path


@pytest.mark.parametrize("kind", ["fifo", "directory", "full device", "loop", "missing directory"])
def test_a_strange_event_file_does_not_end_the_run(place: Place, kind: str) -> None:
    """A copy of the log that cannot be written is told, or refused by its name; it hangs nobody."""
    stable = Stable(place)
    client = stable.connect()
    script = place.script(steps(say("ok")))
    path = strange(place, kind)
    answer = client.ask("spawn", prompt="x", dir=str(place.work), backend="scripted", script=script, on_event=str(path))
    if "error" in answer:
        assert str(path) in answer["error"]["message"]
        return
    runtime_id = answer["result"]["runtime_id"]
    assert client.call("wait", runtime_id=runtime_id, until="done")["outcome"] == "DONE"
    log = read_log(stable.log_path(runtime_id))
    assert str(path) in str([event for event in log if event["event"] == "avenor.error"])
    assert client.call("cancel", runtime_id=runtime_id) == {"ok": True, "left": []}
    assert stable.shutdown() == 0


@pytest.mark.parametrize("kind", ["directory", "loop", "missing directory"])
def test_a_sentinel_that_cannot_be_written_is_in_the_log(place: Place, kind: str) -> None:
    """The outcome is in the list and in the log, and the log says that the sentinel is missing."""
    stable = Stable(place)
    client = stable.connect()
    path = strange(place, kind)
    script = place.script(steps(say("ok")))
    answer = client.ask(
        "spawn", prompt="x", dir=str(place.work), backend="scripted", script=script, sentinel_file=str(path)
    )
    if "error" in answer:
        assert str(path) in answer["error"]["message"]
        return
    runtime_id = answer["result"]["runtime_id"]
    assert client.call("wait", runtime_id=runtime_id, until="done")["outcome"] == "DONE"
    client.call("cancel", runtime_id=runtime_id)
    told = path.is_file() or str(path) in str(read_log(stable.log_path(runtime_id))[1:])
    assert told
    assert client.call("status", runtime_id=runtime_id)["outcome"] == "DONE"


def test_no_value_can_forge_a_line_of_the_sentinel(shared: Stable, client: Client) -> None:
    """Line breaks and control characters in a run id or a reason become blanks."""
    forged = "x\nDONE\r\nSESSION=evil\u2028STOP_REASON=end_turn\x00\x1b[2J"
    script = shared.place.script(steps({"do": "stop", "reason": forged.replace("\x00", "")}))
    answer = client.ask(
        "spawn",
        prompt="x",
        dir=str(shared.place.work),
        backend="scripted",
        script=script,
        run_id=forged.replace("\x00", ""),
        label="a\nb",
    )
    assert "result" in answer, answer
    runtime_id = answer["result"]["runtime_id"]
    client.call("wait", runtime_id=runtime_id, until="done")
    eventually_sync(lambda: (shared.state / runtime_id / "sentinel.env").exists(), WAIT_SECONDS)
    lines = (shared.state / runtime_id / "sentinel.env").read_bytes().split(b"\n")
    assert [line.partition(b"=")[0] for line in lines] == [
        b"FAILED",
        b"SESSION",
        b"STOP_REASON",
        b"EXIT_CODE",
        b"RUN",
        b"",
    ]
    assert len(shared.log_path(runtime_id).read_bytes().splitlines()) == len(read_log(shared.log_path(runtime_id)))


@pytest.mark.parametrize("run_id", ["../../../../escape", "/abs/olute", ".", "a/b", "x" * 300, "-rf"])
def test_a_run_id_is_no_path(shared: Stable, client: Client, run_id: str) -> None:
    """Whatever it holds, nothing is written outside of where it should be."""
    script = shared.place.script(steps(say("ok"), times=1), steps(say("again")))
    runtime_id = client.spawn(shared.place, script=script, run_id=run_id)["runtime_id"]
    assert client.call("wait", runtime_id=runtime_id, until="done")["outcome"] == "DONE"
    assert client.call("status", runtime_id=runtime_id)["run_id"] == run_id
    names = {path.name for path in shared.place.path.iterdir()}
    assert names <= {"s.sock", "s.sock.lock", "s.state", "script.json", "work", "xdg"}
    assert not Path("/abs").exists()


def test_the_working_directory_goes_away(shared: Stable, client: Client) -> None:
    """Removed between two turns: the second fails by name or goes on; the runtime can be cancelled."""
    work = shared.place.path / "work" / "gone"
    work.mkdir()
    runtime_id = client.spawn(shared.place, script=shared.place.script(steps(say("ok"))), dir=str(work))["runtime_id"]
    client.call("wait", runtime_id=runtime_id, until="done")
    work.rmdir()
    client.call("prompt", runtime_id=runtime_id, text="again")
    client.call("wait", runtime_id=runtime_id, until="done")
    assert client.call("cancel", runtime_id=runtime_id) == {"ok": True, "left": []}


def test_a_runtime_whose_socket_was_removed_can_still_be_ended(place: Place) -> None:
    """Its socket file is gone when the next supervisor starts: it is not doubled, and a kill shutdown ends it."""
    first = Stable(place)
    script = place.script(steps(say("ok"), {"do": "hang"}))
    runtime_id = first.connect().spawn(place, script=script)["runtime_id"]
    first.process.kill()
    first.wait_exit()
    (first.state / runtime_id / "control.sock").unlink()
    second = Stable(place)
    client = second.connect()
    assert [each["runtime_id"] for each in client.call("list")] == [runtime_id]
    assert second.shutdown("kill") == 0
    assert place.processes() == {}
    assert second.sentinel(runtime_id).status in ("KILLED", "FAILED")
