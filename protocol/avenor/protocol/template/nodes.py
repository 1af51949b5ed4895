"""What a parsed template consists of. `at` is an offset in its text, in characters."""

from typing import Literal

import msgspec

from avenor.protocol.template.values import Value


class Name(msgspec.Struct, frozen=True):
    """One field name of a chain, without its dot."""

    at: int
    text: str


class Constant(msgspec.Struct, frozen=True):
    """A string, number or bool. `source` is how it is written."""

    at: int
    source: str
    value: Value


class Nil(msgspec.Struct, frozen=True):
    """The word nil, which only arguments may be."""

    at: int


class Dot(msgspec.Struct, frozen=True):
    """The current value."""

    at: int


class Field(msgspec.Struct, frozen=True):
    """`.A.B`: a field of the current value."""

    at: int
    names: tuple[Name, ...]


class Variable(msgspec.Struct, frozen=True):
    """`$x` or `$x.A`; `name` has its dollar sign."""

    at: int
    name: str
    names: tuple[Name, ...]


class Function(msgspec.Struct, frozen=True):
    """The name of a function."""

    at: int
    name: str


class Chain(msgspec.Struct, frozen=True):
    """`(pipeline).A`: a field of what an operand gives."""

    at: int
    operand: "Pipeline | Function"
    names: tuple[Name, ...]


class Command(msgspec.Struct, frozen=True):
    """One stage of a pipeline: an operand, or a function and its arguments."""

    at: int
    operands: tuple["Operand", ...]


class Pipeline(msgspec.Struct, frozen=True):
    """Commands, each of which gets the value before it as its last argument.

    Attributes:
        targets: The variables that get the value.
        declares: Whether they are new ones (`:=`).
    """

    at: int
    targets: tuple[Variable, ...]
    declares: bool
    commands: tuple[Command, ...]


Operand = Constant | Nil | Dot | Field | Variable | Function | Chain | Pipeline


class Text(msgspec.Struct, frozen=True):
    """What is copied as it is."""

    at: int
    text: bytes


class Action(msgspec.Struct, frozen=True):
    """`{{pipeline}}`: prints its value, unless that went to a variable."""

    at: int
    pipeline: Pipeline


class Arm(msgspec.Struct, frozen=True):
    """One condition of an `if` or `with`, and what it guards."""

    pipeline: Pipeline
    body: "Body"


class Choice(msgspec.Struct, frozen=True):
    """`if` or `with`: the first arm whose value is true, else the last body."""

    at: int
    word: Literal["if", "with"]
    arms: tuple[Arm, ...]
    otherwise: "Body"


class Range(msgspec.Struct, frozen=True):
    """`range`: the body for each value, the other one if there is none."""

    at: int
    pipeline: Pipeline
    body: "Body"
    otherwise: "Body"


class Leave(msgspec.Struct, frozen=True):
    """`break` or `continue` of the innermost range."""

    at: int
    word: Literal["break", "continue"]


class Invocation(msgspec.Struct, frozen=True):
    """`template` or `block`: another template with its own dot. `at` is where its name stands."""

    at: int
    name: str
    pipeline: Pipeline | None


Statement = Text | Action | Choice | Range | Leave | Invocation
Body = tuple[Statement, ...]


class Definition(msgspec.Struct, frozen=True):
    """One named template."""

    at: int
    body: Body

    @property
    def is_empty(self) -> bool:
        """Whether it has nothing but blanks, so that another definition may take its name."""
        return all(isinstance(statement, Text) and not statement.text.strip() for statement in self.body)
