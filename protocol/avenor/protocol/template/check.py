"""Finds, before a template is rendered, all of its names that mean nothing, and calls that cannot work.

Fields are checked wherever the dot, `$` or another variable is known to be the root.
"""

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import assert_never

from avenor.protocol.template.functions import FUNCTIONS
from avenor.protocol.template.nodes import (
    Action,
    Body,
    Chain,
    Choice,
    Command,
    Constant,
    Definition,
    Dot,
    Field,
    Function,
    Invocation,
    Leave,
    Name,
    Nil,
    Operand,
    Pipeline,
    Range,
    Text,
    Variable,
)
from avenor.protocol.template.problems import Fault
from avenor.protocol.template.scopes import Scope


def find_faults(definitions: Mapping[str, Definition], main: str, fields: Collection[str]) -> list[Fault]:
    """What is wrong with the names of a template and of those that it defines; empty if nothing is.

    Args:
        definitions: The templates by name.
        main: The one whose dot is the root. Others are taken to have it where they are called with it.
        fields: What the root has.
    """
    faults: list[Fault] = []
    for definition in definitions.values():
        faults += _Checker(definitions, fields).check(definition, has_root=False)
    waiting, reached = [main], {main}
    while waiting:
        checker = _Checker(definitions, fields)
        faults += checker.check(definitions[waiting.pop()], has_root=True)
        waiting += checker.called_with_root - reached
        reached |= checker.called_with_root
    return faults


class _Checker:
    """Walks one definition. A scope says of each variable whether it is known to be the root."""

    def __init__(self, definitions: Mapping[str, Definition], fields: Collection[str]) -> None:
        self._definitions = definitions
        self._fields = fields
        self._faults: list[Fault] = []
        self.called_with_root: set[str] = set()

    def check(self, definition: Definition, *, has_root: bool) -> list[Fault]:
        self._body(definition.body, Scope({"$": has_root}), has_root)
        return self._faults

    def _body(self, body: Body, scope: Scope[bool], dot: bool) -> None:
        for statement in body:
            match statement:
                case Text() | Leave():
                    pass
                case Action():
                    self._pipeline(statement.pipeline, scope, dot)
                case Choice():
                    self._choice(statement, Scope({}, scope), dot)
                case Range():
                    inner = Scope({}, scope)
                    self._pipeline(statement.pipeline, inner, dot)
                    self._body(statement.otherwise, Scope({}, inner), dot)
                    self._body(statement.body, _without_root(statement.pipeline, inner), False)
                case Invocation():
                    self._invocation(statement, scope, dot)
                case _:
                    assert_never(statement)

    def _choice(self, choice: Choice, scope: Scope[bool], dot: bool) -> None:
        for arm in choice.arms:
            value = self._pipeline(arm.pipeline, scope, dot)
            self._body(arm.body, Scope({}, scope), value if choice.word == "with" else dot)
        self._body(choice.otherwise, Scope({}, scope), dot)

    def _invocation(self, node: Invocation, scope: Scope[bool], dot: bool) -> None:
        is_root = node.pipeline is not None and self._pipeline(node.pipeline, scope, dot)
        if node.name not in self._definitions:
            hint = _known("templates", node.name, self._definitions)
            self._fault(node.at, f'no template is named "{node.name}"; {hint}')
        elif is_root:
            self.called_with_root.add(node.name)

    # Pipelines. Each of these returns whether the value is known to be the root.

    def _pipeline(self, pipeline: Pipeline, scope: Scope[bool], dot: bool) -> bool:
        is_root = False
        for stage, command in enumerate(pipeline.commands):
            is_root = self._command(command, stage > 0, scope, dot)
        for target in pipeline.targets:
            if pipeline.declares:
                scope.declare(target.name, is_root)
            elif not scope.assign(target.name, is_root):
                self._undefined(target)
        return is_root

    def _command(self, command: Command, is_piped: bool, scope: Scope[bool], dot: bool) -> bool:
        first, *arguments = command.operands
        for argument in arguments:
            if not isinstance(argument, Nil):
                self._operand(argument, scope, dot)
        if isinstance(first, Function):
            self._call(first, len(arguments) + is_piped)
            return False
        if isinstance(first, Nil):
            self._fault(first.at, "nil can only be an argument; expected a value or a function")
        elif arguments or is_piped:
            self._fault(first.at, f"{_shown(first)} takes no arguments; only a function does")
        return self._operand(first, scope, dot)

    def _operand(self, operand: Operand, scope: Scope[bool], dot: bool) -> bool:
        match operand:
            case Constant() | Nil():
                return False
            case Dot():
                return dot
            case Field():
                return self._names(dot, operand.names)
            case Variable():
                is_root = scope.find(operand.name)
                if is_root is None:
                    self._undefined(operand)
                return self._names(bool(is_root), operand.names)
            case Function():
                self._call(operand, 0)
                return False
            case Chain():
                return self._names(self._operand(operand.operand, scope, dot), operand.names)
            case Pipeline():
                return self._pipeline(operand, scope, dot)
            case _:
                assert_never(operand)

    def _names(self, is_root: bool, names: Iterable[Name]) -> bool:
        """Checks fields of a value; the field of a root is a string or number, which has none."""
        owner: Name | None = None
        for name in names if is_root else ():
            if owner is not None:
                self._fault(name.at, f".{owner.text} is a string or a number, which has no field .{name.text}")
                break
            if name.text not in self._fields:
                self._fault(
                    name.at, f"no field is named .{name.text}; {_known('fields', name.text, self._fields, '.')}"
                )
                break
            owner = name
        return is_root and not names

    def _call(self, function: Function, count: int) -> None:
        name = function.name
        specification = FUNCTIONS.get(name)
        if specification is None:
            hint = f"did you mean .{name}?" if name in self._fields else _known("functions", name, FUNCTIONS)
            self._fault(function.at, f"no function is named {name}; {hint}")
        elif problem := specification.count_problem(count):
            self._fault(function.at, f"{name} {problem}")

    def _undefined(self, variable: Variable) -> None:
        name = variable.name
        self._fault(variable.at, f"no variable is named {name} here; expected {{{{{name} := …}}}} before it")

    def _fault(self, at: int, message: str) -> None:
        self._faults.append(Fault(at, message))


def _without_root(pipeline: Pipeline, scope: Scope[bool]) -> Scope[bool]:
    """The scope of a range's body, where its variables are elements."""
    return Scope(dict.fromkeys((target.name for target in pipeline.targets), False), scope)


def _known(what: str, name: str, names: Iterable[str], prefix: str = "") -> str:
    """What there is instead, the likeliest first."""
    known = sorted(names)
    lowered = {entry.lower(): entry for entry in reversed(known)}
    close = [lowered[match] for match in get_close_matches(name.lower(), lowered, n=1)]
    hint = f"did you mean {prefix}{close[0]}? " if close else ""
    listed = ", ".join(f"{prefix}{entry}" for entry in known)
    return f"{hint}known {what}: {listed or 'none'}"


def _shown(operand: Operand) -> str:
    match operand:
        case Constant():
            return operand.source if len(operand.source) <= 40 else f"{operand.source[:40]}…"
        case Field():
            return "".join(f".{name.text}" for name in operand.names)
        case Variable():
            return operand.name + "".join(f".{name.text}" for name in operand.names)
        case Dot():
            return "the dot"
        case _:
            return "what is in parentheses"
