"""The terminal of `avenor top`: taken over as a whole, and given back as it was, however the command ends."""

from __future__ import annotations

import os
import signal
import termios
import tty
from typing import Any, Final

from avenor.cli.output import write_text
from avenor.control.safetext import columns_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType, TracebackType

# The alternate screen, and no cursor; and back.
_ENTER: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_DEFAULT_SIZE: Final = (80, 24)


class EndedBySignal(Exception):
    """A signal asked the command to end; `number` is which."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Screen:
    """The whole terminal, while its `with` block lasts. Signals that end a program raise `EndedBySignal` in it.

    Args:
        fd_in: Where keys come from.
        fd_out: Where pictures go.

    Attributes:
        wake: A descriptor that can be read when the terminal has another size, or is to be given back for a while;
            then `take_wake` is to be called.
    """

    def __init__(self, fd_in: int, fd_out: int) -> None:
        self._in = fd_in
        self._out = fd_out
        self.wake, self._wake_end = os.pipe()
        for fd in (self.wake, self._wake_end):
            os.set_blocking(fd, False)
        self._handlers: dict[signal.Signals, Any] = {}
        self._wake_before = -1
        self._modes: list[Any] | None = None
        self._drawn: list[str] = []
        self._drawn_size = (0, 0)

    def __enter__(self) -> Screen:
        self._modes = termios.tcgetattr(self._in)
        for number in _ENDING:
            self._handlers[number] = signal.signal(number, _raise_ended)
        for number in (signal.SIGWINCH, signal.SIGTSTP):
            self._handlers[number] = signal.signal(number, _do_nothing)
        # The number of each signal is written there, and so ends a wait for keys.
        self._wake_before = signal.set_wakeup_fd(self._wake_end, warn_on_full_buffer=False)
        try:
            self._take()
        except BaseException:
            self._give_back_for_good()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back_for_good()

    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        try:
            columns, lines = os.get_terminal_size(self._out)
        except OSError:
            return _DEFAULT_SIZE
        return columns or _DEFAULT_SIZE[0], lines or _DEFAULT_SIZE[1]

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines, which fit the size, in the place of what is shown; only what differs is sent."""
        size = self.size()
        if size != self._drawn_size:
            self._drawn, self._drawn_size = [], size
        pieces = [] if self._drawn else ["\x1b[2J"]
        for number, line in enumerate(lines[: size[1]]):
            if self._drawn[number : number + 1] != [line]:
                pieces.append(f"\x1b[{number + 1};1H{line}\x1b[K")
        self._drawn = list(lines[: size[1]])
        if pieces:
            write_text("".join(pieces))

    def take_wake(self) -> None:
        """Do what the signals that came ask for."""
        if signal.SIGTSTP in os.read(self.wake, 4096):
            self._give_back()
            os.kill(os.getpid(), signal.SIGSTOP)
            self._take()  # when it is continued

    def _take(self) -> None:
        # Keys at once and unseen; Ctrl-C and Ctrl-Z still signal.
        tty.setcbreak(self._in, termios.TCSANOW)
        write_text(_ENTER)
        self._drawn = []

    def _give_back(self) -> None:
        if self._modes is not None:
            try:
                termios.tcflow(self._out, termios.TCOON)  # were it stopped by Ctrl-S, nothing could be written
                write_text(_LEAVE)
                termios.tcsetattr(self._in, termios.TCSANOW, self._modes)
            except termios.error:
                pass  # the terminal is gone

    def _give_back_for_good(self) -> None:
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)  # a second one must not cut this short
        try:
            self._give_back()
        finally:
            signal.set_wakeup_fd(self._wake_before)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            os.close(self.wake)
            os.close(self._wake_end)


def wrapped(text: str, columns: int) -> list[str]:
    """The lines of a text, none wider than so many columns."""
    lines: list[str] = []
    for line in text.expandtabs(4).split("\n"):
        if columns_of(line) <= columns:
            lines.append(line)
            continue
        piece, width = "", 0
        for character in line:
            width += columns_of(character)
            if width > columns and piece:
                lines.append(piece)
                piece, width = "", columns_of(character)
            piece += character
        lines.append(piece)
    return lines


def _raise_ended(number: int, _frame: FrameType | None) -> None:
    raise EndedBySignal(number)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Only wakes."""
