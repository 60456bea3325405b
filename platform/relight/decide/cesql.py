"""CloudEvents SQL v1: expressions over an event's attributes, for Triggers that filter by ``cesql``.

A Pratt parser builds closures; evaluating one gives a value or raises a ``Flaw`` (a missing attribute, a cast that
fails, a division by zero), which carries the value that the specification gives instead. An operator whose operand is
flawed is flawed itself, with the zero value of its own type; a filter with a flaw does not match.

Precedence, from tightest: function call; NOT, unary minus; LIKE, EXISTS, IN; ``* / %``; ``+ -``; comparison; AND, OR
and XOR, which are all equal and group to the right (the specification's grammar).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from relight.base.errors import BadInput
from relight.decide.sqltext import like
from relight.decide.sqlvalues import (
    FUNCTIONS,
    Flaw,
    FlawKind,
    Value,
    bounded,
    equal,
    to_boolean,
    to_integer,
    to_string,
)
from relight.wire.cloudevents import Event

Node = Callable[[Event], Value]

_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<number>\d+)|(?P<word>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<string>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<symbol>!=|<>|<=|>=|[=<>+\-*/%(),])",
    re.DOTALL,
)
_KEYWORDS = {"AND", "OR", "XOR", "NOT", "LIKE", "IN", "EXISTS", "TRUE", "FALSE"}
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_LOGIC, _COMPARISON, _ADD, _MULTIPLY, _LIKE, _UNARY = range(1, 7)
_BINDING = (
    dict.fromkeys(("AND", "OR", "XOR"), _LOGIC)
    | dict.fromkeys(("=", "!=", "<>", *_COMPARE), _COMPARISON)
    | dict.fromkeys(("+", "-"), _ADD)
    | dict.fromkeys(("*", "/", "%"), _MULTIPLY)
    | dict.fromkeys(("LIKE", "IN", "NOT"), _LIKE)
)
LONGEST = 4096
"""Characters of an expression."""
DEEPEST = 64
"""Nesting of an expression, so that none can exhaust the interpreter's stack."""


class Token(NamedTuple):
    kind: Literal["number", "word", "string", "symbol", "keyword", "end"]
    text: str
    at: int


@dataclass(frozen=True)
class Expression:
    """A compiled expression."""

    source: str
    node: Node

    def evaluate(self, event: Event) -> tuple[Value, FlawKind | None]:
        """The value, and what was wrong on the way to it."""
        try:
            return self.node(event), None
        except Flaw as flaw:
            return flaw.value, flaw.kind

    def matches(self, event: Event) -> bool:
        """True only for the value true (or what casts to it) without a flaw."""
        value, flaw = self.evaluate(event)
        if flaw is not None:
            return False
        try:
            return to_boolean(value)
        except Flaw:
            return False


def compile(source: str) -> Expression:
    """Parse an expression; BadInput says what was expected and where (counted from 1)."""
    if len(source) > LONGEST:
        raise BadInput(f"the expression has {len(source)} characters; at most {LONGEST} are read")
    parser = _Parser(_tokens(source))
    node = parser.expression(0)
    parser.expect("end", "the end of the expression or an operator")
    return Expression(source, node)


def _tokens(source: str) -> list[Token]:
    tokens, at = [], 0
    while at < len(source):
        match = _TOKEN.match(source, at)
        if not match or match.lastgroup is None:
            raise BadInput(f"unexpected {source[at]!r} at character {at + 1}")
        kind, text = match.lastgroup, match[0]
        if kind == "word" and text.upper() in _KEYWORDS:
            kind, text = "keyword", text.upper()
        if kind != "space":
            tokens.append(Token(kind, text, at + 1))  # type: ignore[arg-type]
        at = match.end()
    return [*tokens, Token("end", "", len(source) + 1)]


def _flawed_as(zero: Value, compute: Node) -> Node:
    """A node whose flaws carry the zero value of its own type."""

    def node(event: Event) -> Value:
        try:
            return compute(event)
        except Flaw as flaw:
            raise Flaw(flaw.kind, flaw.value if type(flaw.value) is type(zero) else zero) from flaw

    return node


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.place = 0
        self.depth = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.place]

    def take(self, *texts: str) -> Token | None:
        """The next token if it is one of these symbols or keywords."""
        token = self.token
        if token.kind not in ("symbol", "keyword") or token.text not in texts:
            return None
        self.place += 1
        return token

    def expect(self, what: str, words: str) -> Token:
        """The next token, which must be this symbol or kind."""
        token = self.token
        if token.text != what and token.kind != what:
            shown = repr(token.text) if token.text else "the end"
            raise BadInput(f"expected {words} at character {token.at}, got {shown}")
        self.place = min(self.place + 1, len(self.tokens) - 1)
        return token

    def expression(self, binding: int) -> Node:
        self.depth += 1
        if self.depth > DEEPEST:
            raise BadInput(f"the expression is nested more than {DEEPEST} deep")
        left = self.prefix()
        while True:
            token = self.token
            power = _BINDING.get(token.text, 0) if token.kind in ("symbol", "keyword") else 0
            if power <= binding:
                break
            self.place += 1
            left = self.infix(left, token, power)
        self.depth -= 1
        return left

    def prefix(self) -> Node:
        if self.take("("):
            inner = self.expression(0)
            self.expect(")", "')'")
            return inner
        if self.take("NOT"):
            operand = self.expression(_UNARY)
            return _flawed_as(False, lambda event: not to_boolean(operand(event)))
        if self.take("-"):
            number = self.expression(_UNARY)
            return _flawed_as(0, lambda event: bounded(-to_integer(number(event))))
        if self.take("EXISTS"):
            name = self.expect("word", "an attribute's name").text
            return lambda event: event.get(name) is not None
        literal = self.take("TRUE", "FALSE")
        if literal:
            truth = literal.text == "TRUE"
            return lambda event: truth
        token = self.token
        if token.kind == "word":
            self.place += 1
            return self.call(token.text.upper()) if self.take("(") else _attribute(token.text)
        if token.kind == "number":
            self.place += 1
            integer = int(token.text[:20])
            # -2147483648 is a literal too: its digits alone are one too many.
            if integer > 2**31:
                raise BadInput(f"the integer at character {token.at} does not fit in 32 bits")
            return lambda event: integer
        text = _unquote(self.expect("string", "a value").text)
        return lambda event: text

    def infix(self, left: Node, token: Token, power: int) -> Node:
        name = token.text
        if name == "NOT":
            name = "NOT " + (self.take("LIKE", "IN") or self.expect("LIKE", "LIKE or IN")).text
        if name.endswith("LIKE"):
            pattern = _unquote(self.expect("string", "a pattern in quotes").text)
            wanted = name == "LIKE"
            return _flawed_as(False, lambda event: like(to_string(left(event)), pattern) is wanted)
        if name.endswith("IN"):
            return _membership(left, self.values(), name == "IN")
        right = self.expression(power - 1 if power == _LOGIC else power)
        if power == _LOGIC:
            return _logic(name, left, right)
        if name in ("=", "!=", "<>"):
            same = name == "="
            return _flawed_as(False, lambda event: equal(left(event), right(event)) is same)
        if name in _COMPARE:
            compare = _COMPARE[name]
            return _flawed_as(False, lambda event: compare(to_integer(left(event)), to_integer(right(event))))
        return _flawed_as(0, lambda event: _arithmetic(name, to_integer(left(event)), to_integer(right(event))))

    def values(self) -> list[Node]:
        """Expressions in parentheses, at least one."""
        self.expect("(", "'('")
        found = [self.expression(0)]
        while self.take(","):
            found.append(self.expression(0))
        self.expect(")", "',' or ')'")
        return found

    def call(self, name: str) -> Node:
        arguments: list[Node] = []
        if not self.take(")"):
            self.place -= 1
            arguments = self.values()
        function = FUNCTIONS.get(name)
        if function is None or not function.takes(len(arguments)):

            def missing(event: Event) -> Value:
                raise Flaw("missingFunction", False)

            return missing
        run, zero = function.run, function.zero
        return _flawed_as(zero, lambda event: run(*[argument(event) for argument in arguments]))


def _attribute(name: str) -> Node:
    def node(event: Event) -> Value:
        value = event.get(name)
        if value is None:
            raise Flaw("missingAttribute", False)
        return value

    return node


def _membership(left: Node, members: list[Node], wanted: bool) -> Node:
    def node(event: Event) -> Value:
        value = left(event)
        cast = to_boolean if isinstance(value, bool) else to_integer if isinstance(value, int) else to_string
        return any(cast(member(event)) == value for member in members) is wanted

    return _flawed_as(False, node)


def _logic(name: str, left: Node, right: Node) -> Node:
    def node(event: Event) -> Value:
        first = to_boolean(left(event))
        if (name == "AND" and not first) or (name == "OR" and first):
            return first
        second = to_boolean(right(event))
        return first is not second if name == "XOR" else second

    return _flawed_as(False, node)


def _arithmetic(name: str, left: int, right: int) -> int:
    if name == "+":
        return bounded(left + right)
    if name == "-":
        return bounded(left - right)
    if name == "*":
        return bounded(left * right)
    if right == 0:
        raise Flaw("math", 0)
    quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)  # towards zero, as in Go and Java
    return bounded(quotient) if name == "/" else left - quotient * right


def _unquote(text: str) -> str:
    """A string without its quotes. Only the quote itself is escaped; other backslashes stay, for LIKE needs them."""
    return text[1:-1].replace("\\" + text[0], text[0])
