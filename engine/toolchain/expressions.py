"""Integer expressions of plan and tunable lines: tokeniser, recursive-descent parser, safe evaluator.

Never calls Python's ``eval``: the text is untrusted. Every error is a ``KernelCodeError`` with the line and column in the
kernel's file.

    comparison := sum (("<" | "<=" | ">" | ">=" | "==" | "!=") sum)?      1 or 0
    sum        := product (("+" | "-") product)*
    product    := unary (("*" | "/" | "%") unary)*                        / rounds down, % takes the divisor's sign
    unary      := "-" unary | primary
    primary    := INTEGER | NAME | FUNCTION "(" comparison ("," comparison)* ")" | "(" comparison ")"
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine.domain.errors import KernelCodeError
from engine.domain.model import Number

MAX_MAGNITUDE = 2**63 - 1
"""Largest magnitude of any value, intermediate ones included."""
MAX_TOKENS = 200
"""Tokens in one line. Limits the depth of the tree, and with it the recursion."""

_TOKEN = re.compile(
    r"(?P<space>[ \t\f\v]+)|(?P<integer>0[xX][0-9a-fA-F]+|[0-9]+)(?![A-Za-z0-9_.])"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<mark>==|!=|<=|>=|[-+*/%()<>,=|])"
)
_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


@dataclass(frozen=True, slots=True)
class Token:
    """One token and where it starts in the file, counting from 1. Every line ends with a token of kind ``end``."""

    kind: str
    text: str
    line: int
    column: int

    def error(self, message: str) -> KernelCodeError:
        return KernelCodeError(message, self.line, self.column)

    def __str__(self) -> str:
        return "the end of the line" if self.kind == "end" else f"'{self.text}'"


@dataclass(frozen=True, slots=True)
class Integer:
    value: int


@dataclass(frozen=True, slots=True)
class Name:
    token: Token


@dataclass(frozen=True, slots=True)
class Negation:
    token: Token
    operand: Expression


@dataclass(frozen=True, slots=True)
class Operation:
    token: Token
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class FunctionCall:
    token: Token
    arguments: tuple[Expression, ...]


Expression = Integer | Name | Negation | Operation | FunctionCall


def tokenize(text: str, line: int = 1, column: int = 1) -> tuple[Token, ...]:
    """Split one line into tokens; ``line`` and ``column`` are where ``text`` starts in its file.

    Raises:
        KernelCodeError: an unexpected character, or more than ``MAX_TOKENS`` tokens.
    """
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        where = Token("", text[position], line, column + position)
        if match is None:
            raise where.error(_unexpected(text[position]))
        if match.lastgroup != "space":
            tokens.append(Token(match.lastgroup or "", match.group(), line, column + position))
        if len(tokens) > MAX_TOKENS:
            raise where.error(f"line too long: more than {MAX_TOKENS} tokens")
        position = match.end()
    return (*tokens, Token("end", "", line, column + len(text.rstrip())))


def _unexpected(character: str) -> str:
    if character.isdigit():
        return "not an integer: write decimal or 0x digits without fraction or suffix"
    return f"unexpected {character!r}: allowed are integers, names, + - * / % ( ) and comparisons"


class Cursor:
    """A position in a sequence of tokens, for recursive-descent parsers."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._next = 0

    @property
    def peek(self) -> Token:
        return self._tokens[self._next]

    @property
    def following(self) -> Token:
        """The token after ``peek``."""
        return self._tokens[min(self._next + 1, len(self._tokens) - 1)]

    def take(self) -> Token:
        token = self._tokens[self._next]
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token

    def accept(self, *texts: str) -> Token | None:
        """Take the next token if it is one of ``texts``."""
        return self.take() if self.peek.kind != "end" and self.peek.text in texts else None

    def expect(self, text: str, where: str) -> Token:
        if token := self.accept(text):
            return token
        raise self.peek.error(f"expected '{text}' {where}, found {self.peek}")

    def name(self, what: str) -> Token:
        if self.peek.kind == "name":
            return self.take()
        raise self.peek.error(f"expected {what}, found {self.peek}")

    def end(self, where: str) -> None:
        if self.peek.kind != "end":
            raise self.peek.error(f"unexpected {self.peek} {where}")


def parse(text: str, line: int = 1, column: int = 1) -> Expression:
    """Parse ``text`` as one expression.

    Raises:
        KernelCodeError: a syntax error.
    """
    cursor = Cursor(tokenize(text, line, column))
    expression = parse_expression(cursor)
    cursor.end("after the expression")
    return expression


def parse_expression(cursor: Cursor) -> Expression:
    """Parse one expression and leave the cursor after it.

    Raises:
        KernelCodeError: the tokens at the cursor do not start an expression.
    """
    left = _sum(cursor)
    if token := cursor.accept(*_COMPARISONS):
        return Operation(token, left, _sum(cursor))
    return left


def _sum(cursor: Cursor) -> Expression:
    left = _product(cursor)
    while token := cursor.accept("+", "-"):
        left = Operation(token, left, _product(cursor))
    return left


def _product(cursor: Cursor) -> Expression:
    left = _unary(cursor)
    while token := cursor.accept("*", "/", "%"):
        left = Operation(token, left, _unary(cursor))
    return left


def _unary(cursor: Cursor) -> Expression:
    if token := cursor.accept("-"):
        return Negation(token, _unary(cursor))
    return _primary(cursor)


def _primary(cursor: Cursor) -> Expression:
    token = cursor.take()
    match token.kind, token.text:
        case "integer", digits:
            return Integer(_literal(token, digits))
        case "name", _ if cursor.accept("("):
            return FunctionCall(token, _arguments(cursor, token))
        case "name", _:
            return Name(token)
        case _, "(":
            inner = parse_expression(cursor)
            cursor.expect(")", "to close the bracket")
            return inner
    raise token.error(f"expected a number, a name or '(', found {token}")


def _literal(token: Token, digits: str) -> int:
    if len(digits) > len(str(MAX_MAGNITUDE)):
        raise token.error("number too large: 64 bits at most")
    return _bounded(token, int(digits, 16 if digits[:2].lower() == "0x" else 10))


def _arguments(cursor: Cursor, function: Token) -> tuple[Expression, ...]:
    if function.text not in _FUNCTIONS:
        raise function.error(f"unknown function '{function.text}'{near(function.text, _FUNCTIONS)}")
    arguments = [parse_expression(cursor)]
    while cursor.accept(","):
        arguments.append(parse_expression(cursor))
    cursor.expect(")", f"to close {function.text}(")
    exact = _FUNCTIONS[function.text].arguments
    if exact is not None and len(arguments) != exact:
        raise function.error(f"{function.text} takes {exact} argument{'s' * (exact > 1)}, not {len(arguments)}")
    return tuple(arguments)


def evaluate(expression: Expression, names: Mapping[str, Number]) -> int:
    """The value of ``expression`` with these names.

    Raises:
        KernelCodeError: an unknown or non-integer name, a division by zero, a value beyond 64 bits.
    """
    match expression:
        case Integer(value):
            return value
        case Name(token):
            return _look_up(token, names)
        case Negation(token, operand):
            return _bounded(token, -evaluate(operand, names))
        case Operation(token, left, right):
            return _operate(token, evaluate(left, names), evaluate(right, names))
        case FunctionCall(token, arguments):
            values = [evaluate(argument, names) for argument in arguments]
            return _bounded(token, _FUNCTIONS[token.text].apply(token, values))


def near(word: str, known: Mapping[str, object] | Sequence[str]) -> str:
    """``: did you mean 'x'?`` for the nearest known words; empty if none is close."""
    upper = {k.upper(): k for k in known}
    match difflib.get_close_matches(word.upper(), upper, n=2, cutoff=0.6):
        case []:
            return ""
        case [one]:
            return f": did you mean '{upper[one]}'?"
        case [one, other, *_]:
            return f": did you mean '{upper[one]}' or '{upper[other]}'?"
    return ""


def _look_up(token: Token, names: Mapping[str, Number]) -> int:
    value = names.get(token.text)
    if value is None:
        raise token.error(f"unknown name '{token.text}'{near(token.text, names)}")
    if not isinstance(value, int):
        raise token.error(f"'{token.text}' is {value}: only integers are allowed here")
    return _bounded(token, int(value))


def _bounded(token: Token, value: int) -> int:
    if abs(value) > MAX_MAGNITUDE:
        raise token.error("value too large: it does not fit in 64 bits")
    return value


def _operate(token: Token, left: int, right: int) -> int:
    match token.text:
        case "+":
            value = left + right
        case "-":
            value = left - right
        case "*":
            value = left * right
        case "/":
            value = left // _divisor(token, right)
        case "%":
            value = left % _divisor(token, right)
        case comparison:
            value = int(_compare(comparison, left, right))
    return _bounded(token, value)


def _compare(mark: str, left: int, right: int) -> bool:
    match mark:
        case "<":
            return left < right
        case "<=":
            return left <= right
        case ">":
            return left > right
        case ">=":
            return left >= right
        case "==":
            return left == right
        case _:
            return left != right


def _divisor(token: Token, value: int) -> int:
    if value == 0:
        raise token.error("division by zero")
    return value


@dataclass(frozen=True, slots=True)
class _Function:
    arguments: int | None
    """Number of arguments; ``None``: one or more."""
    apply: Callable[[Token, list[int]], int]


def _ceil_div(token: Token, values: list[int]) -> int:
    return -(-values[0] // _divisor(token, values[1]))


def _next_pow2(_: Token, values: list[int]) -> int:
    """The smallest power of two ≥ n; 1 for n ≤ 1."""
    return 1 << max(values[0] - 1, 0).bit_length()


_FUNCTIONS: Mapping[str, _Function] = {
    "ceil_div": _Function(2, _ceil_div),
    "next_pow2": _Function(1, _next_pow2),
    "min": _Function(None, lambda _, values: min(values)),
    "max": _Function(None, lambda _, values: max(values)),
}
