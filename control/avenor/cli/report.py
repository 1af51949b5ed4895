"""`avenor report`: the figures of runs, as a page and as JSON."""

from __future__ import annotations

import os

from avenor.cli.commands import REPORT
from avenor.cli.loglines import event_of
from avenor.cli.output import complain, dump, write_out
from avenor.cli.parsing import UsageError, parse
from avenor.control.figures import figures_of
from avenor.control.reportpage import PAGE_HEAD, report_page
from avenor.host.atomic import write_atomic
from avenor.host.growing import GrowingLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any


class NoEvents(Exception):
    """A log holds no event."""


class NoPage(Exception):
    """What the page would replace is none."""


def report(words: Sequence[str]) -> int:
    """Run `avenor report` with these words and give its exit status.

    Raises:
        UsageError: They make no sense.
        HelpAsked: They ask for help.
    """
    values = parse(REPORT, _with_long_name(words))
    output = values.text("output")
    if output is None and not values.switch("json"):
        raise UsageError("-o FILE is needed, or --json", REPORT)
    try:
        if output is not None:
            _require_no_other(output)
        runs = [_figures(path) for path in values.texts("log")]
        if output is not None:
            try:
                write_atomic(output, report_page(runs).encode(errors="replace"), 0o644, durable=False)
            except OSError as error:  # it names the temporary file
                raise OSError(error.errno, error.strerror, output) from error
    except OSError as error:
        complain(f"avenor report: {error.filename}: {error.strerror or error}")
        return 1
    except (NoEvents, NoPage) as error:
        complain(f"avenor report: {error}")
        return 1
    if values.switch("json"):
        write_out(dump(runs, indent=2) + b"\n")
    return 0


def _with_long_name(words: Sequence[str]) -> list[str]:
    """The words with `--output` for `-o`: the tables know long names only."""
    return [f"--output{word[2:]}" if word == "-o" or word.startswith("-o=") else word for word in words]


def _require_no_other(output: str) -> None:
    if not os.path.isfile(output):
        return
    with open(output, "rb") as file:
        head = file.read(len(PAGE_HEAD))
    if head not in (b"", PAGE_HEAD.encode()):
        # It would be replaced: of several logs, as `-o *.ndjson` gives them, the first is taken for it.
        raise NoPage(f"{output} is there and is no page: it is left alone")


def _figures(path: str) -> dict[str, Any]:
    figures = figures_of(_events(path))
    if not figures["events"]:
        raise NoEvents(f"{path} holds no events")
    return {"file": path, **figures}


def _events(path: str) -> Iterator[dict[str, Any]]:
    log = GrowingLog(path, lambda text: complain(f"avenor report: {text}"))
    log.open()
    try:
        for lines in log.batches():
            for line in lines:
                event = event_of(line, path, "report")
                if event is not None:
                    yield event
    finally:
        log.close()
