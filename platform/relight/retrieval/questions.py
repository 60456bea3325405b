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
FIELDS = ("query", "k", "offset", "filter", "tenant", "mode", "output_fields", "degrade")


@dataclass(frozen=True)
class Question:
    """``degrade``: whether an answer without one of the steps is better than none; it says so then.

    ``output_fields``: of a hit, ``text`` and fields of its metadata; None: all. Its names and scores are always there.
    """

    text: str
    k: int = 5
    offset: int = 0
    filter: Mapping[str, Any] = field(default_factory=dict)
    where: tuple[Condition, ...] = ()
    tenant: str = DEFAULT_TENANT
    mode: str = "hybrid"
    output_fields: tuple[str, ...] | None = None
    degrade: bool = True

    def query(self) -> Query:
        """What to search among."""
        return Query(self.k, self.offset, self.where, self.tenant)

    def shown(self, hit: Mapping[str, Any]) -> dict[str, Any]:
        """A hit as JSON has it, with no more than was asked for."""
        if self.output_fields is None:
            return dict(hit)
        metadata = {name: value for name, value in hit.get("metadata", {}).items() if name in self.output_fields}
        shown = {name: value for name, value in hit.items() if name != "metadata"}
        if "text" not in self.output_fields:
            shown.pop("text", None)
        return {**shown, "metadata": metadata} if metadata else shown

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
        output = data.get("output_fields")
        if output is not None and not (isinstance(output, list) and all(isinstance(one, str) for one in output)):
            problems.append(Problem("output_fields", "expected an array of text and of names of the metadata"))
            output = None
        if not isinstance(data.get("degrade", True), bool):
            problems.append(Problem("degrade", "expected true or false"))
        known = (*FIELDS, *more)
        for key in sorted(data.keys() - set(known), key=str):
            problems.append(Problem(str(key), f"unknown; expected {', '.join(known)}"))
        if problems:
            raise BadInput.of(problems)
        chosen = tuple(output) if output is not None else None
        where_given, degrade = data.get("filter") or {}, data.get("degrade", True)
        return cls(str(text), k, offset, where_given, where, str(tenant), asked, chosen, degrade)


def _whole(data: Mapping[str, Any], name: str, default: int, low: int, high: int, problems: list[Problem]) -> int:
    value = data.get(name, default)
    if type(value) is not int or not low <= value <= high:
        problems.append(Problem(name, f"expected a whole number from {low} to {high}"))
        return default
    return value
