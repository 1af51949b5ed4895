"""What the zygote does so that its forks are small and fast."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import trio

from avenor.host.logfile import last_line
from avenor.protocol.events import RunEnd, decode_event
from avenor.runtimes import rehearsal
from avenor.runtimes.rehearsal import clear_left, live_runs, make_stage, rehearse, rehearse_start


def _play_start(parent: str) -> None:
    stage = make_stage(parent)
    rehearse_start(stage)
    shutil.rmtree(stage)


@pytest.mark.parametrize("play", [rehearse, _play_start])
def test_a_rehearsal_leaves_no_descriptor_thread_process_or_file_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, play: Callable[[str], None]
) -> None:
    """Every fork would have them."""
    monkeypatch.setattr(rehearsal, "_MEMORY", str(tmp_path))
    descriptors = set(os.listdir("/dev/fd"))
    threads, children = set(threading.enumerate()), set(psutil.Process().children())
    play(str(tmp_path))
    # What other tests left may have ended meanwhile.
    assert set(os.listdir("/dev/fd")) <= descriptors
    assert set(threading.enumerate()) <= threads
    assert set(psutil.Process().children()) <= children
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("has_memory", [False, True])
def test_what_killed_rehearsals_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_memory: bool
) -> None:
    """Once nobody can be using it, and nothing else; in memory, or where there is no place for it there."""
    memory, parent = tmp_path / "memory", tmp_path / "parent"
    monkeypatch.setattr(rehearsal, "_MEMORY", str(memory))
    parent.mkdir()
    if has_memory:
        memory.mkdir()
    place = memory if has_memory else parent
    for name in ("avenor-rehearsal-old", "avenor-rehearsal-new", "another"):
        (place / name / "0").mkdir(parents=True)
        if name != "avenor-rehearsal-new":
            os.utime(place / name, (0, 0))
    clear_left(str(parent))
    assert {path.name for path in place.iterdir()} == {"avenor-rehearsal-new", "another"}
    _play_start(str(parent))
    assert len(list(place.iterdir())) == 2


_MEASURED = """
import gc, os, pathlib, shutil
from avenor.runtimes.immortal import fill_gaps, immortalize
from avenor.runtimes.rehearsal import make_stage, rehearse_start
from avenor.runtimes.zygote import preload

def measure():
    stage, (out, into) = make_stage(), os.pipe()
    if os.fork() == 0:
        rehearse_start(stage)
        sizes = pathlib.Path("/proc/self/smaps_rollup").read_text()
        os.write(into, sizes.partition("Private_Dirty:")[2].split()[0].encode())
        os._exit(0)
    os.wait()
    shutil.rmtree(stage)
    return int(os.read(out, 100))

gc.disable()
preload(os.environ["TMPDIR"])
gc.collect()
immortalize()
gc.freeze()
before = min(measure() for _ in range(2))
kept = fill_gaps()
print(before, min(measure() for _ in range(2)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_gaps_that_are_filled_make_forks_smaller(tmp_path: Path) -> None:
    """By some hundred KiB on 3.11, by some eighty where objects are immortal."""
    ran = subprocess.run(
        [sys.executable, "-c", _MEASURED],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    before, after = map(int, ran.stdout.split())
    assert after < before - 40


def test_what_only_manifests_need_is_not_imported(tmp_path: Path) -> None:
    """Neither their runner nor the YAML parser, which every runtime of a supervisor would have in its memory."""
    code = (
        "import sys; from avenor.runtimes.zygote import preload; preload(sys.argv[1]); "
        "print([name for name in ('yaml', 'hypercorn', 'avenor.runtimes.manifest') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_the_runs_of_a_rehearsal_are_lived_to_their_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a turn, as those of users are; what fails at once would teach the interpreter nothing."""
    monkeypatch.setattr(rehearsal, "_LIMIT_SECONDS", float("inf"))
    trio.run(live_runs, tmp_path)
    logs = sorted(tmp_path.glob("*/events.ndjson"))
    assert logs
    for log in logs:
        end = decode_event(last_line(log) or b"")
        assert isinstance(end, RunEnd)
        assert end.status == "DONE"
        assert b'"turn.end"' in log.read_bytes()
