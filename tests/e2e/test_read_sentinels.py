"""A sentinel that its reader has taken away stays away: its path may be another run's by then."""

import os
import signal
from collections.abc import Callable

import pytest

from tests.e2e.harness import WAIT_SECONDS, Client, Place, Stable, steps
from tests.helpers import eventually_sync


def cancel(stable: Stable, client: Client) -> None:
    """By its owner."""
    assert client.call("cancel", runtime_id="rt_1") == {"ok": True, "left": []}
    assert stable.shutdown() == 0


def reap(stable: Stable, client: Client) -> None:
    """By one more that parks."""
    second = client.spawn(stable.place)["runtime_id"]
    client.call("wait", runtime_id=second, until="done")
    eventually_sync(lambda: client.call("status", runtime_id="rt_1")["status"] == "ended", WAIT_SECONDS)
    eventually_sync(lambda: client.call("status", runtime_id="rt_1")["pid"] is None, WAIT_SECONDS)
    assert stable.shutdown() == 0


def shut_down(stable: Stable, _client: Client) -> None:
    """With the supervisor."""
    assert stable.shutdown() == 0


def kill(stable: Stable, _client: Client) -> None:
    """With the supervisor, and without having been asked."""
    assert stable.shutdown("kill") == 0


@pytest.mark.parametrize("end", [cancel, reap, shut_down, kill], ids=lambda end: end.__name__)
def test_a_parked_run_that_is_ended_writes_no_sentinel_again(
    place: Place, end: Callable[[Stable, Client], None]
) -> None:
    """Its turn was told. The log has the end, and the next supervisor does not write it either."""
    stable = Stable(place, "--max-parked", "1")
    client = stable.connect()
    spawned = client.spawn(place, sentinel_file=str(place.path / "done"))
    client.call("wait", runtime_id=spawned["runtime_id"], until="done")
    (place.path / "done").unlink()
    end(stable, client)
    assert not (place.path / "done").exists()
    again = Stable(place)
    status = again.connect().call("status", runtime_id="rt_1")
    assert (status["status"], status["outcome"]) == ("ended", "DONE")
    assert again.shutdown() == 0
    assert not (place.path / "done").exists()


@pytest.mark.parametrize("place_held", ["end.before_log", "sentinel.before_rename"])
def test_a_run_that_could_not_start_has_its_sentinel_when_its_end_is_told(place: Place, place_held: str) -> None:
    """However long its process takes to leave after it has said why: one that does not is killed."""
    directory = place.path / "failpoints"
    (directory / "hold").mkdir(parents=True)
    (directory / "hold" / place_held).touch()
    hits = directory / "hits"
    hits.touch()
    stable = Stable(place, environ={"AVENOR_FAILPOINTS": str(directory)})
    client = stable.connect()
    client.call("subscribe")
    refusal = client.send("spawn", prompt="x", dir=str(place.work), backend="scripted", on_event=str(place.path))
    if place_held == "sentinel.before_rename":  # the supervisor comes there in the place of what it has killed
        eventually_sync(lambda: hits.read_text().count(place_held) == 2, WAIT_SECONDS)
        (directory / "hold" / place_held).unlink()
    end = client.wait_event("run.end")
    assert (end["status"], end["stop_reason"]) == ("FAILED", "invalid_config")
    assert stable.sentinel("rt_1").stop_reason == "invalid_config"
    assert client.answer(refusal)["error"]["data"]["runtime_id"] == "rt_1"


@pytest.mark.parametrize("settled_by", ["itself", "supervisor"])
def test_a_sentinel_that_is_taken_at_once_does_not_come_back(place: Place, settled_by: str) -> None:
    """While the run still ends: its reader is faster than its process, which may even be killed before it has gone."""
    directory = place.path / "failpoints"
    (directory / "hold").mkdir(parents=True)
    held = directory / "hold" / "end.after_sentinel"
    held.touch()
    stable = Stable(place, environ={"AVENOR_FAILPOINTS": str(directory)})
    client = stable.connect()
    sentinel = place.path / "done"
    client.spawn(place, script=place.script(steps({"do": "hang"})), sentinel_file=str(sentinel))
    cancelled = client.send("cancel", runtime_id="rt_1")
    eventually_sync(lambda: "end.after_sentinel" in (directory / "hits").read_text(), WAIT_SECONDS)
    sentinel.unlink()
    if settled_by == "supervisor":
        os.kill(stable.runtime_pid("rt_1"), signal.SIGKILL)
    held.unlink()
    assert client.answer(cancelled)["result"] == {"ok": True, "left": []}
    assert not sentinel.exists()
    assert client.call("prune", keep=0)["pruned"] == ["rt_1"]
    assert stable.shutdown() == 0
    assert not sentinel.exists()
