"""`avenor control shutdown --wait`: return when the process that serves a control socket has ended."""

from __future__ import annotations

import msgspec
import trio

from avenor.cli.wire import Connection, NoServer
from avenor.host.identity import ProcessId, is_alive, wait_dead
from avenor.protocol.methods import Pong

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def call_and_see_end(path: str, method: str, params: Mapping[str, object]) -> bytes | None:
    """The result of a call that ends the server, once its process has ended; then its socket and locks are free.

    Returns:
        None if its process cannot be seen from here; then nothing but `ping` was called.

    Raises:
        SaidNo: The server answered with an error.
        NoServer: There is none, or it went away without an answer.
    """
    with Connection(path) as connection:
        try:
            pong = msgspec.json.decode(connection.call("ping", {}), type=Pong)
        except msgspec.DecodeError as error:
            raise NoServer(f"{path}: what answers there is not avenor, or of another version ({error})") from error
        server = ProcessId(pid=pong.pid, start_ticks=pong.start_time, boot_id=pong.boot_id)
        if not is_alive(server):
            return None
        result = connection.call(method, params)
        trio.run(wait_dead, server)
        return result
