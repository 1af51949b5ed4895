"""Keeps an event short enough for the line in which it travels."""

from copy import copy
from typing import Any, Final

import msgspec
from msgspec import Raw

from avenor.protocol.events import Event, encode_event
from avenor.protocol.methods import EVENT_PREFIX, LINE_LIMIT_BYTES

# Clients and supervisor skip a longer line, and the event would be lost to them; room for the frame is left.
EVENT_LIMIT_BYTES: Final = LINE_LIMIT_BYTES - 2 * len(EVENT_PREFIX)

# A character takes from one to six bytes in JSON (`\u0000`): a cut text keeps the most of these shares that fits.
_SHARES: Final = (1, 2, 4, 6)
# " [16777216 characters cut]", its digits included.
_MARK_BYTES: Final = 32


def fit(event: Event, line: bytes, limit_bytes: int = EVENT_LIMIT_BYTES) -> tuple[bytes, list[str]]:
    """The event's line, its longest members cut until it is within the limit, and the names of those.

    Args:
        event: Stamped; never changed, for whoever told it reads along in what the agent said, not in what is sent.
        line: The event, encoded.
        limit_bytes: The longest line that can be sent; what an event has besides its texts and data always fits.
    """
    sent = copy(event)
    sizes = _sizes(sent)
    cut: list[str] = []
    while len(line) > limit_bytes and sizes:
        name = max(sizes, key=sizes.__getitem__)
        size = sizes.pop(name)
        line = _cut(sent, name, size, room=limit_bytes - (len(line) - size) - _MARK_BYTES)
        cut.append(name)
    return line, cut


def _cut(event: Event, name: str, size: int, *, room: int) -> bytes:
    """Shortens one member to so many bytes, and encodes the event again."""
    value: Any = getattr(event, name)
    if not isinstance(value, str):
        setattr(event, name, Raw(b'{"cut_bytes":%d}' % size))
        return encode_event(event)
    shares = (value[: max(0, room) // share] for share in _SHARES)
    kept = next((text for text in shares if len(msgspec.json.encode(text)) <= room), "")
    setattr(event, name, f"{kept} [{len(value) - len(kept)} characters cut]")
    return encode_event(event)


def _sizes(event: Event) -> dict[str, int]:
    """The encoded sizes of the members that may be cut."""
    return {
        name: len(msgspec.json.encode(value))
        for name in event.__struct_fields__
        if isinstance(value := getattr(event, name), str | Raw | dict | list)
    }
