"""`avenor top`: all runs in a table that follows their events, for a terminal that may be far away."""

from __future__ import annotations

import json
from time import time

from avenor.cli.commands import TOP
from avenor.cli.listing import MEMBERS
from avenor.cli.output import complain, is_terminal, write_text
from avenor.cli.parsing import parse
from avenor.cli.refusal import refusal_text
from avenor.cli.socket_path import control_socket
from avenor.cli.terminal import is_dumb, style_for, width_of
from avenor.cli.top_table import table_lines, total_line, tree_order
from avenor.cli.untyped import list_in, object_in
from avenor.cli.wire import Connection, NoServer, SaidNo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# What is read by a program is not cut to any width.
_UNLIMITED_COLUMNS = 1 << 20


def top(words: Sequence[str]) -> int:
    """Run `avenor top` with these words and give its exit status.

    Raises:
        UsageError: They make no sense.
        HelpAsked: They ask for help.
    """
    values = parse(TOP, words)
    path = control_socket(values.text("socket"))
    is_live = is_terminal(0) and is_terminal(1) and not is_dumb()
    try:
        if values.switch("once") or not is_live:
            return _once(path)
        from avenor.cli.top_live import live

        return live(path)
    except SaidNo as refusal:
        complain(refusal_text(TOP, refusal.error, as_json=False))
        return 1
    except NoServer as error:
        complain(f"avenor top: {error}")
        return 3


def _once(path: str) -> int:
    with Connection(path) as connection:
        snapshots = list(map(object_in, list_in(json.loads(connection.call("list", {"fields": MEMBERS})))))
    columns = width_of(1) if is_terminal(1) else _UNLIMITED_COLUMNS
    lines = table_lines(tree_order(snapshots), style=style_for(1), columns=columns, now_ms=round(time() * 1000))
    write_text("\n".join([*lines, total_line(snapshots)]) + "\n")
    return 0
