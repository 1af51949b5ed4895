"""`avenor board`: serves the board for a supervisor, or a run, that is there already, as a client of it."""

from __future__ import annotations

import json

from avenor.cli.commands import BOARD
from avenor.cli.output import complain
from avenor.cli.parsing import UsageError, absolute, parse
from avenor.cli.socket_path import control_socket
from avenor.cli.streams import open_missing_streams
from avenor.cli.wire import Connection, NoServer, SaidNo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_ADDRESS = "127.0.0.1:0"


def board(words: Sequence[str]) -> int:
    """Run `avenor board` with these words and give its exit status.

    Raises:
        UsageError: They make no sense.
        HelpAsked: They ask for help.
    """
    values = parse(BOARD, words)
    address = values.text("addr") or _ADDRESS
    _check(address)
    path = absolute(BOARD, "--socket", control_socket(values.text("socket")))
    token_path = absolute(BOARD, "--token-file", values.text("token_file") or f"{path}.board-token")
    open_missing_streams()
    try:
        is_run = _mode_of(path) == "run"
    except NoServer as error:
        complain(f"avenor board: {error}")
        return 3
    except SaidNo as refusal:
        complain(f"avenor board: {refusal}")
        return 1
    from avenor.cli.board_server import serve_board

    return serve_board(path, address, token_path, is_run=is_run, opens=values.switch("open"))


def _check(address: str) -> None:
    from avenor.control.address import parse_address

    try:
        parse_address(address)
    except ValueError as error:
        raise UsageError(f"--addr: {error}", BOARD) from None


def _mode_of(path: str) -> str:
    with Connection(path) as connection:
        return str(json.loads(connection.call("ping", {}))["mode"])
