"""Values of CloudEvents SQL: how they cast to each other, and the functions over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Value = str | int | bool
FlawKind = Literal["math", "cast", "missingAttribute", "missingFunction", "functionEvaluation"]

LEAST, MOST = -(2**31), 2**31 - 1


class Flaw(Exception):
    """What was wrong in an evaluation, and the value that stands in."""

    def __init__(self, kind: FlawKind, value: Value) -> None:
        super().__init__(kind)
        self.kind = kind
        self.value = value


def bounded(number: int) -> int:
    """An integer of 32 bits; a flaw with the nearest one if it does not fit."""
    if LEAST <= number <= MOST:
        return number
    raise Flaw("math", MOST if number > 0 else LEAST)


def to_boolean(value: Value) -> bool:
    if isinstance(value, str):
        if value.lower() not in ("true", "false"):
            raise Flaw("cast", False)
        return value.lower() == "true"
    return bool(value)


def to_integer(value: Value) -> int:
    if not isinstance(value, str):
        return int(value)
    digits = value[1:] if value[:1] in ("-", "+") else value
    if not digits.isdecimal() or not digits.isascii() or len(digits) > 20 or not LEAST <= int(value) <= MOST:
        raise Flaw("cast", 0)
    return int(value)


def to_string(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def equal(left: Value, right: Value) -> bool:
    """``=``: operands of different types are both cast to the narrower one (Boolean, then Integer, then String)."""
    for kind, cast in ((bool, to_boolean), (int, to_integer)):
        if isinstance(left, kind) or isinstance(right, kind):
            return cast(left) == cast(right)
    return left == right


@dataclass(frozen=True)
class Function:
    """A function: how many arguments it takes (``most`` None: any number), and its result's zero value."""

    run: Callable[..., Value]
    least: int
    most: int | None
    zero: Value

    def takes(self, count: int) -> bool:
        return self.least <= count and (self.most is None or count <= self.most)


def _head(text: Value, count: Value) -> str:
    whole, length = to_string(text), to_integer(count)
    if length < 0:
        raise Flaw("functionEvaluation", whole)
    return whole[:length]


def _tail(text: Value, count: Value) -> str:
    whole, length = to_string(text), to_integer(count)
    if length < 0:
        raise Flaw("functionEvaluation", whole)
    return whole[-length:] if length else ""


def _substring(text: Value, position: Value, count: Value | None = None) -> str:
    """Characters from ``position``, counted from 1, or from the end if negative; position 0 is before the text."""
    whole, place = to_string(text), to_integer(position)
    length = len(whole) if count is None else to_integer(count)
    if place == 0:
        return ""
    if abs(place) > len(whole) or length < 0:
        raise Flaw("functionEvaluation", "")
    start = place - 1 if place > 0 else len(whole) + place
    return whole[start : start + length]


def _is_integer(value: Value) -> bool:
    try:
        to_integer(value)
    except Flaw:
        return False
    return True


def _is_boolean(value: Value) -> bool:
    try:
        to_boolean(value)
    except Flaw:
        return False
    return True


FUNCTIONS = {
    "ABS": Function(lambda number: bounded(abs(to_integer(number))), 1, 1, 0),
    "BOOL": Function(to_boolean, 1, 1, False),
    "CONCAT": Function(lambda *texts: "".join(map(to_string, texts)), 0, None, ""),
    "CONCAT_WS": Function(lambda between, *texts: to_string(between).join(map(to_string, texts)), 1, None, ""),
    "INT": Function(to_integer, 1, 1, 0),
    "IS_BOOL": Function(_is_boolean, 1, 1, False),
    "IS_INT": Function(_is_integer, 1, 1, False),
    "LEFT": Function(_head, 2, 2, ""),
    "LENGTH": Function(lambda text: len(to_string(text)), 1, 1, 0),
    "LOWER": Function(lambda text: to_string(text).lower(), 1, 1, ""),
    "RIGHT": Function(_tail, 2, 2, ""),
    "STRING": Function(to_string, 1, 1, ""),
    "SUBSTRING": Function(_substring, 2, 3, ""),
    "TRIM": Function(lambda text: to_string(text).strip(), 1, 1, ""),
    "UPPER": Function(lambda text: to_string(text).upper(), 1, 1, ""),
}
