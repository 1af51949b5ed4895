"""What Go's fmt prints: values one after the other, and by a format."""

from collections.abc import Sequence

from avenor.protocol.template.problems import BadCall
from avenor.protocol.template.values import Root, Value, type_name
from avenor.protocol.template.verbs import Spec, format_value

# For one string as for all that a template prints.
OUTPUT_LIMIT_BYTES = 16 * 1024 * 1024
# Where Go stops to believe in a width or precision that is an argument.
_STAR_LIMIT = 1_000_000
_DEFAULT = Spec(verb="v")


class Printer:
    """Collects output up to a limit."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.size_bytes = 0

    def add(self, part: bytes) -> None:
        """Appends.

        Raises:
            BadCall: That makes more than `OUTPUT_LIMIT_BYTES`.
        """
        self.size_bytes += len(part)
        if self.size_bytes > OUTPUT_LIMIT_BYTES:
            raise BadCall(f"this prints more than {OUTPUT_LIMIT_BYTES // 1024**2} MiB")
        self._parts.append(part)

    def text(self) -> bytes:
        """All of it."""
        return b"".join(self._parts)


def print_value(value: Value) -> bytes:
    """The value as an action prints it."""
    match value:
        case bytes():
            return value
        case None:
            return b"<no value>"
        case _:
            return format_value(value, _DEFAULT)


def describe_value(value: Value) -> str:
    """The value for a message; cut, since a string may be long."""
    match value:
        case None:
            return "nil"
        case Root():
            return "the root"
        case bytes():
            shown = value[:40].decode("utf-8", "replace")
            return f'the string "{shown}{"…" if len(value) > 40 else ""}"'
        case _:
            return f"the {type_name(value)} {print_value(value).decode()}"


def print_values(values: Sequence[Value]) -> bytes:
    """The values as `print` puts them together: with a blank between two of which neither is a string."""
    printer = Printer()
    for index, value in enumerate(values):
        if index and not isinstance(value, bytes) and not isinstance(values[index - 1], bytes):
            printer.add(b" ")
        printer.add(format_value(value, _DEFAULT))
    return printer.text()


def print_line(values: Sequence[Value]) -> bytes:
    """The values as `println` puts them together: with blanks between all, and a line feed."""
    printer = Printer()
    for index, value in enumerate(values):
        printer.add(b" " if index else b"")
        printer.add(format_value(value, _DEFAULT))
    printer.add(b"\n")
    return printer.text()


def print_format(form: bytes, values: Sequence[Value]) -> bytes:
    """The values as `printf` puts them into a format; what does not fit is told in the text, as Go does."""
    return _Format(form, values).run()


class _Format:
    """Reads a format from left to right; follows package fmt, "Explicit argument indexes" included."""

    def __init__(self, form: bytes, values: Sequence[Value]) -> None:
        self._form = form
        self._values = values
        self._printer = Printer()
        self._at = 0
        self._index = 0
        # An index in brackets: whether one was used at all (then no value is extra), whether the last was sound, and
        # whether it is the last thing that was read.
        self._is_reordered = False
        self._is_sound = True
        self._is_after_index = False

    def run(self) -> bytes:
        while (percent := self._form.find(b"%", self._at)) >= 0:
            self._printer.add(self._form[self._at : percent])
            self._at = percent + 1
            self._verb()
        self._printer.add(self._form[self._at :])
        if not self._is_reordered and self._index < len(self._values):
            self._extra()
        return self._printer.text()

    def _verb(self) -> None:
        start = self._at
        while self._byte() in (b"#", b"0", b"+", b"-", b" "):
            self._at += 1
        flags = self._form[start : self._at]
        self._is_sound, self._is_after_index = True, False
        self._bracket()
        width, is_negative = self._width()
        precision = self._precision()
        if not self._is_after_index:
            self._bracket()
        if self._at >= len(self._form):
            self._printer.add(b"%!(NOVERB)")
            return
        verb = self._rune()
        # Outside of Errorf `%w` is no verb, but Go reads its flags like those of `%v`.
        is_v = verb in "vw"
        spec = Spec(
            verb=verb,
            plus=b"+" in flags and not is_v,
            minus=b"-" in flags or is_negative,
            sharp=b"#" in flags and not is_v,
            space=b" " in flags,
            zero=b"0" in flags and not is_negative,
            names_fields=b"+" in flags and is_v,
            is_go_syntax=b"#" in flags and is_v,
            width=width,
            precision=precision,
        )
        self._apply(spec)

    def _apply(self, spec: Spec) -> None:
        if spec.verb == "%":
            self._printer.add(b"%")
        elif not self._is_sound:
            self._printer.add(b"%!" + spec.verb.encode() + b"(BADINDEX)")
        elif self._index >= len(self._values):
            self._printer.add(b"%!" + spec.verb.encode() + b"(MISSING)")
        else:
            self._printer.add(format_value(self._values[self._index], spec))
            self._index += 1

    def _extra(self) -> None:
        self._printer.add(b"%!(EXTRA ")
        for index, value in enumerate(self._values[self._index :]):
            self._printer.add(b", " if index else b"")
            if value is not None:
                self._printer.add(type_name(value).encode() + b"=")
            self._printer.add(format_value(value, _DEFAULT))
        self._printer.add(b")")

    def _width(self) -> tuple[int | None, bool]:
        """The width, and whether an argument gave a negative one, which means the minus flag."""
        if self._byte() == b"*":
            width = self._star(b"%!(BADWIDTH)")
            return (None if width is None else abs(width)), width is not None and width < 0
        width = self._number()
        if width is not None and self._is_after_index:
            self._is_sound = False
        return width, False

    def _precision(self) -> int | None:
        if self._byte() != b"." or self._at + 1 == len(self._form):
            return None
        self._at += 1
        if self._is_after_index:
            self._is_sound = False
        self._bracket()
        if self._byte() == b"*":
            return self._star(b"%!(BADPREC)", minimum=0)
        return self._number() or 0

    def _star(self, complaint: bytes, minimum: int = -_STAR_LIMIT) -> int | None:
        """A width or precision from the arguments."""
        self._at += 1
        self._is_after_index = False
        value = self._values[self._index] if self._index < len(self._values) else None
        self._index += self._index < len(self._values)
        if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= _STAR_LIMIT:
            return value
        self._printer.add(complaint)
        return None

    def _bracket(self) -> None:
        """An explicit argument index, `[2]`, if there is one."""
        self._is_after_index = False
        if self._byte() != b"[":
            return
        self._is_reordered = True
        start, end = self._at + 1, self._form.find(b"]", self._at)
        digits = self._form[start:end] if end >= 0 else b""
        self._at = end + 1 if end >= 0 else start
        index = int(digits) - 1 if digits.isdigit() and not _is_too_large(digits) else None
        self._is_after_index = index is not None
        if index is not None and 0 <= index < len(self._values):
            self._index = index
        else:
            self._is_sound = False

    def _number(self) -> int | None:
        """Digits; None if there are none, or too many."""
        start = self._at
        while self._byte().isdigit():
            self._at += 1
        digits = self._form[start : self._at]
        if _is_too_large(digits):
            self._at = len(self._form)
            return None
        return int(digits) if digits else None

    def _byte(self) -> bytes:
        return self._form[self._at : self._at + 1]

    def _rune(self) -> str:
        """The next character; U+FFFD for a byte that begins none."""
        head = self._form[self._at : self._at + 4].decode("utf-8", "surrogateescape")[0]
        self._at += len(head.encode("utf-8", "surrogateescape"))
        return "\ufffd" if "\udc80" <= head <= "\udcff" else head


def _is_too_large(digits: bytes) -> bool:
    """Whether a number in a format is beyond what Go reads; like there, the last digit does not count."""
    return len(digits.lstrip(b"0")) > 8 or int(digits[:-1] or b"0") > _STAR_LIMIT
