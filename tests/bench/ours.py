"""A private supervisor of ours, and a client that adds nothing to what is measured."""

import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from tests.bench import machine
from tests.helpers import name_of

AVENOR = Path(sys.executable).with_name("avenor")
_START_SECONDS = 20.0
# Longer than anything here takes: a benchmark that hangs tells nobody why.
_PATIENCE = struct.pack("ll", 60, 0)
_RECEIVE_BYTES = 1 << 20
# More than any row has alive at once.
_ENOUGH = "2000"

Params = Mapping[str, object]


class Refusal(Exception):
    """A call was answered with an error."""


class Client:
    """A blocking connection to a control socket.

    Args:
        path: The socket.
    """

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        # The kernel's own limit: Python's would cost a call more for each receive.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _PATIENCE)
        self._socket.connect(str(path))
        self._last_id = 0

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def call(self, method: str, params: Params | None = None) -> Any:
        """The result of a call, decoded.

        Raises:
            Refusal: It was answered with an error.
        """
        answer = msgspec.json.decode(self.exchange(self.request(method, params)))
        if "error" in answer:
            raise Refusal(f"{method}: {answer['error']}")
        return answer["result"]

    def request(self, method: str, params: Params | None = None) -> bytes:
        """A request, encoded."""
        self._last_id += 1
        message = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params or {}}
        return msgspec.json.encode(message) + b"\n"

    def exchange(self, line: bytes) -> bytes:
        """Sends one line and returns the next that comes."""
        self._socket.sendall(line)
        answer = self.receive()
        while answer[-1:] != b"\n":
            answer += self.receive()
        return answer

    def receive(self) -> bytes:
        """What comes next, as it comes.

        Raises:
            Refusal: The server has hung up.
            BlockingIOError: Nothing has come for a minute.
        """
        data = self._socket.recv(_RECEIVE_BYTES)
        if not data:
            raise Refusal("the server has hung up")
        return data

    def receive_into(self, buffer: bytearray) -> int:
        """The same, into a buffer; returns how much."""
        size = self._socket.recv_into(buffer)
        if not size:
            raise Refusal("the server has hung up")
        return size


class Supervisor:
    """`avenor stable` in a folder of its own, warm when the `with` block begins.

    Args:
        folder: Made for it.
        is_fresh: Whether it starts with an empty state directory; else it takes over what is there.

    Attributes:
        state: Its state directory.
        start_seconds: From its start to its first answer.
    """

    def __init__(self, folder: Path, *, is_fresh: bool = True) -> None:
        self.socket = folder / "s"
        self.state = folder / "state"
        self.start_seconds = 0.0
        self._folder = folder
        self._is_fresh = is_fresh
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Supervisor":
        self._folder.mkdir(parents=True, exist_ok=True)
        command = [str(AVENOR), "stable", "--control-socket", str(self.socket), "--state-dir", str(self.state)]
        limits = ["--max-runtimes", _ENOUGH, "--max-parked", _ENOUGH, "--queue", "0", "--log-level", "warning"]
        environ = {**os.environ, "XDG_STATE_HOME": str(self._folder / "xdg"), "PYTHONDONTWRITEBYTECODE": "1"}
        began = time.perf_counter()
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen([*command, *limits], stderr=log, env=environ, start_new_session=True)
        self._wait_answer()
        self.start_seconds = time.perf_counter() - began
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_running:
            with self.client() as client:
                client.call("shutdown", {"mode": "kill"})
        if self._process is not None:
            self._process.wait(_START_SECONDS)

    @property
    def pid(self) -> int:
        """The supervisor's process."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process is not None and self._process.poll() is None

    def client(self) -> Client:
        """A new connection."""
        return Client(self.socket)

    def wait_spare(self) -> int:
        """Waits until the zygote has made a fork ahead; returns which process it is."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            for pid in machine.children(machine.zygote_of(self.pid)):
                if name_of(pid) == "avenor-spare":
                    return pid
            if time.monotonic() > deadline:
                raise RuntimeError("the zygote makes no fork ahead")
            time.sleep(0.001)

    def runtime_client(self, runtime_id: str) -> Client:
        """A connection to a runtime itself."""
        return Client(self.state / runtime_id / "control.sock")

    def wait_ended(self) -> None:
        """Waits until it has ended."""
        assert self._process is not None
        self._process.wait(_START_SECONDS)

    def warm_up(self, params: Params) -> None:
        """Spawns twice: the zygote answers when it is ready, and then has forked."""
        with self.client() as client:
            for _ in range(2):
                spawn_and_rest(client, params)

    def runtime_pids(self) -> dict[str, int]:
        """The processes of all runtimes that have not ended."""
        with self.client() as client:
            return {s["runtime_id"]: s["pid"] for s in client.call("list") if s["status"] != "ended"}

    def spawn_many(self, params: Params, count: int, clients: int) -> float:
        """Spawns from several clients at once; returns the seconds that all of it took. They own what they spawned
        until this returns.
        """

        def spawn_share(share: int) -> None:
            with self.client() as client:
                for _ in range(share):
                    client.call("spawn", params)

        shares = [count // clients + (index < count % clients) for index in range(clients)]
        with ThreadPoolExecutor(clients) as pool:
            began = time.perf_counter()
            list(pool.map(spawn_share, shares))
            return time.perf_counter() - began

    def spawn_one_by_one(self, params: Params, count: int) -> None:
        """Spawns as people do: not before the last spawn is a while ago."""
        with self.client() as client:
            for _ in range(count):
                self.wait_spare()
                client.call("spawn", params)

    def wait_parked(self) -> None:
        """Waits until every runtime that has not ended is parked."""
        with self.client() as client:
            for runtime_id in self.runtime_pids():
                client.call("wait", {"runtime_id": runtime_id, "until": "done", "timeout_ms": 20_000})

    def _wait_answer(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                with self.client() as client:
                    client.call("ping")
                return
            except OSError:
                if not self.is_running or time.monotonic() > deadline:
                    raise RuntimeError(
                        f"the supervisor does not answer:\n{(self._folder / 'log').read_text()}"
                    ) from None
            time.sleep(0.005)


def agent_params(command: str, **more: object) -> Params:
    """Spawn params for an agent of ours."""
    return {"backend": "acp", "agent_command": command, "prompt": "hello", "dir": "/", **more}


def spawn_and_rest(client: Client, params: Params) -> str:
    """Spawns one, waits until it is parked, and ends it; returns its id."""
    runtime_id: str = client.call("spawn", params)["runtime_id"]
    rest(client, runtime_id)
    return runtime_id


def rest(client: Client, runtime_id: str) -> None:
    """Waits until a runtime is parked, and ends it."""
    client.call("wait", {"runtime_id": runtime_id, "until": "done", "timeout_ms": 20_000})
    client.call("cancel", {"runtime_id": runtime_id})
