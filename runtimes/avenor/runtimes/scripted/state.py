"""What the scripted agent keeps on disk: its sessions, and how often the rules of a run were played.

A session is a file of JSON lines to which each prompt is added before it is played and its answer when it has ended, so
that a killed agent loses what it was saying and keeps what it was told, as real ones do. Nothing is synced: this
outlives processes, not machines.
"""

import fcntl
import os
import time
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec

from avenor.host.xdg import state_home

MAX_NAME_CHARACTERS = 100


class Opened(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="opened"):
    """The first line of a session. These four are tolerant: newer agents may add members."""

    session_id: str
    cwd: str


class Prompted(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="prompted"):
    """A prompt; `rule` is the index of the rule it was given to, -1 for none."""

    text: str
    message_id: str
    rule: int = -1


class Answered(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="answered"):
    """What the turn sent, for the replay; chunks of one message are one."""

    updates: list[dict[str, Any]]


class Chosen(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="chosen"):
    """An option of the session was set."""

    option: str
    value: str


Record = Opened | Prompted | Answered | Chosen

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Record)


class StateDirectory:
    """A directory of sessions and counts; made when it is first needed.

    Args:
        path: Absolute.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def append(self, session_id: str, record: Record) -> None:
        """Adds a line to a session's file."""
        # The newline comes first, so that a line torn by a kill does not swallow the next.
        _append(self._session_path(session_id), b"\n" + _encode(record))

    def read(self, session_id: str) -> list[Record]:
        """A session from its beginning; empty if there is none. Torn and foreign lines are skipped."""
        if not is_plain_name(session_id):
            return []
        records = list(_read_records(self._session_path(session_id)))
        return records if records and isinstance(records[0], Opened) else []

    def session_ids(self) -> list[tuple[str, float]]:
        """Every session with the time of its last change (Unix seconds), the latest first."""
        found: list[tuple[str, float]] = []
        try:
            with os.scandir(os.path.join(self._path, "sessions")) as entries:
                for entry in entries:
                    if entry.name.endswith(".ndjson"):
                        found.append((entry.name.removesuffix(".ndjson"), entry.stat().st_mtime))
        except FileNotFoundError:
            pass
        return sorted(found, key=lambda item: item[1], reverse=True)

    def take_turn(self, run_id: str, counter: str, limit: int) -> bool:
        """Counts one, unless the limit is reached. All agents of a run count together.

        Returns:
            Whether it was below the limit, and hence counted.
        """
        path = os.path.join(self._path, "counts", f"{plain_name(run_id)}.{counter}")
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        descriptor = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            # Members of a team ask at the same time. The file's size is the count.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_size >= limit:
                return False
            os.write(descriptor, b"1")
            return True
        finally:
            os.close(descriptor)

    def _session_path(self, session_id: str) -> str:
        return os.path.join(self._path, "sessions", f"{session_id}.ndjson")


def default_state_directory() -> str:
    """`AVENOR_SCRIPTED_STATE`, else `avenor/scripted` in the XDG state directory."""
    given = os.environ.get("AVENOR_SCRIPTED_STATE")
    if given:
        return os.path.abspath(given)
    return os.path.join(state_home(os.environ), "avenor", "scripted")


def new_session_id() -> str:
    """A new id; later ones sort after earlier ones, by the millisecond."""
    return f"scr_{time.time_ns() // 1_000_000:x}{os.urandom(6).hex()}"


def is_plain_name(text: str) -> bool:
    """Whether it can be the name of a file of ours."""
    return 0 < len(text) <= MAX_NAME_CHARACTERS and all(
        character.isascii() and (character.isalnum() or character in "_-") for character in text
    )


def plain_name(text: str) -> str:
    """A file name for any text; itself where that can be one."""
    if is_plain_name(text):
        return text
    kept = "".join(character if is_plain_name(character) else "_" for character in text)
    return f"{kept[: MAX_NAME_CHARACTERS - 10]}-{zlib.crc32(text.encode('utf-8', 'replace')):08x}"


def _append(path: str, data: bytes) -> None:
    flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        descriptor = os.open(path, flags, 0o600)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def _read_records(path: str) -> Iterator[Record]:
    try:
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")
    except OSError:
        return
    for line in lines:
        try:
            yield _decoder.decode(line)
        except msgspec.DecodeError:
            continue
