"""A control server that plays a script: a real Unix socket, served by a thread, for tests of the command line."""

import json
import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

Reply = Callable[[dict[str, Any]], Any]


class Refusal:
    """An error object to answer with."""

    def __init__(self, code: int, message: str, **data: Any) -> None:
        self.error: dict[str, Any] = {"code": code, "message": message}
        if data:
            self.error["data"] = data


class Then:
    """A result, the raw lines that follow it on the connection, and whether that is then closed."""

    def __init__(self, result: Any, *lines: bytes, close: bool = False) -> None:
        self.result = result
        self.lines = lines
        self.close = close


class ScriptedServer:
    """Serves until it is closed; `requests` are (method, params) in the order in which they came.

    Args:
        path: Where to listen.
        replies: Method to what it answers: a value, a `Refusal`, a `Then`, or a function of the params giving one.
    """

    def __init__(self, path: str, replies: Mapping[str, Any]) -> None:
        self.path = path
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.gone = threading.Event()
        self._replies = replies
        self._listener = socket.socket(socket.AF_UNIX)
        self._bind(path)
        self._listener.listen()
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> "ScriptedServer":
        return self

    def __exit__(self, *_: object) -> None:
        for sock in (self._listener, *self._connections):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def send_all(self, data: bytes) -> None:
        """Send something to every client that is connected; one that has left by now does not get it."""
        for connection in self._connections:
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(data)

    def hang_up(self) -> None:
        """Close the connections that are open."""
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _bind(self, path: str) -> None:
        if len(os.fsencode(path)) <= 107:
            self._listener.bind(path)
            return
        folder = os.open(Path(path).parent, os.O_RDONLY)
        try:
            self._listener.bind(f"/proc/self/fd/{folder}/{Path(path).name}")
        finally:
            os.close(folder)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection.makefile("rb") as lines:
            for line in lines:
                request = json.loads(line)
                self.requests.append((request["method"], request["params"]))
                if self._answer(connection, request):
                    connection.shutdown(socket.SHUT_RDWR)
        self.gone.set()

    def _answer(self, connection: socket.socket, request: dict[str, Any]) -> bool:
        reply = self._replies.get(request["method"], Refusal(-32601, f"no method {request['method']}"))
        if callable(reply):
            reply = reply(request["params"])
        then = reply if isinstance(reply, Then) else Then(reply)
        answer: dict[str, Any] = {"jsonrpc": "2.0"}
        if isinstance(then.result, Refusal):
            answer["error"] = then.result.error
        else:
            answer["result"] = then.result
        answer["id"] = request["id"]
        connection.sendall(json.dumps(answer, separators=(",", ":"), ensure_ascii=False).encode() + b"\n")
        for line in then.lines:
            connection.sendall(line)
        return then.close


def in_turn(*replies: Any) -> Reply:
    """Answers one after the other."""
    rest = iter(replies)

    def reply(_params: dict[str, Any]) -> Any:
        return next(rest)

    return reply


def event_line(**fields: Any) -> bytes:
    """The notification that carries an event, with its newline."""
    event = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    return b'{"jsonrpc":"2.0","method":"event","params":' + event + b"}\n"
