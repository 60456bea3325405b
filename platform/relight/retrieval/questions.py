"""A question as retrieve and search take it: JSON to values, every mistake named at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relight.base.errors import BadInput, Problem
from relight.retrieval.filters import Condition, parse_filter
from relight.retrieval.searching import MODES
from relight.retrieval.vectors import DEFAULT_TENANT, NAME_BYTES, Query

MAX_K = 100
MAX_OFFSET = 900
FIELDS = ("query", "k", "offset", "filter", "tenant", "mode", "degrade")


@dataclass(frozen=True)
class Question:
    """``degrade``: whether an answer without one of the steps is better than none; it says so then."""

    text: str
    k: int = 5
    offset: int = 0
    filter: Mapping[str, Any] = field(default_factory=dict)
    where: tuple[Condition, ...] = ()
    tenant: str = DEFAULT_TENANT
    mode: str = "hybrid"
    degrade: bool = True

    def query(self) -> Query:
        """What to search among."""
        return Query(self.k, self.offset, self.where, self.tenant)

    @classmethod
    def parse(cls, data: Any, mode: str, more: Sequence[str] = ()) -> Question:
        """Read and check. ``mode``: where the question names none; ``more``: fields that the caller reads itself."""
        if not isinstance(data, Mapping):
            raise BadInput('expected JSON such as {"query": "parse command line options", "k": 5}')
        problems: list[Problem] = []
        text, tenant = data.get("query"), data.get("tenant", DEFAULT_TENANT)
        if not isinstance(text, str) or not text.strip():
            problems.append(Problem("query", "expected a text"))
        k = _whole(data, "k", 5, 1, MAX_K, problems)
        offset = _whole(data, "offset", 0, 0, MAX_OFFSET, problems)
        where: tuple[Condition, ...] = ()
        try:
            where = parse_filter(data.get("filter"))
        except BadInput as error:
            problems += error.problems
        if not isinstance(tenant, str) or not tenant or len(tenant.encode(errors="replace")) > NAME_BYTES:
            problems.append(Problem("tenant", f"expected a non-empty string of at most {NAME_BYTES} bytes"))
        asked = data.get("mode", mode)
        if asked not in MODES:
            problems.append(Problem("mode", f"expected {', '.join(MODES)}"))
        if not isinstance(data.get("degrade", True), bool):
            problems.append(Problem("degrade", "expected true or false"))
        known = (*FIELDS, *more)
        for key in sorted(data.keys() - set(known), key=str):
            problems.append(Problem(str(key), f"unknown; expected {', '.join(known)}"))
        if problems:
            raise BadInput.of(problems)
        return cls(str(text), k, offset, data.get("filter") or {}, where, str(tenant), asked, data.get("degrade", True))


def _whole(data: Mapping[str, Any], name: str, default: int, low: int, high: int, problems: list[Problem]) -> int:
    value = data.get(name, default)
    if type(value) is not int or not low <= value <= high:
        problems.append(Problem(name, f"expected a whole number from {low} to {high}"))
        return default
    return value
