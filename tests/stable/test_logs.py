"""The supervisor's log, and whom it must not hold up."""

import json
import os
import sys
from pathlib import Path

import pytest
import structlog

from avenor.host.unhurried import UnhurriedFile
from avenor.stable.logs import configure_logs, log_level, set_log_level


def test_a_line_that_nobody_reads_is_dropped() -> None:
    """A full pipe holds nobody up, and what was written before is whole."""
    reader, writer = os.pipe()
    try:
        log = UnhurriedFile(writer)
        for _ in range(3000):
            log.write("x" * 99 + "\n")
        assert os.read(reader, 100) == b"x" * 99 + b"\n"
    finally:
        os.close(reader)
        os.close(writer)


def test_a_reader_that_is_gone_breaks_nothing() -> None:
    """As when the terminal of a supervisor is closed."""
    reader, writer = os.pipe()
    os.close(reader)
    UnhurriedFile(writer).write("into the void\n")
    os.close(writer)


@pytest.mark.parametrize(("level", "lines"), [("debug", 2), ("info", 1), ("error", 0)])
def test_the_level_says_what_is_kept(level: str, lines: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """JSON lines with time and level."""
    path = tmp_path / "log"
    with open(path, "w") as file:
        monkeypatch.setattr(sys, "stderr", file)
        configure_logs(level, "json")  # type: ignore[arg-type]
        structlog.get_logger().debug("some.detail", runtime_id="rt_1")
        structlog.get_logger().info("some.fact", runtime_id="rt_1")
    structlog.reset_defaults()
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(written) == lines
    if lines == 1:
        assert (written[0]["event"], written[0]["level"], written[0]["runtime_id"]) == ("some.fact", "info", "rt_1")


def test_console_lines_are_for_people(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without colours where there is no terminal."""
    path = tmp_path / "log"
    with open(path, "w") as file:
        monkeypatch.setattr(sys, "stderr", file)
        configure_logs("info", "console")
        structlog.get_logger().info("some.fact", runtime_id="rt_1")
    structlog.reset_defaults()
    text = path.read_text()
    assert "some.fact" in text
    assert "\x1b[" not in text


def test_a_new_level_holds_for_every_logger_that_there_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those that were bound before, and those that structlog has cached, too."""
    path = tmp_path / "log"
    with open(path, "w") as file:
        monkeypatch.setattr(sys, "stderr", file)
        configure_logs("info", "json")
        structlog.configure(cache_logger_on_first_use=True)
        cached = structlog.get_logger()
        bound = structlog.get_logger().bind(kind="bound")
        for level in ("info", "debug", "error", "info"):
            set_log_level(level)
            assert log_level() == level
            for logger, kind in ((cached, "cached"), (bound, "bound"), (structlog.get_logger(), "new")):
                logger.debug(f"{level}.{kind}.detail")
                logger.info(f"{level}.{kind}.fact")
                logger.error(f"{level}.{kind}.fault")
    structlog.reset_defaults()
    written = [json.loads(line)["event"].split(".") for line in path.read_text().splitlines()]
    kept = {"info": ["fact", "fault"], "debug": ["detail", "fact", "fault"], "error": ["fault"]}
    levels = ("info", "debug", "error", "info")
    assert written == [
        [level, kind, what] for level in levels for kind in ("cached", "bound", "new") for what in kept[level]
    ]
