"""What can be wrong with a template, and where in its text."""

import re
from bisect import bisect_right
from collections.abc import Iterable

import msgspec


class TemplateProblem(msgspec.Struct, frozen=True):
    """One thing that is wrong with a template.

    Args:
        line: Where, from 1; lines end at line feeds.
        column: Where in the line, from 1, in characters.
        message: What was found and what is expected.
    """

    line: int
    column: int
    message: str

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.message}"


class TemplateError(ValueError):
    """A template that cannot be used, or could not be rendered.

    Args:
        problems: At least one, in the order of the text.
    """

    def __init__(self, problems: Iterable[TemplateProblem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(map(str, self.problems)))


class Fault(Exception):
    """A problem at an offset; inside the template modules only, which know no lines.

    Args:
        at: The offset in the text, in characters.
        message: What was found and what is expected.
    """

    def __init__(self, at: int, message: str) -> None:
        super().__init__(message)
        self.at = at
        self.message = message


class BadCall(Exception):
    """A function cannot take its arguments; whoever called it knows where."""


def template_error(text: str, faults: Iterable[Fault]) -> TemplateError:
    """The error for faults in this text: each told once, in order."""
    line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
    problems: list[TemplateProblem] = []
    for at, message in sorted({(fault.at, fault.message) for fault in faults}):
        line = bisect_right(line_starts, at)
        problems.append(TemplateProblem(line, at - line_starts[line - 1] + 1, message))
    return TemplateError(problems)
