"""The scripted agent's side of the ACP connection: calls, notifications and answers as lines."""

from collections.abc import Callable, Generator
from typing import Any

import msgspec

from avenor.protocol.errors import INVALID_REQUEST, PARSE_ERROR, ErrorObject
from avenor.protocol.framing import Oversized
from avenor.protocol.peer import (
    IncomingError,
    IncomingNotification,
    IncomingRequest,
    IncomingResult,
    Malformed,
    Peer,
    RequestId,
)
from avenor.runtimes.scripted.loop import Wait

Reply = IncomingResult | IncomingError


class Connection:
    """Sends through `write`, and gives requests and notifications to a handler."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._peer = Peer()
        self._replies: dict[int, Reply] = {}
        self.on_request: Callable[[IncomingRequest], None] = lambda request: None
        self.on_notification: Callable[[IncomingNotification], None] = lambda notification: None

    def receive(self, line: bytes | Oversized) -> None:
        """Takes one line from the client; what is no message is answered with an error, if it is not blank."""
        if isinstance(line, Oversized):
            self.reply_error(None, ErrorObject(code=PARSE_ERROR, message=f"a line of {line.size_seen} bytes or more"))
            return
        if not line.strip():
            return
        incoming = self._peer.receive(line)
        match incoming:
            case IncomingRequest():
                self.on_request(incoming)
            case IncomingNotification():
                self.on_notification(incoming)
            case IncomingResult() | IncomingError():
                self._replies[incoming.id] = incoming
            case Malformed():
                # A batch, which ACP does not have, is an invalid request like any other.
                code = incoming.code if incoming.code == PARSE_ERROR else INVALID_REQUEST
                self.reply_error(incoming.id, ErrorObject(code=code, message=incoming.reason))
            case _:  # an answer that came too late
                pass

    def reply(self, request_id: RequestId, result: object) -> None:
        self._write(self._peer.reply(request_id, result))

    def reply_error(self, request_id: RequestId, error: ErrorObject) -> None:
        self._write(self._peer.reply_error(request_id, error))

    def notify(self, method: str, params: object) -> None:
        self._write(self._peer.notify(method, params))

    def update_line(self, session_id: str, update: dict[str, Any]) -> bytes:
        """The line of a `session/update`, not sent."""
        return self._peer.notify("session/update", {"sessionId": session_id, "update": update})

    def call(self, method: str, params: object) -> Generator[Wait, bool, Reply]:
        """Asks the client and waits for the answer. If the task is cancelled meanwhile, a late answer is dropped."""
        request_id, line = self._peer.request(method, params)
        self._write(line)
        try:
            yield Wait(is_over=lambda: request_id in self._replies)
            return self._replies.pop(request_id)
        finally:
            self._peer.forget(request_id)
            self._replies.pop(request_id, None)


def make_error(code: int, message: str, /, **data: object) -> ErrorObject:
    """An error object; without `data` members it has no data."""
    if not data:
        return ErrorObject(code=code, message=message)
    return ErrorObject(code=code, message=message, data=msgspec.Raw(msgspec.json.encode(data)))
