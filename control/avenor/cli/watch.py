"""`avenor watch`: a digest of an event log, of a run that has ended or while it goes on."""

from __future__ import annotations

import json
import os

from avenor.cli.commands import WATCH
from avenor.cli.digest import Digest
from avenor.cli.loglines import event_of
from avenor.cli.output import ReaderGone, complain, write_json
from avenor.cli.parsing import parse
from avenor.cli.untyped import object_in
from avenor.control.messages import MessageJoiner
from avenor.host.atomic import write_atomic
from avenor.host.growing import GrowingLog, Line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from avenor.cli.parsing import Values
    from avenor.host.changes import FileChanges

# No offset has more digits; what has is no cursor file.
_CURSOR_BYTES = 32


class NotReadable(Exception):
    """A file is not what it was said to be; the message says why."""


def watch(words: Sequence[str]) -> int:
    """Run `avenor watch` with these words and give its exit status.

    Raises:
        UsageError: They make no sense.
        HelpAsked: They ask for help.
        ReaderGone: Nobody reads the digest any more.
    """
    values = parse(WATCH, words)
    try:
        _Watch(values).run()
    except OSError as error:
        complain(f"avenor watch: {error.filename or values.text('log')}: {error.strerror or error}")
        return 1
    except NotReadable as error:
        complain(f"avenor watch: {error}")
        return 1
    return 0


class _Watch:
    """One log on its way to stdout."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._log = GrowingLog(values.text("log") or "", lambda text: complain(f"avenor watch: {text}"))
        self._cursor = _Cursor(values.text("since_cursor"))
        self._printed_to = 0
        self._has_ended = False
        self._begin()

    def run(self) -> None:
        """Print what is there, and when following what comes, until the run has ended.

        Raises:
            OSError: A file cannot be read or written.
            NotReadable: The cursor file is none.
        """
        offset = self._cursor.read()
        try:
            if self._values.switch("follow"):
                self._follow(offset)
            else:
                self._read(offset)
        except KeyboardInterrupt:
            self._finish()
            raise
        finally:
            self._log.close()

    def _begin(self) -> None:
        """Be at the beginning of a log: nothing is remembered of another one."""
        values = self._values
        self._digest = Digest(as_json=values.text("format") == "json", classify=values.switch("classify"))
        self._joiner = MessageJoiner() if values.switch("accumulate") else None

    def _read(self, offset: int) -> None:
        self._open(offset)
        self._print_new()
        if self._log.incomplete_bytes:
            complain(f"avenor watch: {self._log.path}: the last line is not complete yet, and is left out")
        self._finish()

    def _follow(self, offset: int) -> None:
        from avenor.host.changes import FileChanges

        changes = FileChanges(self._log.path)
        try:
            self._wait_opened(changes, offset)
            # A cursor may be behind the end of a run: nothing more is to come.
            self._has_ended = self._log.offset > 0 and _name_of(self._log.line_before()) == "run.end"
            while not self._print_new():
                _wait(changes)
                changes.renew()
            self._finish()
        finally:
            changes.close()

    def _wait_opened(self, changes: FileChanges, offset: int) -> None:
        is_told = False
        while not self._log.is_open:
            try:
                self._open(offset)
            except FileNotFoundError:
                if not os.path.isdir(os.path.dirname(self._log.path) or "."):
                    raise
                if not is_told:
                    complain(f"avenor watch: {self._log.path} is not there yet; waiting for it")
                is_told = True
                _wait(changes)
        changes.renew()

    def _open(self, offset: int) -> None:
        self._log.open(offset)
        self._printed_to = self._log.offset

    def _print_new(self) -> bool:
        """Print what has come, and say whether the last of it is the end of the run."""
        for lines in self._log.batches():
            if lines[0].start < self._printed_to:
                self._print(self._rest())
                self._begin()
            self._print(b"".join(map(self._told, lines)))
            self._printed_to = lines[-1].end
            self._save()
        return self._has_ended

    def _told(self, line: Line) -> bytes:
        """What is to be printed once this line is there."""
        event = event_of(line, self._log.path, "watch")
        if event is None:
            return b""
        self._has_ended = event["event"] == "run.end"
        complete = [event] if self._joiner is None else self._joiner.feed(event, line.start)
        return b"".join(self._digest.line(each, line.data if each is event else None) for each in complete)

    def _rest(self) -> bytes:
        """The messages that are open, as far as they came."""
        messages = [] if self._joiner is None else self._joiner.finish()
        return b"".join(self._digest.line(each, None) for each in messages)

    def _print(self, lines: bytes) -> None:
        write_json(lines)  # if they are words, nothing in them acts on a terminal anyway

    def _finish(self) -> None:
        self._print(self._rest())
        if self._log.is_open:
            self._save()

    def _save(self) -> None:
        """Note how far everything is printed: what was not is read again by the next watch."""
        is_open = None if self._joiner is None else self._joiner.open_offset
        self._cursor.write(self._printed_to if is_open is None else is_open)


class _Cursor:
    """The file that keeps the offset between two watches, if one is wanted."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._written: int | None = None

    def read(self) -> int:
        """The offset; 0 without a file."""
        if self._path is None:
            return 0
        try:
            with open(self._path, "rb") as file:
                found = file.read(_CURSOR_BYTES + 1).strip()
        except FileNotFoundError:
            return 0
        if found and not (found.isdigit() and len(found) <= _CURSOR_BYTES):
            # It would be replaced: somebody may have taken the log for it.
            raise NotReadable(f"{self._path} holds no offset: it is no cursor file, and is left alone")
        return int(found or b"0")

    def write(self, offset: int) -> None:
        """Replace the file, where there is something new to note."""
        if self._path is None or offset == self._written:
            return
        try:
            write_atomic(self._path, b"%d\n" % offset, durable=False)
        except OSError as error:  # it names the temporary file
            raise OSError(error.errno, error.strerror, self._path) from error
        self._written = offset


def _wait(changes: FileChanges) -> None:
    if changes.wait(1):
        raise ReaderGone


def _name_of(line: bytes) -> object:
    try:
        return object_in(json.loads(line)).get("event")
    except (ValueError, RecursionError):
        return None
