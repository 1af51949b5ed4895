"""supervisord as it is compared: XML-RPC over its Unix socket, on one connection, with requests encoded beforehand."""

import socket
import time
import xmlrpc.client
from typing import Any

from tests.bench.peers import Peer, script

_CONFIG = """
[supervisord]
nodaemon=true
logfile={folder}/supervisord.log
pidfile={folder}/pid
childlogdir={folder}
loglevel=error
user={user}
[unix_http_server]
file={folder}/s
[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix://{folder}/s
[program:child]
command={command}
process_name=%(process_num)d
numprocs={count}
autostart={autostart}
autorestart=false
startsecs=0
stdout_logfile=NONE
stderr_logfile=NONE
"""


class Supervisord(Peer):
    """supervisord."""

    name = "supervisord"

    def list_command(self) -> list[str]:
        """See `Peer.list_command`."""
        return [script("supervisorctl"), "-c", str(self._folder / "conf"), "status"]

    def ask(self) -> float:
        """See `Peer.ask`: `getState`."""
        return self._timed(self._get_state)

    def ask_all(self) -> float:
        """See `Peer.ask_all`: `getAllProcessInfo`."""
        return self._timed(self._get_all)

    def _command(self) -> list[str]:
        import getpass

        config = _CONFIG.format(
            folder=self._folder,
            user=getpass.getuser(),
            command=" ".join(self._child),
            count=self._count,
            autostart=str(self._are_started).lower(),
        )
        (self._folder / "conf").write_text(config)
        self._get_state = _request("supervisor.getState")
        self._get_all = _request("supervisor.getAllProcessInfo")
        return [script("supervisord"), "-c", str(self._folder / "conf")]

    def _connect(self) -> None:
        self._socket = _dial(str(self._folder / "s"))
        self._exchange(self._get_state)
        listed: Any = xmlrpc.client.loads(self._exchange(self._get_all))[0][0]
        if len(listed) != self._count:
            raise RuntimeError(f"supervisord has {len(listed)} children, not {self._count}")

    def _send_start(self, index: int) -> None:
        self._socket.sendall(_request("supervisor.startProcess", f"child:{index}", False))

    def _take_started(self) -> None:
        if xmlrpc.client.loads(self._receive())[0] != (True,):
            raise RuntimeError("supervisord has not started a child")

    def _timed(self, request: bytes) -> float:
        began = time.perf_counter()
        self._exchange(request)
        return time.perf_counter() - began

    def _exchange(self, request: bytes) -> bytes:
        self._socket.sendall(request)
        return self._receive()

    def _receive(self) -> bytes:
        """The body of the next answer."""
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._more()
        head, _, body = answer.partition(b"\r\n\r\n")
        size = next(
            int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
        )
        while len(body) < size:
            body += self._more()
        return body

    def _more(self) -> bytes:
        data = self._socket.recv(1 << 20)
        if not data:
            raise RuntimeError("supervisord has hung up")
        return data


def _request(method: str, *params: object) -> bytes:
    body = xmlrpc.client.dumps(params, method).encode()  # type: ignore[arg-type]
    head = f"POST /RPC2 HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/xml\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _dial(path: str) -> socket.socket:
    deadline = time.monotonic() + 20
    while True:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(path)
            return sock
        except OSError:
            sock.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
