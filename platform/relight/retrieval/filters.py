"""Filters as values: what a caller may ask of a chunk's document and metadata, the same for every store.

``{"lang": "en", "year": {"gte": 2020, "lt": 2024}, "tag": {"in": ["a", "b"]}}``: all of them must hold. A field that a
chunk does not have fails every condition on it. No store ever gets text of a caller's as syntax.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relight.base.errors import BadInput, Problem

Scalar = str | int | float | bool
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
ORDERED = ("gt", "gte", "lt", "lte")
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}
MAX_VALUES = 1000
"""Of one ``in``."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition. ``field`` is ``document`` or a field of the metadata; ``op`` is ``eq``, ``in`` or one of ORDERED.

    ``values`` has one value, but for ``in``.
    """

    field: str
    op: str
    values: tuple[Scalar, ...]

    @property
    def value(self) -> Scalar:
        return self.values[0]


def parse_filter(where: Any) -> tuple[Condition, ...]:
    """Read and check a filter as it comes in JSON; None is no condition. BadInput names every mistake."""
    if where is None:
        return ()
    if not isinstance(where, Mapping):
        raise BadInput.of([Problem("filter", "expected an object of fields and values")])
    problems: list[Problem] = []
    found: list[Condition] = []
    for name, wanted in where.items():
        path = f"filter.{name}"
        if not isinstance(name, str) or not _FIELD.fullmatch(name):
            problems.append(Problem(path, "expected letters, digits, '_', '.' and '-' in a field's name"))
        elif isinstance(wanted, Mapping):
            found += _operators(name, wanted, path, problems)
        elif _is_scalar(wanted, path, problems):
            found.append(Condition(name, "eq", (wanted,)))
    if problems:
        raise BadInput.of(problems)
    return tuple(found)


def passes(document: str, metadata: Mapping[str, Any], where: Sequence[Condition]) -> bool:
    """Whether a chunk meets all conditions: what stores do, here for rows that are at hand."""
    for one in where:
        value = document if one.field == "document" else metadata.get(one.field)
        if one.op in ORDERED:
            if type(value) not in (int, float) or not _COMPARE[one.op](value, one.value):
                return False
        elif not any(_is_same(value, wanted) for wanted in one.values):
            return False
    return True


def _is_same(value: Any, wanted: Scalar) -> bool:
    """As JSON compares: 5 is 5.0, and true is not 1."""
    return isinstance(value, bool) == isinstance(wanted, bool) and bool(value == wanted)


def _operators(name: str, wanted: Mapping[Any, Any], path: str, problems: list[Problem]) -> list[Condition]:
    found = []
    if not wanted:
        problems.append(Problem(path, f"expected at least one of in, {', '.join(ORDERED)}"))
    for op, value in wanted.items():
        where = f"{path}.{op}"
        if op == "in":
            if not isinstance(value, list) or not 1 <= len(value) <= MAX_VALUES:
                problems.append(Problem(where, f"expected an array of 1 to {MAX_VALUES} values"))
            elif all(_is_scalar(one, f"{where}[{at}]", problems) for at, one in enumerate(value)):
                found.append(Condition(name, "in", tuple(value)))
        elif op in ORDERED:
            if type(value) not in (int, float):
                problems.append(Problem(where, "expected a number"))
            elif name == "document":
                problems.append(Problem(where, "document has no order; expected a value or in"))
            else:
                found.append(Condition(name, str(op), (value,)))
        else:
            problems.append(Problem(where, f"unknown; expected in, {', '.join(ORDERED)}"))
    return found


def _is_scalar(value: Any, path: str, problems: list[Problem]) -> bool:
    if not isinstance(value, str | int | float):
        problems.append(Problem(path, "expected a string, a number or a boolean"))
    elif isinstance(value, str) and _CONTROL.search(value):
        problems.append(Problem(path, "cannot be looked for: it holds control characters"))
    else:
        return True
    return False
