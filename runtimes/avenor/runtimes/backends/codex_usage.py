"""Tokens of a turn. codex tells after each request to its model what the whole thread has used; pure."""

from avenor.protocol.events import Usage
from avenor.runtimes.backends.codex_types import Tokens, TokenUsage


class TokenMeter:
    """Gives what one turn added to the thread's tokens. codex tells no cost."""

    def __init__(self) -> None:
        self._now: Tokens | None = None
        self._at_start: Tokens | None = None
        self._was_told = False

    def start_turn(self) -> None:
        """What comes from now on is the turn's."""
        self._at_start = self._now
        self._was_told = False

    def take(self, usage: TokenUsage, *, is_of_turn: bool) -> None:
        """Takes what codex told.

        Args:
            usage: Of a thread with an unknown past, the first request shows what was before it.
            is_of_turn: Whether it is about the running turn of ours. codex tells of a resumed thread's past when it
                comes to it, which may be after our turn has begun.
        """
        self._now = usage.total
        if not is_of_turn:
            self._at_start = usage.total
            return
        self._was_told = True
        if self._at_start is None:
            self._at_start = _difference(usage.total, usage.last)

    def turn_usage(self) -> Usage | None:
        """What the turn has used so far; None if codex told nothing."""
        if not self._was_told or self._now is None or self._at_start is None:
            return None
        used = _difference(self._now, self._at_start)
        return Usage(
            input_tokens=used.input_tokens - used.cached_input_tokens,
            output_tokens=used.output_tokens,
            total_tokens=used.total_tokens,
            cached_read_tokens=used.cached_input_tokens,
        )


def _difference(later: Tokens, earlier: Tokens) -> Tokens:
    """What was added, never less than nothing: a thread that was rolled back counts from there."""
    cached = max(0, later.cached_input_tokens - earlier.cached_input_tokens)
    return Tokens(
        total_tokens=max(0, later.total_tokens - earlier.total_tokens),
        input_tokens=max(cached, later.input_tokens - earlier.input_tokens),
        cached_input_tokens=cached,
        output_tokens=max(0, later.output_tokens - earlier.output_tokens),
    )
