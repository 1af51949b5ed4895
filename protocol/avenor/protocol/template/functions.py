"""The functions that a template may call (contract, part 4); they behave as those of Go's text/template."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from avenor.protocol.template.printing import describe_value, print_format, print_line, print_values
from avenor.protocol.template.problems import BadCall
from avenor.protocol.template.quoting import escape_html, escape_js, escape_query
from avenor.protocol.template.values import Byte, Present, Root, Value, is_true, type_name

_Call = Callable[[Sequence[Value]], Value]


class FunctionSpec(msgspec.Struct, frozen=True):
    """One function.

    Attributes:
        minimum: The least number of arguments.
        maximum: The largest; None for any.
        call: Gives the result, or raises BadCall.
        bytes_per_step: How much of its string arguments it works through in the time of one step; 0 if their size
            does not matter.
        stops_at: After the first argument of this truth the rest is not evaluated; None to evaluate all.
    """

    minimum: int
    maximum: int | None
    call: _Call
    bytes_per_step: int = 0
    stops_at: bool | None = None

    def count_problem(self, count: int) -> str | None:
        """What is wrong with that many arguments, the one from the pipeline included."""
        if self.minimum <= count and (self.maximum is None or count <= self.maximum):
            return None
        at_least = "at least " if self.maximum is None else ""
        expected = str(self.minimum) if self.maximum in (None, self.minimum) else f"{self.minimum} to {self.maximum}"
        plural = "" if expected == "1" else "s"
        return f"takes {at_least}{expected} argument{plural}; found {count}"


def _not(arguments: Sequence[Value]) -> bool:
    return not is_true(arguments[0])


def _last(arguments: Sequence[Value]) -> Value:
    return arguments[-1]


# Strings.


def _len(arguments: Sequence[Value]) -> int:
    value = arguments[0]
    if not isinstance(value, bytes):
        raise BadCall(f"len takes a string; found {describe_value(value)}")
    return len(value)


def _index(arguments: Sequence[Value]) -> Value:
    value, *indexes = arguments
    if value is None:
        raise BadCall("index takes a string; found nil")
    for index in indexes:
        if not isinstance(value, bytes):
            raise BadCall(f"index takes a string; found {describe_value(value)}")
        position = _position("index", index, value)
        if position == len(value):
            raise BadCall(_out_of_range("index", position, value))
        value = Byte(value[position])
    return value


def _slice(arguments: Sequence[Value]) -> bytes:
    value, *indexes = arguments
    if not isinstance(value, bytes):
        raise BadCall(f"slice takes a string; found {describe_value(value)}")
    if len(indexes) > 2:
        raise BadCall(f"slice of a string takes two indexes at most; found {len(indexes)}")
    positions = [_position("slice", index, value) for index in indexes]
    start, end = (*positions, len(value))[:2] if positions else (0, len(value))
    if start > end:
        raise BadCall(f"slice begins at {start}, after its end at {end}")
    return value[start:end]


def _position(function: str, index: Value, string: bytes) -> int:
    """A position in a string, its end included."""
    if not isinstance(index, int) or isinstance(index, bool):
        raise BadCall(f"{function} takes integers as indexes; found {describe_value(index)}")
    if not 0 <= index <= len(string):
        raise BadCall(_out_of_range(function, index, string))
    return int(index)


def _out_of_range(function: str, index: int, string: bytes) -> str:
    return f"{function} {index} is out of range; the string has {len(string)} bytes"


# Comparisons.


def _eq(arguments: Sequence[Value]) -> bool:
    first, *others = arguments
    return any(_equal("eq", first, other) for other in others)


def _ne(arguments: Sequence[Value]) -> bool:
    return not _equal("ne", arguments[0], arguments[1])


def _equal(function: str, first: Value, second: Value) -> bool:
    if first is not None and second is not None and _kind(first) != _kind(second):
        raise BadCall(f"{function} cannot compare {describe_value(first)} with {describe_value(second)}")
    return first == second


def _lt(arguments: Sequence[Value]) -> bool:
    return _order("lt", arguments) < 0


def _le(arguments: Sequence[Value]) -> bool:
    return _order("le", arguments) <= 0


def _gt(arguments: Sequence[Value]) -> bool:
    return _order("gt", arguments) > 0


def _ge(arguments: Sequence[Value]) -> bool:
    return _order("ge", arguments) >= 0


def _order(function: str, arguments: Sequence[Value]) -> int:
    """Negative, 0 or positive."""
    first, second = (_orderable(function, value) for value in arguments)
    if isinstance(first, bytes) and isinstance(second, bytes):
        return (first > second) - (first < second)
    if _kind(first) != _kind(second):
        raise BadCall(f"{function} cannot compare {describe_value(first)} with {describe_value(second)}")
    assert isinstance(first, int | float)
    assert isinstance(second, int | float)
    return (first > second) - (first < second)


def _orderable(function: str, value: Value) -> bytes | int | float:
    if value is None or isinstance(value, bool | Root):
        raise BadCall(f"{function} takes numbers or strings; found {describe_value(value)}")
    return value


def _kind(value: Present) -> str:
    """What values must have in common to be compared: Go compares integers of all types."""
    return "int" if isinstance(value, Byte) else type_name(value)


# Printing.


def _printf(arguments: Sequence[Value]) -> bytes:
    form, *values = arguments
    if not isinstance(form, bytes):
        raise BadCall(f"printf takes a format string first; found {describe_value(form)}")
    return print_format(form, values)


def _escaping(escape: Callable[[bytes], bytes]) -> _Call:
    """A function that escapes what its arguments print."""

    def call(arguments: Sequence[Value]) -> bytes:
        return escape(print_values([b"<no value>" if value is None else value for value in arguments]))

    return call


_COPIED = 16 * 1024
_FORMATTED = 256

FUNCTIONS: Mapping[str, FunctionSpec] = MappingProxyType(
    {
        "and": FunctionSpec(1, None, _last, stops_at=False),
        "or": FunctionSpec(1, None, _last, stops_at=True),
        "not": FunctionSpec(1, 1, _not),
        "len": FunctionSpec(1, 1, _len),
        "index": FunctionSpec(1, None, _index),
        "slice": FunctionSpec(1, None, _slice),
        "eq": FunctionSpec(2, None, _eq, _COPIED),
        "ne": FunctionSpec(2, 2, _ne, _COPIED),
        "lt": FunctionSpec(2, 2, _lt, _COPIED),
        "le": FunctionSpec(2, 2, _le, _COPIED),
        "gt": FunctionSpec(2, 2, _gt, _COPIED),
        "ge": FunctionSpec(2, 2, _ge, _COPIED),
        "print": FunctionSpec(0, None, print_values, _COPIED),
        "println": FunctionSpec(0, None, print_line, _COPIED),
        "printf": FunctionSpec(1, None, _printf, _FORMATTED),
        "html": FunctionSpec(0, None, _escaping(escape_html), _FORMATTED),
        "js": FunctionSpec(0, None, _escaping(escape_js), _FORMATTED),
        "urlquery": FunctionSpec(0, None, _escaping(escape_query), _FORMATTED),
    }
)
