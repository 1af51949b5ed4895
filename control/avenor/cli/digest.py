"""Lines of words, or of JSON, for the events of a log."""

from __future__ import annotations

from avenor.cli.eventview import EventView
from avenor.cli.output import dump
from avenor.cli.terminal import Style
from avenor.control.eventclass import Classifier, text_of
from avenor.control.messages import CHUNKS
from avenor.control.safetext import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from avenor.control.eventclass import Event

EXCERPT_CHARS = 120


class Digest:
    """Makes one line of each event of a log, in their order.

    Args:
        as_json: The events themselves; else words.
        classify: Tell the class of each.
    """

    def __init__(self, *, as_json: bool, classify: bool) -> None:
        self._as_json = as_json
        self._classifier = Classifier() if classify else None
        self._view = EventView(Style(coloured=False), columns=EXCERPT_CHARS, names_runtime=False)

    def line(self, event: Event, raw: bytes | None) -> bytes:
        """The line of the next event, with its newline.

        Args:
            event: Decoded.
            raw: The same as it stands in the log; None if it does not stand there.
        """
        kind = None if self._classifier is None else self._classifier.classify(event)
        if self._as_json:
            return _with_class(dump(event) if raw is None else raw.strip(), kind) + b"\n"
        words = [] if kind is None else [kind]
        words += ["EVENT", _word(event["event"]), _word(event.get("session_id")), self._excerpt(event)]
        return " ".join(words).rstrip().encode(errors="replace") + b"\n"

    def _excerpt(self, event: Event) -> str:
        told = text_of(event) if event["event"] in CHUNKS else self._view.detail(event)
        text = " ".join(one_line(told).split())
        return text if len(text) <= EXCERPT_CHARS else text[: EXCERPT_CHARS - 1] + "…"


def _with_class(line: bytes, kind: str | None) -> bytes:
    """An object that has a member already, with one more at its end."""
    return line if kind is None else b'%s,"classify":"%s"}' % (line[:-1], kind.encode())


def _word(value: object) -> str:
    """A value as one word of a line, `-` for none."""
    return ("_".join(one_line(value).split()) if isinstance(value, str) else "") or "-"
