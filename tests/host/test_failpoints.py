"""The named places of the chaos suite: nothing in production, and exactly one kill where one is asked for."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from avenor.host import failpoints
from avenor.host.failpoints import VARIABLE, failpoint, no_failpoints
from tests.helpers import eventually_sync

_REACH = """
import sys
from avenor.host.failpoints import failpoint
failpoint(sys.argv[1])
print("passed", flush=True)
"""


def _environ(directory: Path | None) -> Mapping[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return kept if directory is None else {**kept, VARIABLE: str(directory)}


def _start(name: str, directory: Path | None) -> "subprocess.Popen[bytes]":
    """A process that reaches this place, and says so when it has passed it."""
    command = [sys.executable, "-c", _REACH, name]
    return subprocess.Popen(command, env=_environ(directory), stdout=subprocess.PIPE)


def _arm(directory: Path, kind: str, name: str) -> Path:
    (directory / kind).mkdir(exist_ok=True)
    path = directory / kind / name
    path.touch()
    return path


@pytest.fixture
def armed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process looks for failpoints in the directory of the test."""
    monkeypatch.setattr(failpoints, "_directory", str(tmp_path))
    return tmp_path


def test_a_process_that_was_not_started_for_it_has_no_failpoints(tmp_path: Path) -> None:
    """Without the variable nothing is read and nothing written, a file that asks for a kill included."""
    armed = _arm(tmp_path, "kill", "here")
    process = _start("here", None)
    assert process.communicate()[0] == b"passed\n"
    assert armed.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kill"]


def test_every_time_that_a_place_is_reached_is_a_line(armed: Path) -> None:
    """Name and pid, in the order in which they came."""
    for name in ("one.begun", "two.begun", "one.begun"):
        failpoint(name)
    pid = os.getpid()
    assert (armed / "hits").read_text() == f"one.begun {pid}\ntwo.begun {pid}\none.begun {pid}\n"
    assert not (armed / "killed").exists()


def test_of_several_processes_one_is_killed_where_one_kill_was_asked_for(tmp_path: Path) -> None:
    """The first there takes the request away, so that the others pass; who it was is written down."""
    armed = _arm(tmp_path, "kill", "here")
    processes = [_start("here", tmp_path) for _ in range(4)]
    said = [process.communicate()[0] for process in processes]
    codes = [process.returncode for process in processes]
    assert sorted(codes) == [-signal.SIGKILL, 0, 0, 0]
    killed = codes.index(-signal.SIGKILL)
    assert said[killed] == b""
    assert (tmp_path / "killed").read_text() == f"here {processes[killed].pid}\n"
    assert len((tmp_path / "hits").read_text().splitlines()) == 4
    assert not armed.exists()


def test_only_the_place_that_is_meant_kills(tmp_path: Path) -> None:
    """Another name passes, and the request stays."""
    armed = _arm(tmp_path, "kill", "here")
    assert _start("there", tmp_path).communicate()[0] == b"passed\n"
    assert armed.exists()


def test_a_held_process_goes_on_when_it_is_let_go(tmp_path: Path) -> None:
    """It has said that it is there, and is not past the place while the file exists."""
    held = _arm(tmp_path, "hold", "here")
    with _start("here", tmp_path) as process:
        eventually_sync((tmp_path / "hits").exists)
        assert process.poll() is None
        held.unlink()
        assert process.communicate()[0] == b"passed\n"


def test_a_rehearsal_counts_for_nothing(armed: Path) -> None:
    """What the zygote plays before it forks neither counts nor kills; afterwards places count again."""
    with no_failpoints():
        failpoint("here")
    assert not (armed / "hits").exists()
    failpoint("here")
    assert (armed / "hits").exists()
