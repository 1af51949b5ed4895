"""Starts `avenor run`'s code and a supervisor's runtimes as real processes, on the scripted agent."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from avenor.host.identity import read_stat
from avenor.protocol.events import AnyEvent, decode_event
from avenor.protocol.outcomes import Outcome, parse_sentinel
from avenor.protocol.spec import Record, RunSpec
from tests.helpers import eventually_sync

_RUN_ONCE = """
import sys, msgspec
from avenor.protocol.spec import RunSpec
from avenor.runtimes.main import run_once
arguments = msgspec.json.decode(sys.argv[1])
spec = msgspec.convert(arguments.pop("spec"), RunSpec)
sys.exit(run_once(spec, **arguments))
"""


def script_of(directory: Path, *steps: dict[str, Any], **members: Any) -> str:
    """Writes a script that plays these steps for every prompt; returns its path."""
    path = directory / "script.json"
    path.write_text(json.dumps({"rules": [{"steps": list(steps)}], **members}))
    return str(path)


class OneShot:
    """One `avenor run` in a process of its own, with its files in a directory."""

    def __init__(
        self,
        directory: Path,
        *,
        quiet: bool = False,
        control_socket: str | None = None,
        setup: Callable[[], None] | None = None,
        stdio: int = subprocess.PIPE,
        environ: dict[str, str] | None = None,
        **spec: Any,
    ) -> None:
        self.directory = directory
        self.sentinel_path = directory / "run.done"
        self.log_path = directory / "log.ndjson"
        self.state = directory / "state"
        values = {
            "prompt": "hello",
            "dir": str(directory),
            "backend": "scripted",
            "sentinel_file": str(self.sentinel_path),
            "on_event": str(self.log_path),
            **spec,
        }
        arguments = {"spec": values, "quiet": quiet, "control_socket": control_socket}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _RUN_ONCE, json.dumps(arguments)],
            stdin=subprocess.DEVNULL,
            stdout=stdio,
            stderr=stdio,
            text=True,
            env={**os.environ, "XDG_STATE_HOME": str(self.state), **(environ or {})},
            preexec_fn=setup,
        )

    def finish(self) -> "tuple[int, str, str]":
        """Exit code, stdout and stderr."""
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err

    def wait_event(self, name: str) -> None:
        """Waits until the log has an event of this name."""
        eventually_sync(lambda: name in self.names)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the run, and to nothing else."""
        self.process.send_signal(number)

    @property
    def events(self) -> list[AnyEvent]:
        """What the log holds now; each line of it is whole."""
        return read_log(self.log_path)

    @property
    def names(self) -> list[str]:
        """Names of the events so far."""
        return [str(event.__struct_config__.tag) for event in self.events]

    @property
    def sentinel(self) -> Outcome:
        """What the sentinel says."""
        return parse_sentinel(self.sentinel_path.read_text())


class Child:
    """A runtime under a supervisor that is not there: the directory, the readiness pipe, the process."""

    def __init__(self, directory: Path, *, parks: bool = True, parked_timeout: float = 0.0, **spec: Any) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        values = {"prompt": "hello", "dir": str(directory), "backend": "scripted", **spec}
        self.record = Record(
            runtime_id="rt_1",
            run_id="run_1",
            spec=msgspec.convert(values, RunSpec),
            prompt=values["prompt"],
            parks=parks,
            parked_timeout=parked_timeout,
            environ=dict(os.environ),
            version="1",
        )
        (directory / "record.json").write_bytes(msgspec.json.encode(self.record))
        self.log_path = directory / "events.ndjson"
        self.sentinel_path = directory / "sentinel.env"
        self.socket_path = str(directory / "control.sock")
        self.process, self.ready = start_in(directory)

    def finish(self) -> int:
        """The exit code."""
        return self.process.wait(timeout=60)


def start_in(directory: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Starts a runtime in a directory with a record; returns it and the line that it says on its readiness pipe."""
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "avenor.runtimes", str(directory), str(writer)],
        pass_fds=[writer],
        stdin=subprocess.DEVNULL,
    )
    os.close(writer)
    with open(reader, encoding="utf-8") as pipe:
        return process, pipe.read()


def read_log(path: Path) -> list[AnyEvent]:
    """The whole lines of a log that somebody may be writing to."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    return [decode_event(line) for line in lines[:-1]]


def alive(pids: Sequence[int]) -> list[int]:
    """Those of these processes that still run; zombies do not."""
    return [pid for pid in pids if (found := read_stat(pid)) is not None and not found.is_dead]
