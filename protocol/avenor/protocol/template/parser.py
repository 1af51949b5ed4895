"""Builds the tree of a template from its tokens. What its names mean is left to `template.check`."""

from collections import deque
from collections.abc import Iterator
from typing import Final, Literal

from avenor.protocol.template.lexer import Kind, Token, lex_template
from avenor.protocol.template.literals import parse_character, parse_number, parse_raw_string, parse_string
from avenor.protocol.template.nodes import (
    Action,
    Arm,
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
from avenor.protocol.template.problems import Fault
from avenor.protocol.template.values import go_string

# Blocks and parentheses together. Python's stack holds 1000 calls and a level takes five at most.
NESTING_LIMIT: Final = 100

_KEYWORDS = frozenset({"if", "else", "end", "range", "with", "define", "template", "block", "break", "continue"})
_NO_STAGE = (Constant, Dot, Nil)
_Closer = Literal[Kind.CLOSE, Kind.RIGHT]


def parse_definitions(text: str, name: str) -> dict[str, Definition]:
    """The templates of a text by name: the whole, which gets `name`, and those that it defines.

    Raises:
        Fault: The first error of syntax.
    """
    return _Parser(text).parse(name)


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens: Iterator[Token] = lex_template(text)
        self._ahead: deque[Token] = deque()
        self._definitions: dict[str, Definition] = {}
        self._nesting = 0
        # The blocks that are open, for messages, and how many ranges `break` could leave.
        self._open: list[str] = []
        self._ranges = 0

    def parse(self, name: str) -> dict[str, Definition]:
        body, end = self._body()
        if end.kind is not Kind.END:
            raise Fault(end.at, f"{{{{{end.source}}}}} without an if, range, with, define or block that it belongs to")
        self._define(name, Definition(0, body))
        return self._definitions

    # Tokens.

    def _peek(self, distance: int = 0) -> Token:
        while len(self._ahead) <= distance:
            self._ahead.append(next(self._tokens))
        return self._ahead[distance]

    def _next(self) -> Token:
        token = self._peek()
        self._ahead.popleft()
        return token

    def _close(self, after: str) -> None:
        token = self._next()
        if token.kind is not Kind.CLOSE:
            raise Fault(token.at, f"unexpected {_shown(token)} after {after}; expected }}}}")

    def _enter(self, at: int) -> None:
        self._nesting += 1
        if self._nesting > NESTING_LIMIT:
            raise Fault(at, f"blocks and parentheses are nested more than {NESTING_LIMIT} deep")

    # Blocks.

    def _body(self) -> tuple[Body, Token]:
        """Statements up to a token that ends them: `end`, `else`, or the end of the text; their action is open."""
        statements: list[Statement] = []
        while True:
            token = self._next()
            if token.kind is Kind.TEXT:
                statements.append(Text(token.at, go_string(token.source)))
                continue
            if token.kind is Kind.END:
                return tuple(statements), token
            word = self._peek()
            keyword = word.source if word.kind is Kind.WORD and word.source in _KEYWORDS else None
            if keyword is not None:
                self._next()
            if keyword in ("end", "else"):
                return tuple(statements), word
            statements += self._statement(token, keyword)

    def _statement(self, opening: Token, keyword: str | None) -> Iterator[Statement]:
        at = opening.at
        match keyword:
            case "if" | "with":
                yield self._choice(at, keyword)
            case "range":
                yield self._range(at)
            case "define":
                self._define_here(at)
            case "template":
                yield self._invocation()
            case "block":
                yield self._block(at)
            case "break" | "continue":
                yield self._leave(at, keyword)
            case _:
                yield Action(at, self._pipeline("an action", Kind.CLOSE))

    def _block_body(self, word: str, at: int) -> tuple[Body, Token]:
        """The body of a block that is open, and the `end` or `else` after it, its action still open."""
        self._open.append(word)
        self._enter(at)
        body, end = self._body()
        if end.kind is Kind.END:
            raise Fault(at, f"this {{{{{word}}}}} has no {{{{end}}}}")
        self._nesting -= 1
        self._open.pop()
        return body, end

    def _last_body(self, word: str, at: int) -> Body:
        """The body of a block that only `end` may end."""
        body, end = self._block_body(word, at)
        if end.source != "end":
            raise Fault(end.at, f"unexpected {{{{else}}}}; expected the {{{{end}}}} of {{{{{word}}}}}")
        self._close("end")
        return body

    def _choice(self, at: int, word: Literal["if", "with"]) -> Choice:
        arms: list[Arm] = []
        while True:
            pipeline = self._pipeline(word, Kind.CLOSE)
            body, end = self._block_body(word, at)
            arms.append(Arm(pipeline, body))
            following = self._peek()
            if end.source == "else" and following.kind is Kind.WORD:
                if following.source != word:
                    raise Fault(following.at, f"unexpected {following.source} after else; expected }}}} or {word}")
                self._next()
                continue
            return Choice(at, word, tuple(arms), self._else(word, at, end))

    def _range(self, at: int) -> Range:
        pipeline = self._pipeline("range", Kind.CLOSE)
        self._ranges += 1
        body, end = self._block_body("range", at)
        self._ranges -= 1
        return Range(at, pipeline, body, self._else("range", at, end))

    def _else(self, word: str, at: int, end: Token) -> Body:
        self._close(end.source)
        return self._last_body(word, at) if end.source == "else" else ()

    def _leave(self, at: int, word: Literal["break", "continue"]) -> Leave:
        if not self._ranges:
            raise Fault(at, f"{{{{{word}}}}} outside of a range")
        self._close(word)
        return Leave(at, word)

    # Templates.

    def _define_here(self, at: int) -> None:
        if self._open:
            raise Fault(at, f"{{{{define}}}} inside of {{{{{self._open[-1]}}}}}; expected it outside of every block")
        name = self._name("define")
        self._close("the name of the template")
        self._define(name, Definition(at, self._last_body("define", at)))

    def _block(self, at: int) -> Invocation:
        name_at, name = self._peek().at, self._name("block")
        pipeline = self._pipeline("block", Kind.CLOSE)
        ranges, self._ranges = self._ranges, 0
        body = self._last_body("block", at)
        self._ranges = ranges
        self._define(name, Definition(at, body))
        return Invocation(name_at, name, pipeline)

    def _invocation(self) -> Invocation:
        at, name = self._peek().at, self._name("template")
        if self._peek().kind is Kind.CLOSE:
            self._next()
            return Invocation(at, name, None)
        return Invocation(at, name, self._pipeline("template", Kind.CLOSE))

    def _name(self, word: str) -> str:
        token = self._next()
        if token.kind is Kind.STRING:
            return parse_string(token.source, token.at).decode("utf-8", "replace")
        if token.kind is Kind.RAW_STRING:
            return parse_raw_string(token.source).decode("utf-8", "replace")
        raise Fault(token.at, f"unexpected {_shown(token)} after {word}; expected the template's name in quotes")

    def _define(self, name: str, definition: Definition) -> None:
        earlier = self._definitions.get(name)
        if earlier is None or earlier.is_empty:
            self._definitions[name] = definition
        elif not definition.is_empty:
            at = max(earlier.at, definition.at)
            raise Fault(at, f'a template named "{name}" is defined already; expected another name')

    # Pipelines.

    def _pipeline(self, context: str, closer: _Closer) -> Pipeline:
        """A pipeline up to its closer, which is taken."""
        at = self._peek().at
        targets, declares = self._targets(context)
        commands: list[Command] = []
        while (token := self._peek()).kind is not closer:
            if not _begins_operand(token):
                raise _unexpected(token, context, "a value or a function")
            commands.append(self._command(context, closer))
            if len(commands) > 1 and isinstance(commands[-1].operands[0], _NO_STAGE):
                raise Fault(token.at, f"{_shown(token)} cannot take the value before the bar; expected a function")
        if not commands:
            raise Fault(token.at, f"no value in {context}; expected one before {closer.value}")
        self._next()
        return Pipeline(at, targets, declares, tuple(commands))

    def _targets(self, context: str) -> tuple[tuple[Variable, ...], bool]:
        """The variables that a pipeline sets, and whether it declares them."""
        targets: list[Variable] = []
        while self._peek().kind is Kind.VARIABLE:
            following = self._peek(1)
            if following.kind not in (Kind.DECLARE, Kind.ASSIGN, Kind.COMMA):
                break
            variable = self._next()
            targets.append(Variable(variable.at, variable.source, ()))
            self._next()
            if following.kind is not Kind.COMMA:
                return tuple(targets), following.kind is Kind.DECLARE
            self._check_comma(context, following, len(targets))
        if targets:
            raise _unexpected(self._peek(), context, ":= or = after the variables")
        return (), False

    def _check_comma(self, context: str, comma: Token, count: int) -> None:
        if context != "range" or count > 1:
            allowed = "two variables" if context == "range" else "one variable"
            raise Fault(comma.at, f"too many variables in {context}; it sets {allowed} at most")

    def _command(self, context: str, closer: _Closer) -> Command:
        """One stage, with the bar after it if there is one."""
        at = self._peek().at
        operands = [self._operand()]
        while (token := self._peek()).kind not in (closer, Kind.PIPE):
            if not _begins_operand(token):
                raise _unexpected(token, context, f"an argument, | or {closer.value}")
            if not token.is_spaced:
                is_dot = token.kind is Kind.DOT
                raise _unexpected(token, context, "a field's name after it" if is_dot else "a blank before it")
            operands.append(self._operand())
        if token.kind is Kind.PIPE:
            self._next()
        return Command(at, tuple(operands))

    def _operand(self) -> Operand:
        token = self._next()
        term = self._term(token)
        names: list[Name] = []
        while (following := self._peek()).kind is Kind.FIELD and not following.is_spaced:
            if isinstance(term, _NO_STAGE):
                raise Fault(following.at, f"unexpected {following.source} after {_shown(token)}, which has no fields")
            names.append(_field_name(self._next()))
        if not names:
            return term
        match term:
            case Field():
                return Field(term.at, (*term.names, *names))
            case Variable():
                return Variable(term.at, term.name, tuple(names))
            case _:
                assert isinstance(term, Function | Pipeline)
                return Chain(term.at, term, tuple(names))

    def _term(self, token: Token) -> Operand:
        match token.kind:
            case Kind.FIELD:
                return Field(token.at, (_field_name(token),))
            case Kind.VARIABLE:
                return Variable(token.at, token.source, ())
            case Kind.DOT:
                return Dot(token.at)
            case Kind.WORD:
                return _word(token)
            case Kind.LEFT:
                return self._parenthesised(token.at)
            case _:
                return Constant(token.at, token.source, _constant(token))

    def _parenthesised(self, at: int) -> Pipeline:
        self._enter(at)
        pipeline = self._pipeline("parentheses", Kind.RIGHT)
        self._nesting -= 1
        return pipeline


_OPERANDS = {
    Kind.FIELD,
    Kind.VARIABLE,
    Kind.DOT,
    Kind.LEFT,
    Kind.NUMBER,
    Kind.CHARACTER,
    Kind.STRING,
    Kind.RAW_STRING,
}


def _begins_operand(token: Token) -> bool:
    return token.kind in _OPERANDS or (token.kind is Kind.WORD and token.source not in _KEYWORDS)


def _field_name(token: Token) -> Name:
    return Name(token.at, token.source[1:])


def _word(token: Token) -> Operand:
    match token.source:
        case "true" | "false":
            return Constant(token.at, token.source, token.source == "true")
        case "nil":
            return Nil(token.at)
        case _:
            return Function(token.at, token.source)


def _constant(token: Token) -> bytes | int | float:
    match token.kind:
        case Kind.STRING:
            return parse_string(token.source, token.at)
        case Kind.RAW_STRING:
            return parse_raw_string(token.source)
        case Kind.CHARACTER:
            return parse_character(token.source, token.at)
        case _:
            return parse_number(token.source, token.at)


def _unexpected(token: Token, context: str, expected: str) -> Fault:
    return Fault(token.at, f"unexpected {_shown(token)} in {context}; expected {expected}")


def _shown(token: Token) -> str:
    """A token for a message; cut, since a string may be long."""
    return token.source if len(token.source) <= 40 else f"{token.source[:40]}…"
