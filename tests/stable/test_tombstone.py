"""The file that a dead supervisor leaves."""

import datetime
from pathlib import Path

from avenor.stable.tombstone import remove_tombstone, render_tombstone, tombstone_path, write_tombstone


def test_the_line_is_as_the_contract_has_it() -> None:
    """`STOPPED reason=… pid=N at=RFC3339`, in UTC."""
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.timezone(datetime.timedelta(hours=1)))
    assert render_tombstone("idle", pid=7, at=at) == "STOPPED reason=idle pid=7 at=2026-01-02T02:04:05Z\n"


def test_it_lies_beside_the_socket_and_can_be_taken_away(tmp_path: Path) -> None:
    """Taking away what is not there is no error."""
    socket = str(tmp_path / "s.sock")
    write_tombstone(socket, "signal", pid=7)
    assert tombstone_path(socket).read_text().startswith("STOPPED reason=signal pid=7 at=")
    remove_tombstone(socket)
    remove_tombstone(socket)
    assert not tombstone_path(socket).exists()
