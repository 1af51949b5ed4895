"""The loop of `avenor top`: keys, events and the clock to pictures, over any number of connections."""

from __future__ import annotations

import os
import signal
from select import select
from time import monotonic, time
from typing import TYPE_CHECKING, Final

from avenor.cli.eventview import EventView
from avenor.cli.output import complain
from avenor.cli.terminal import Style, style_for
from avenor.cli.top_keys import Keys
from avenor.cli.top_runs import Key, Runs, Snapshot
from avenor.cli.top_screen import EndedBySignal, Screen, wrapped
from avenor.cli.top_table import name_of, table_lines, total_line, tree_order
from avenor.cli.wire import NoServer
from avenor.control.safetext import clip, one_line
from avenor.control.stream import RECONNECT_SECONDS
from avenor.host.sockaddr import dial
from avenor.protocol.errors import AvenorError

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

_RECEIVE_BYTES: Final = 256 * 1024
# Times are told in whole seconds, and no event says that one has passed.
_CLOCK_SECONDS: Final = 1.0
# How long the rest of a key may take: the Escape key is the beginning of all the others.
_KEY_SECONDS: Final = 0.05
_FRAME_LINES: Final = 3  # the title above, the total and the keys below

_KEYS_LINE: Final = "j k select · Enter events · e ended · r read again · ? keys · q quit"
_HELP: Final = (
    "q, Ctrl-C         quit; the runs go on",
    "?                 these keys, or back",
    "down, j           the next run",
    "up, k             the run before",
    "g, G, Home, End   the first, the last run",
    "page up, down     a picture further",
    "Enter, right      the latest events of the selected run, live",
    "Esc, left         back to the table",
    "e                 leave out the runs that have ended, or show them again",
    "r                 read the whole list again",
)


def live(path: str) -> int:
    """Show the table until it is left, and give the exit status.

    Raises:
        NoServer: There is none to begin with.
    """
    try:
        connection = dial(path)
    except OSError as error:
        raise NoServer(f"no server at {path} ({error.strerror or error}); --socket names another") from error
    view = _Live(path, connection)
    try:
        with Screen(0, 1) as screen:
            view.run(screen)
    except EndedBySignal as ended:
        return 128 + ended.number
    except AvenorError as error:
        complain(f"avenor top: {error}")
        return 1
    finally:
        view.close()
    return 0


class _Live:
    """What is shown, and where from.

    Args:
        path: The socket.
        connection: A connection to it.
    """

    def __init__(self, path: str, connection: socket.socket) -> None:
        self._path = path
        self._socket: socket.socket | None = connection
        self._style = style_for(1)
        self._runs = Runs()
        self._keys = Keys()
        self._selected: Key = None
        self._first_line = 0
        self._page = "table"
        self._shows_ended = True
        self._attempts = 0
        self._retry_at = 0.0
        self._has_quit = False
        self._page_lines = 1

    def run(self, screen: Screen) -> None:
        """Until a key ends it.

        Raises:
            AvenorError: The server refused.
            EndedBySignal: See `Screen`.
        """
        connection = self._socket
        if connection is not None:
            self._send(connection)
        drawn_at = 0.0
        while not self._has_quit:
            now = monotonic()
            if self._runs.has_changed or now - drawn_at >= _CLOCK_SECONDS:
                self._runs.has_changed = False
                screen.draw(self._picture(*screen.size()))
                drawn_at = now
            self._wait(screen, drawn_at + _CLOCK_SECONDS)

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _wait(self, screen: Screen, until: float) -> None:
        """For keys, events, signals, or the time; and deal with them."""
        if self._socket is None:
            self._dial_again()
            until = min(until, self._retry_at) if self._socket is None else until
        if self._keys.is_waiting:
            until = min(until, monotonic() + _KEY_SECONDS)
        connection = self._socket
        sources: list[int | socket.socket] = [0, screen.wake, *([] if connection is None else [connection])]
        ready, _, _ = select(sources, [], [], max(0.0, until - monotonic()))
        if screen.wake in ready:
            screen.take_wake()
            self._runs.has_changed = True
        if connection is not None and connection in ready:
            self._receive(connection)
        if 0 in ready:
            self._read_keys()
        elif self._keys.is_waiting:
            self._press(self._keys.flush())

    # The connection

    def _receive(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(_RECEIVE_BYTES)
        except OSError:
            data = b""
        if not data:
            self._lose()
            return
        self._runs.feed(data)
        self._send(connection)

    def _send(self, connection: socket.socket) -> None:
        request = self._runs.next_request()
        if request is None:
            return
        try:
            connection.sendall(request)
        except OSError:
            self._lose()

    def _lose(self) -> None:
        self.close()
        self._attempts = 0
        self._retry_at = monotonic() + RECONNECT_SECONDS[0]
        self._runs.has_changed = True

    def _dial_again(self) -> None:
        """Nothing tells when a socket takes connections again, so it is tried now and then."""
        if monotonic() < self._retry_at:
            return
        try:
            self._socket = dial(self._path)
        except OSError:
            self._attempts += 1
            pause = RECONNECT_SECONDS[min(self._attempts, len(RECONNECT_SECONDS) - 1)]
            self._retry_at = monotonic() + pause
            return
        self._runs.restart()
        self._runs.has_changed = True
        self._send(self._socket)

    # Keys

    def _read_keys(self) -> None:
        data = os.read(0, 4096)
        if not data:  # nobody is there any more
            raise EndedBySignal(signal.SIGHUP)
        self._press(self._keys.feed(data))

    def _press(self, names: Sequence[str]) -> None:
        for name in names:
            self._runs.has_changed = True
            if name == "quit":
                self._has_quit = True
            elif name == "help":
                self._show("table" if self._page == "help" else "help")
            elif name == "back" or (name == "open" and self._page != "table"):
                self._show("table")
            elif name == "open":
                self._open()
            elif name == "ended":
                self._shows_ended = not self._shows_ended
            elif name == "again":
                self._runs.read_again()
            elif self._page == "table":
                self._move(name)
        if self._socket is not None:
            self._send(self._socket)

    def _show(self, page: str) -> None:
        if self._page == "events":
            self._runs.look_away()
        self._page = page

    def _open(self) -> None:
        if self._selected_row(self._rows()) is not None:
            self._page = "events"
            self._runs.look_at(self._selected)

    def _move(self, name: str) -> None:
        rows = self._rows()
        if not rows:
            return
        at = self._selected_row(rows) or 0
        step = {"down": 1, "up": -1, "page down": self._page_lines, "page up": -self._page_lines}.get(name)
        to = {"first": 0, "last": len(rows) - 1}.get(name, at) if step is None else at + step
        self._selected = rows[max(0, min(len(rows) - 1, to))][1]["runtime_id"]

    # Pictures

    def _rows(self) -> list[tuple[int, Snapshot]]:
        snapshots = self._runs.known.values()
        return tree_order(each for each in snapshots if self._shows_ended or each["status"] != "ended")

    def _selected_row(self, rows: Sequence[tuple[int, Snapshot]]) -> int | None:
        """Where the selected run stands; the first takes its place when it is gone."""
        found = next((at for at, (_, each) in enumerate(rows) if each["runtime_id"] == self._selected), None)
        if found is None and rows:
            self._selected = rows[0][1]["runtime_id"]
            return 0
        return found

    def _picture(self, columns: int, lines: int) -> list[str]:
        self._page_lines = max(1, lines - _FRAME_LINES - 1)
        body = {"table": self._table, "events": self._events, "help": self._help}[self._page](columns)
        title = self._style.paint(clip(self._title(), columns), "bold")
        footer = [clip(total_line(list(self._runs.known.values())), columns)]
        footer.append(self._style.paint(clip(_KEYS_LINE, columns), "dim"))
        room = max(1, lines - _FRAME_LINES)
        body = body[:room]
        return [title, *body, *[""] * (room - len(body)), *footer]

    def _title(self) -> str:
        where = one_line(self._path)
        if self._socket is None:
            return f"avenor top · the server went away; looking for it at {where}"
        return f"avenor top · {where}"

    def _table(self, columns: int) -> list[str]:
        rows = self._rows()
        if not rows:
            return ["no runs" if self._runs.is_listed else "reading …"]
        at = self._selected_row(rows) or 0
        last_first = max(0, len(rows) - self._page_lines)
        self._first_line = min(max(self._first_line, at - self._page_lines + 1), at, last_first)
        end = self._first_line + self._page_lines
        shown = rows[self._first_line : end]
        now_ms = round(time() * 1000)
        selected = at - self._first_line
        return table_lines(shown, style=self._style, columns=columns, now_ms=now_ms, selected=selected)

    def _events(self, columns: int) -> list[str]:
        snapshot = self._runs.known.get(self._selected)
        heading = "this run is not there any more" if snapshot is None else name_of(snapshot)
        # Colours would be cut apart where a long line is wrapped.
        view = EventView(Style(coloured=False), columns=columns, names_runtime=False)
        text = "".join(view.feed_line(line) for _, line in self._runs.events) + view.finish()
        lines = wrapped(text.rstrip("\n"), columns)[-self._page_lines :]
        return [self._style.paint(clip(heading, columns), "bold"), *lines]

    def _help(self, columns: int) -> list[str]:
        return [clip(line, columns) for line in _HELP]
