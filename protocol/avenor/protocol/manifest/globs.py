"""Globs of paths: whether a path fits one, and whether a path could fit two.

`*` and `?` stand for characters of one path component, `**` for any number of components, `[abc]`, `[a-z]` and `[!abc]`
for one character of a set. A glob without wildcards, or one that ends in `/`, is also everything below that path.
Both questions are answered by one automaton: its states are the positions in the glob.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

import msgspec

_WILD: Final = frozenset("*?[")
# A product of two is looked at for each pair of writers; longer ones are nobody's.
MAX_LENGTH: Final = 512


class _Item(msgspec.Struct, frozen=True):
    """One item of a glob.

    Attributes:
        chars: The characters that it takes.
        is_negated: It takes all others instead.
        repeats: It takes any number of them, also none.
        skips: How many items after it may be left out as well, if `repeats`.
    """

    chars: frozenset[str]
    is_negated: bool = False
    repeats: bool = False
    skips: int = 0

    def takes(self, char: str) -> bool:
        return (char in self.chars) != self.is_negated


_NOT_SLASH: Final = frozenset("/")
_NOTHING: Final[frozenset[str]] = frozenset()


def matches_glob(glob: str, path: str) -> bool:
    """Whether a path fits a glob. A path that is absolute, or leads outside, fits none."""
    parts = path.split("/")
    if path.startswith("/") or not path or ".." in parts or "." in parts or "" in parts:
        return False
    return any(_accepts(items, path) for items in _alternatives(glob))


def overlap(one: str, other: str) -> bool:
    """Whether there could be a path that fits both."""
    return any(_meet(first, second) for first in _alternatives(one) for second in _alternatives(other))


def find_glob_mistake(glob: str) -> str | None:
    """What makes a glob unusable; None if it is a good one."""
    parts = glob.rstrip("/").split("/")
    if len(glob) > MAX_LENGTH:
        return f"it has more than {MAX_LENGTH} characters"
    if glob.startswith(("/", "~")):
        return "it must be relative to the repository"
    if any(part in ("", ".", "..") for part in parts):
        return "it has an empty part, `.` or `..`: write the path as git does"
    if parts[0] == ".git":
        return "nobody writes into .git but avenor"
    if any("**" in part and part != "**" for part in parts):
        return "`**` must be a whole part of the path"
    if "\\" in glob or any(char < " " or char == "\x7f" for char in glob):
        return "it has a backslash or a control character"
    return _find_set_mistake(glob)


def _find_set_mistake(glob: str) -> str | None:
    at = glob.find("[")
    while at >= 0:
        end = _end_of_set(glob, at)
        if end is None:
            return "a `[` is not closed"
        if "/" in glob[at:end] or not glob[at:end].isascii():
            return "a set holds ASCII characters, and no slash"
        at = glob.find("[", end)
    return None


@lru_cache(maxsize=1024)
def _alternatives(glob: str) -> tuple[tuple[_Item, ...], ...]:
    """The automata of a glob: itself, and what is below it where that is meant."""
    below = _Item(_NOTHING, is_negated=True, repeats=True)
    at_least_one = _Item(_NOTHING, is_negated=True)
    if glob.endswith("/"):
        return ((*_items(glob), at_least_one, below),)
    own = tuple(_items(glob))
    if _WILD.isdisjoint(glob):
        return (own, (*own, _Item(frozenset("/")), at_least_one, below))
    return (own,)


def _items(glob: str) -> Iterator[_Item]:
    at = 0
    while at < len(glob):
        if glob.startswith("**/", at):
            # "a/**/b" is also "a/b": the first of the three takes nothing, and may leave out the other two.
            yield _Item(_NOTHING, repeats=True, skips=2)
            yield _Item(_NOTHING, is_negated=True, repeats=True)
            yield _Item(frozenset("/"))
            at += 3
        elif glob.startswith("**", at):
            yield _Item(_NOTHING, is_negated=True)
            yield _Item(_NOTHING, is_negated=True, repeats=True)
            at += 2
        elif glob[at] == "*":
            yield _Item(_NOT_SLASH, is_negated=True, repeats=True)
            at += 1
        elif glob[at] == "?":
            yield _Item(_NOT_SLASH, is_negated=True)
            at += 1
        elif glob[at] == "[" and (end := _end_of_set(glob, at)):
            yield _set_item(glob[at + 1 : end - 1])
            at = end
        else:
            yield _Item(frozenset(glob[at]))
            at += 1


def _end_of_set(glob: str, at: int) -> int | None:
    """Where the set that begins at a position has ended; a `]` right at its beginning is one of its characters."""
    first = at + 2 if glob[at + 1 : at + 2] == "!" else at + 1
    close = glob.find("]", first + 1)
    return None if close < 0 else close + 1


def _set_item(text: str) -> _Item:
    is_negated = text.startswith("!")
    text = text.removeprefix("!")
    chars: set[str] = set()
    at = 0
    while at < len(text):
        if text[at + 1 : at + 2] == "-" and at + 2 < len(text):
            chars.update(map(chr, range(ord(text[at]), ord(text[at + 2]) + 1)))
            at += 3
        else:
            chars.add(text[at])
            at += 1
    # No set takes a slash.
    return _Item(frozenset(chars | {"/"}), True) if is_negated else _Item(frozenset(chars - {"/"}))


def _after(items: Sequence[_Item], at: int) -> Iterator[int]:
    """Where one gets from a position without a character."""
    if at < len(items) and items[at].repeats:
        yield at + 1
        if items[at].skips:
            yield at + 1 + items[at].skips


def _next(items: Sequence[_Item], at: int) -> int:
    """Where one gets with the character that the item at a position takes."""
    return at if items[at].repeats else at + 1


def _settled(items: Sequence[_Item], positions: Iterable[int]) -> set[int]:
    """The positions, and those that are reached from them without a character."""
    found: set[int] = set()
    waiting = list(positions)
    while waiting:
        at = waiting.pop()
        if at not in found:
            found.add(at)
            waiting += _after(items, at)
    return found


def _accepts(items: Sequence[_Item], path: str) -> bool:
    positions = _settled(items, (0,))
    for char in path:
        taken = (_next(items, at) for at in positions if at < len(items) and items[at].takes(char))
        positions = _settled(items, taken)
    return len(items) in positions


def _meet(one: Sequence[_Item], other: Sequence[_Item]) -> bool:
    """Whether both accept one text: a walk over the pairs of positions that the same text leads to."""
    seen, waiting = {(0, 0)}, [(0, 0)]
    while waiting:
        first, second = waiting.pop()
        if first == len(one) and second == len(other):
            return True
        reached = [(after, second) for after in _after(one, first)]
        reached += [(first, after) for after in _after(other, second)]
        if first < len(one) and second < len(other) and _share(one[first], other[second]):
            reached.append((_next(one, first), _next(other, second)))
        fresh = set(reached) - seen
        seen |= fresh
        waiting += fresh
    return False


def _share(one: _Item, other: _Item) -> bool:
    """Whether there is a character that both take."""
    if one.is_negated and other.is_negated:
        return True  # there are more characters than anybody names
    if one.is_negated:
        return not other.chars <= one.chars
    if other.is_negated:
        return not one.chars <= other.chars
    return not one.chars.isdisjoint(other.chars)
