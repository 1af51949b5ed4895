"""Renders a parsed template, within bounds: a template may come from anyone.

Blocks and calls of templates are kept on a stack of our own, so that no depth of theirs can exhaust Python's.
"""

from collections.abc import Iterator, Mapping
from typing import Final, assert_never

from avenor.protocol.template.functions import FUNCTIONS, FunctionSpec
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
    Statement,
    Text,
    Variable,
)
from avenor.protocol.template.printing import Printer, describe_value, print_value
from avenor.protocol.template.problems import BadCall, Fault
from avenor.protocol.template.scopes import Scope
from avenor.protocol.template.values import Byte, Root, Value, is_true

# A step is a statement, a turn of a loop, a call, or the time that a call takes for some of its bytes. This many take
# about two seconds at worst; a prompt takes some hundreds, and some thousands more to escape the output of 50 members.
STEP_LIMIT: Final = 200_000
# Blocks that are open at once, those of called templates included. Nesting in the text is bounded far below this, so
# what comes here calls itself without end.
DEPTH_LIMIT: Final = 2_000
_COPIED_BYTES_PER_STEP = 16 * 1024


def render_definitions(definitions: Mapping[str, Definition], main: str, root: Root) -> bytes:
    """What the template named `main` prints, with the root as its dot.

    Raises:
        Fault: It does what cannot be done, or too much of what can.
    """
    return _Machine(definitions).run(definitions[main].body, root)


class _Frame:
    """A body that is being rendered.

    Args:
        loop: Of a range, what is left of it.
        stops_break: Whether `break` goes no further; in Go that holds for the else of a range, too.
    """

    __slots__ = ("dot", "loop", "scope", "statements", "stops_break")

    def __init__(
        self,
        body: Body,
        dot: Value,
        scope: Scope[Value],
        *,
        loop: "_Loop | None" = None,
        stops_break: bool = False,
    ) -> None:
        self.statements: Iterator[Statement] = iter(body)
        self.dot = dot
        self.scope = scope
        self.loop = loop
        self.stops_break = stops_break


class _Loop:
    """What is left of a range, and the scope that has its variables."""

    __slots__ = ("elements", "node", "scope")

    def __init__(self, node: Range, elements: Iterator[Value], scope: Scope[Value]) -> None:
        self.node = node
        self.elements = elements
        self.scope = scope


class _Machine:
    def __init__(self, definitions: Mapping[str, Definition]) -> None:
        self._definitions = definitions
        self._frames: list[_Frame] = []
        self._printer = Printer()
        self._steps = 0

    def run(self, body: Body, root: Root) -> bytes:
        self._frames.append(_Frame(body, root, Scope({"$": root})))
        while self._frames:
            frame = self._frames[-1]
            statement = next(frame.statements, None)
            if statement is not None:
                self._spend(statement.at, 1)
                self._execute(statement, frame)
            elif frame.loop is None or not self._turn(frame, frame.loop):
                self._frames.pop()
        return self._printer.text()

    def _spend(self, at: int, steps: int) -> None:
        self._steps += steps
        if self._steps > STEP_LIMIT:
            raise Fault(at, f"given up after {STEP_LIMIT} steps; expected the template to end before")

    def _push(self, at: int, frame: _Frame) -> None:
        if len(self._frames) >= DEPTH_LIMIT:
            raise Fault(at, f"templates call each other more than {DEPTH_LIMIT} blocks deep; expected them to end")
        self._frames.append(frame)

    def _print(self, at: int, text: bytes) -> None:
        try:
            self._printer.add(text)
        except BadCall as problem:
            raise Fault(at, str(problem)) from None
        self._spend(at, len(text) // _COPIED_BYTES_PER_STEP)

    # Statements.

    def _execute(self, statement: Statement, frame: _Frame) -> None:
        match statement:
            case Text():
                self._print(statement.at, statement.text)
            case Action():
                value = self._pipeline(statement.pipeline, frame.scope, frame.dot)
                if not statement.pipeline.targets:
                    self._print(statement.at, print_value(value))
            case Choice():
                self._choose(statement, frame)
            case Range():
                self._range(statement, frame)
            case Leave():
                self._leave(statement)
            case Invocation():
                dot = self._pipeline(statement.pipeline, frame.scope, frame.dot) if statement.pipeline else None
                body = self._definitions[statement.name].body
                self._push(statement.at, _Frame(body, dot, Scope({"$": dot})))
            case _:
                assert_never(statement)

    def _choose(self, choice: Choice, frame: _Frame) -> None:
        scope = Scope({}, frame.scope)
        for arm in choice.arms:
            value = self._pipeline(arm.pipeline, scope, frame.dot)
            if is_true(value):
                dot = value if choice.word == "with" else frame.dot
                self._push(choice.at, _Frame(arm.body, dot, Scope({}, scope)))
                return
        self._push(choice.at, _Frame(choice.otherwise, frame.dot, Scope({}, scope)))

    def _range(self, node: Range, frame: _Frame) -> None:
        scope = Scope({}, frame.scope)
        value = self._pipeline(node.pipeline, scope, frame.dot)
        elements = _elements(value, node)
        if elements is None:
            self._push(node.at, _Frame(node.otherwise, frame.dot, Scope({}, scope), stops_break=True))
        else:
            loop = _Loop(node, elements, scope)
            self._push(node.at, _Frame((), frame.dot, scope, loop=loop, stops_break=True))

    def _turn(self, frame: _Frame, loop: _Loop) -> bool:
        """Begins the next turn of a loop; False if there is none."""
        element = next(loop.elements, None)
        if element is None:
            return False
        self._spend(loop.node.at, 1)
        pipeline = loop.node.pipeline
        for target in pipeline.targets:
            if pipeline.declares:
                loop.scope.declare(target.name, element)
            else:
                loop.scope.assign(target.name, element)
        frame.statements, frame.dot, frame.scope = iter(loop.node.body), element, Scope({}, loop.scope)
        return True

    def _leave(self, node: Leave) -> None:
        if node.word == "break":
            while not self._frames.pop().stops_break:
                pass
            return
        while self._frames[-1].loop is None:
            self._frames.pop()
        self._frames[-1].statements = iter(())

    # Values.

    def _pipeline(self, pipeline: Pipeline, scope: Scope[Value], dot: Value) -> Value:
        value: Value = None
        for stage, command in enumerate(pipeline.commands):
            value = self._command(command, [value] if stage else [], scope, dot)
        for target in pipeline.targets:
            if pipeline.declares:
                scope.declare(target.name, value)
            else:
                scope.assign(target.name, value)
        return value

    def _command(self, command: Command, piped: list[Value], scope: Scope[Value], dot: Value) -> Value:
        first, *operands = command.operands
        if not isinstance(first, Function):
            return self._operand(first, scope, dot)
        return self._call(first, operands, piped, scope, dot)

    def _call(
        self, function: Function, operands: list[Operand], piped: list[Value], scope: Scope[Value], dot: Value
    ) -> Value:
        specification = FUNCTIONS[function.name]
        arguments: list[Value] = []
        for operand in operands:
            arguments.append(self._operand(operand, scope, dot))
            if specification.stops_at is is_true(arguments[-1]):
                break
        else:
            arguments += piped
        self._spend(function.at, 1 + _argument_steps(specification, arguments))
        try:
            result = specification.call(arguments)
        except BadCall as problem:
            raise Fault(function.at, str(problem)) from None
        if isinstance(result, bytes):
            self._spend(function.at, len(result) // _COPIED_BYTES_PER_STEP)
        return result

    def _operand(self, operand: Operand, scope: Scope[Value], dot: Value) -> Value:
        match operand:
            case Constant():
                return operand.value
            case Nil():
                return None
            case Dot():
                return dot
            case Field():
                return _field(dot, operand.names)
            case Variable():
                return _field(scope.find(operand.name), operand.names)
            case Function():
                return self._call(operand, [], [], scope, dot)
            case Chain():
                return _field(self._operand(operand.operand, scope, dot), operand.names)
            case Pipeline():
                return self._pipeline(operand, scope, dot)
            case _:
                assert_never(operand)


def _argument_steps(specification: FunctionSpec, arguments: list[Value]) -> int:
    if not specification.bytes_per_step:
        return 0
    size = sum(len(argument) for argument in arguments if isinstance(argument, bytes))
    return size // specification.bytes_per_step


def _elements(value: Value, node: Range) -> Iterator[Value] | None:
    """What a range goes through; None if that is nothing."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise Fault(node.pipeline.at, f"range takes an integer; found {describe_value(value)}")
    if len(node.pipeline.targets) > 1:
        raise Fault(node.pipeline.at, "range over an integer sets one variable at most; found two")
    if value <= 0:
        return None
    return (Byte(number) for number in range(value)) if isinstance(value, Byte) else iter(range(value))


def _field(value: Value, names: tuple[Name, ...]) -> Value:
    """A field of a value. Like in Go, nothing has every field, and each is nothing."""
    for name in names:
        if isinstance(value, Root):
            if name.text not in value.fields:
                raise Fault(name.at, f"no value was given for the field .{name.text}")
            value = value.fields[name.text]
        elif value is not None:
            raise Fault(name.at, f"{describe_value(value)} has no field .{name.text}")
    return value
