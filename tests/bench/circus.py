"""circus as it is compared: JSON over ZeroMQ, on one connection, with requests encoded beforehand."""

import importlib
import json
import subprocess
import time
from typing import Any

from tests.bench.peers import Peer, script

_CONFIG = """
[circus]
endpoint = ipc://{folder}/s
pubsub_endpoint = ipc://{folder}/p
statsd = false
httpd = false
loglevel = ERROR
"""

_WATCHER = """
[watcher:child{index}]
cmd = {command}
autostart = {autostart}
copy_env = true
"""


class Circus(Peer):
    """circusd, each child a watcher of its own, as each run is a runtime of its own."""

    name = "circus"

    def list_command(self) -> list[str]:
        """See `Peer.list_command`."""
        return [script("circusctl"), "--endpoint", f"ipc://{self._folder}/s", "status"]

    def ask(self) -> float:
        """See `Peer.ask`: `numwatchers`."""
        return self._timed(_request("numwatchers"))

    def ask_all(self) -> float:
        """See `Peer.ask_all`: `status` of all watchers."""
        return self._timed(_request("status"))

    def _command(self) -> list[str]:
        config = self._folder / "conf"
        watchers = [
            _WATCHER.format(index=index, command=" ".join(self._child), autostart=self._are_started)
            for index in range(self._count)
        ]
        config.write_text(_CONFIG.format(folder=self._folder) + "".join(watchers))
        return [script("circusd"), str(config)]

    def _connect(self) -> None:
        # Only the benchmark's own dependencies bring it, and the type checkers must do without.
        zmq: Any = importlib.import_module("zmq")
        self._socket: Any = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(f"ipc://{self._folder}/s")
        deadline = time.monotonic() + 20
        # It answers before it knows all its watchers.
        while self._exchange(_request("numwatchers"))["numwatchers"] != self._count:
            if time.monotonic() > deadline:
                raise RuntimeError("circus does not get its watchers ready")
            time.sleep(0.01)

    def stop(self) -> float:
        """See `Peer.stop`."""
        taken = super().stop()
        self._socket.close()
        return taken

    def _ask_to_stop(self, process: "subprocess.Popen[bytes]") -> None:
        # Under load it was seen to miss a SIGTERM.
        self._socket.send(_request("quit", waiting=True))

    def _send_start(self, index: int) -> None:
        self._socket.send(_request("start", name=f"child{index}", waiting=True))

    def _take_started(self) -> None:
        answer = json.loads(self._socket.recv())
        if answer["status"] != "ok":
            raise RuntimeError(f"circus has not started a child: {answer}")

    def _timed(self, request: bytes) -> float:
        began = time.perf_counter()
        self._socket.send(request)
        self._socket.recv()
        return time.perf_counter() - began

    def _exchange(self, request: bytes) -> Any:
        self._socket.send(request)
        return json.loads(self._socket.recv())


def _request(command: str, **properties: object) -> bytes:
    return json.dumps({"id": "1", "command": command, "properties": properties}).encode()
