"""Reads markers out of what an agent says (contract, part 3).

Owns which lines are markers, what they say, and which are hidden in a Markdown fence. Which directive acts in
which kind of phase, and when, is left to the runner. The text itself is never changed: the parser only looks on.

A line ends at a line feed, a carriage return before it counting as a blank. Fences are those of CommonMark 0.31,
section 4.5, at the top level of a message: this parser does not follow lists and block quotes, so there, too, a
fence line may be indented by three columns at most.
"""

import re
from collections.abc import Iterable
from typing import Literal

import msgspec

DirectiveKind = Literal["continue", "exit", "abort", "skip", "status"]

# A marker is a short line; one over this many characters is prose. 64 KiB is what line readers commonly hold at
# most (the token limit of Go's bufio.Scanner), and a label has to fit a sentinel and an event. Fence lines have no
# limit, because only their features are kept.
MARKER_LIMIT_CHARS = 64 * 1024

_BLANKS = " \t"
_BLANKS_AT_END = " \t\r"
# Four columns make indented code, or go on with a paragraph; a tab reaches the fourth.
_FENCE_INDENT_LIMIT = 3
_FENCE_RUN_MINIMUM = 3

_STEPS: dict[str, DirectiveKind] = {"continue": "continue", "exit": "exit", "abort": "abort"}
_SKIP: dict[str, DirectiveKind] = {"skip": "skip"}
_STATUS: dict[str, DirectiveKind] = {
    "thinking": "status",
    "working": "status",
    "waiting": "status",
    "done": "status",
}
# By how a marker begins, so that mixed spellings (`[workflow:`, `<|loop:`) are in no family.
_FAMILIES = {
    "[loop": _STEPS,
    "<|workflow": _STEPS,
    "[team": _SKIP,
    "<|team": _SKIP,
    "[status": _STATUS,
    "<|status": _STATUS,
}

# ASCII, or IGNORECASE would take `ſ` for an s and the Kelvin sign for a k. The label of the angle form is greedy:
# the last `|>` closes.
_BRACKETS = re.compile(r"(\[[a-z]+):[ \t]*([a-z]+)[ \t]*(?:\|([^\]\n]*))?\]", re.ASCII | re.IGNORECASE)
_ANGLES = re.compile(r"(<\|[a-z]+):[ \t]*([a-z]+)[ \t]*(?:\|(.*))?\|>", re.ASCII | re.IGNORECASE)

_SEVERITY: dict[DirectiveKind, int] = {"continue": 1, "exit": 2, "abort": 3}


class Directive(msgspec.Struct, frozen=True):
    """What one marker asks for.

    Args:
        kind: What to do.
        label: The text after the bar, without blanks around it; None if there is none. Of a skip, the member's name.
        word: The marker's word in lower case: for a status the phase, otherwise the kind.
    """

    kind: DirectiveKind
    label: str | None
    word: str


def most_severe(directives: Iterable[Directive]) -> Directive | None:
    """The directive that decides a phase: abort before exit before continue, at equal severity the first.

    Skips and statuses do not count; None if nothing is left. Exits that have no say where they were said (outside a
    `loop` list) are for the caller to leave out.
    """
    deciding = (directive for directive in directives if directive.kind in _SEVERITY)
    return max(deciding, key=lambda directive: _SEVERITY[directive.kind], default=None)


def parse_marker(line: str) -> Directive | None:
    """The directive of one whole line, or None if it is no marker. Fences are not considered."""
    text = line.rstrip(_BLANKS_AT_END).lstrip(_BLANKS)
    match = _BRACKETS.fullmatch(text) or _ANGLES.fullmatch(text)
    if match is None:
        return None
    word = match[2].lower()
    kind = _FAMILIES.get(match[1].lower(), {}).get(word)
    label = (match[3] or "").strip(_BLANKS_AT_END) or None
    # A skip of nobody asks for nothing.
    if kind is None or (kind == "skip" and label is None):
        return None
    return Directive(kind, label, word)


class MarkerParser:
    """Follows the messages of one session and collects their directives; each comes out of `take` once.

    Memory is bounded by `MARKER_LIMIT_CHARS` for the unfinished line, plus the directives not yet taken: take them
    after each call.
    """

    def __init__(self) -> None:
        self._message_id: str | None = None
        self._line = _Line()
        self._open_fence: _Fence | None = None
        self._directives: list[Directive] = []

    def feed_message(self, text: str, message_id: str | None) -> None:
        """Reads a chunk of agent message text. A message id other than the last chunk's ends that message first."""
        if message_id != self._message_id:
            self.end_message()
            self._message_id = message_id
        if "\n" not in text:  # most chunks
            self._line.feed(text)
            return
        *finished, tail = text.split("\n")
        for piece in finished:
            self._line.feed(piece)
            self._judge()
        self._line.feed(tail)

    def end_message(self) -> None:
        """Ends the message: judges its last line and closes its fence.

        To be called for every tool call, thought, user chunk, permission request and end of a turn. Doing so twice is
        harmless.
        """
        self._judge()
        self._open_fence = None
        self._message_id = None

    @property
    def has_directives(self) -> bool:
        """Whether `take` would give any."""
        return bool(self._directives)

    def take(self) -> list[Directive]:
        """The directives since the last take, in the order in which they were said."""
        taken, self._directives = self._directives, []
        return taken

    def _judge(self) -> None:
        line, self._line = self._line, _Line()
        if self._open_fence is not None:
            if line.fence is not None and line.fence.closes(self._open_fence):
                self._open_fence = None
        elif line.fence is not None:
            self._open_fence = line.fence if line.fence.opens() else None
        elif line.marker_text and (directive := parse_marker(line.marker_text)):
            self._directives.append(directive)


class _Fence:
    """The features of a line that starts like a fence, gathered piece by piece and without keeping its text."""

    __slots__ = ("_character", "_has_backtick_after", "_is_blank_after", "_length", "_run_ended")

    def __init__(self, character: str) -> None:
        self._character = character
        self._length = 0
        self._run_ended = False
        self._has_backtick_after = False
        self._is_blank_after = True

    def feed(self, piece: str) -> None:
        if not self._run_ended:
            after = piece.lstrip(self._character)
            self._length += len(piece) - len(after)
            self._run_ended = bool(after)
            piece = after
        self._has_backtick_after = self._has_backtick_after or "`" in piece
        self._is_blank_after = self._is_blank_after and not piece.strip(_BLANKS_AT_END)

    def opens(self) -> bool:
        """Whether the line opens a fence; an info string after backticks has no backtick, or it is inline code."""
        is_inline_code = self._character == "`" and self._has_backtick_after
        return self._length >= _FENCE_RUN_MINIMUM and not is_inline_code

    def closes(self, opening: "_Fence") -> bool:
        """Whether the line closes that fence: same character, at least as long, nothing but blanks after."""
        is_same = self._character == opening._character
        return is_same and self._length >= opening._length and self._is_blank_after


class _Line:
    """One unfinished line: decides by its first character what to keep of it, which for most lines is nothing."""

    __slots__ = ("_indent", "_is_prose", "_parts", "_size", "fence")

    def __init__(self) -> None:
        self.fence: _Fence | None = None
        self._indent = 0
        self._is_prose = False
        self._parts: list[str] | None = None
        self._size = 0

    @property
    def marker_text(self) -> str:
        """The text of a line that may be a marker, from its first non-blank character; empty for others."""
        return "".join(self._parts or ())

    def feed(self, piece: str) -> None:
        if self._is_prose or not piece:
            return
        if self._parts is None and self.fence is None:
            piece = self._start(piece)
        if self.fence is not None:
            self.fence.feed(piece)
        elif self._parts is not None:
            self._keep(piece)

    def _start(self, piece: str) -> str:
        """Counts the indent and, at the first non-blank character, decides; returns what follows the indent."""
        text = piece.lstrip(_BLANKS)
        blanks = piece[: len(piece) - len(text)]
        self._indent += len(blanks) + _FENCE_INDENT_LIMIT * blanks.count("\t")
        if not text:
            return text
        if text[0] in "[<":
            self._parts = []
        elif text[0] in "`~" and self._indent <= _FENCE_INDENT_LIMIT:
            self.fence = _Fence(text[0])
        else:
            self._is_prose = True
        return text

    def _keep(self, piece: str) -> None:
        assert self._parts is not None
        self._size += len(piece)
        if self._size > MARKER_LIMIT_CHARS:
            self._is_prose, self._parts = True, None
            return
        self._parts.append(piece)
