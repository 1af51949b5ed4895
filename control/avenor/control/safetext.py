"""Text from elsewhere made fit for a terminal: nothing that acts on it, and cut to its columns."""

import re

# What an agent says may hold escape sequences that would move the cursor, set the title or write the clipboard. The
# bidirectional controls are here too: they reorder what is read.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSAFE_IN_LINE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")
_SEQUENCE = re.compile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?|[@-Z\\\\^_])")


def safe_text(text: str) -> str:
    """The text without what would act on a terminal; newlines and tabs stay."""
    return _UNSAFE.sub("", _SEQUENCE.sub("", text.replace("\r\n", "\n")))


def safe_json(text: str) -> str:
    """JSON text that says the same, with what would act on a terminal escaped."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    """The text on one line, with nothing that would act on a terminal."""
    return _UNSAFE_IN_LINE.sub(" ", _SEQUENCE.sub("", text)).strip()


def clip(text: str, columns: int) -> str:
    """The text cut to so many columns, with a mark where something is missing."""
    if columns_of(text) <= columns:
        return text
    kept: list[str] = []
    left = columns - 1
    for character in text:
        left -= columns_of(character)
        if left < 0:
            break
        kept.append(character)
    return "".join(kept) + "…" if columns > 0 else ""


def pad(text: str, columns: int) -> str:
    """The text filled up with blanks to so many columns."""
    return text + " " * (columns - columns_of(text))


def columns_of(text: str) -> int:
    """How many columns a text takes: wide characters two, combining ones none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)
