"""Making a failing schedule small: leaves steps out for as long as it still fails."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def shrink(steps: Sequence[T], fails: Callable[[Sequence[T]], bool], *, may_go_on: Callable[[], bool]) -> Sequence[T]:
    """A part of the steps, in their order, that fails as well; with enough time none of it can be left out.

    Halves are tried before quarters, and single steps last, so that a long schedule is short early.

    Args:
        steps: A schedule that fails.
        fails: Whether these steps fail.
        may_go_on: Asked before each try; once it says no, the smallest part so far is the answer.
    """
    size = max(1, len(steps) // 2)
    while True:
        found = _leave_out(steps, size, fails, may_go_on)
        if found is not None:
            steps = found
            size = min(size, max(1, len(steps) // 2))
        elif size == 1 or not may_go_on():
            return steps
        else:
            size //= 2


def _leave_out(
    steps: Sequence[T], size: int, fails: Callable[[Sequence[T]], bool], may_go_on: Callable[[], bool]
) -> Sequence[T] | None:
    """The steps without some that stand side by side, the last ones first; None if nothing of this size can go."""
    for start in range(len(steps) - size, -1, -size):
        if not may_go_on():
            return None
        fewer = [*steps[:start], *steps[start + size :]]
        if fails(fewer):
            return fewer
    return None
