"""What `avenor board` is once it has found a server: the HTTP application on a control socket, until a signal."""

import os
import signal
import webbrowser
from collections.abc import Generator
from contextlib import contextmanager, nullcontext, suppress
from html import escape

import trio

from avenor.cli.output import complain, write_text
from avenor.control.debug.remote import RemoteControl
from avenor.control.debug.server import DebugServer, open_debug
from avenor.host.atomic import write_atomic
from avenor.protocol.errors import AvenorError
from avenor.stable.logs import configure_logs


def serve_board(path: str, address: str, token_path: str, *, is_run: bool, opens: bool) -> int:
    """Serve the board until SIGINT or SIGTERM, and give the exit status.

    Args:
        path: The control socket.
        address: Where to listen.
        token_path: Where the token goes.
        is_run: Whether the socket is that of a run.
        opens: Whether to open the page in the default browser.
    """
    configure_logs("warning", None)
    try:
        with open_debug(address, token_path, follows_one=is_run, flag="--addr") as server:
            _serve(server, path, opens=opens)
    except (AvenorError, OSError) as error:
        complain(f"avenor board: {error}")
        return 1
    return 0


def _serve(server: DebugServer, path: str, *, opens: bool) -> None:
    with _page_to_open(server) if opens else nullcontext() as page:
        write_text(f"{server.board_url}\n")
        trio.run(_run, server, RemoteControl(path), page, strict_exception_groups=True)


async def _run(server: DebugServer, remote: RemoteControl, page: str | None) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, remote)
            if page is not None:
                nursery.start_soon(_open_page, page)
            async for _ in signals:
                break
            nursery.cancel_scope.cancel()


async def _open_page(page: str) -> None:
    # A browser that needs the terminal stays in it: whoever wants to leave must not have to wait for it.
    if not await trio.to_thread.run_sync(webbrowser.open, f"file://{page}", abandon_on_cancel=True):
        complain("avenor board: no browser was found; open the address in one")


@contextmanager
def _page_to_open(server: DebugServer) -> Generator[str, None, None]:
    """A page, for this user's eyes alone, that leads to the board: command lines, which all users see, get no token."""
    path = f"{server.token_path}.html"
    address = escape(server.board_url)
    head = f'<meta charset="utf-8"><meta http-equiv="refresh" content="0;url={address}"><title>board</title>'
    write_atomic(path, f"<!doctype html>{head}\n".encode(), durable=False)
    try:
        yield path
    finally:
        with suppress(OSError):
            os.unlink(path)
