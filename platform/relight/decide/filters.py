"""Which events a Trigger wants: the filter dialects of CloudEvents Subscriptions, and Knative's older attribute filter.

A filter that cannot be built is refused with its field path. (Knative skips such a filter, so that it lets everything
through; and its ``all`` and ``any`` may change with the order of members when one is empty. Neither happens here, for
empty values and empty lists are refused.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from relight.base.errors import BadInput, Problem
from relight.decide import cesql
from relight.wire.cloudevents import Event

Result = Literal["pass", "fail", "none"]
Test = Callable[[Event], bool]

_NAME = re.compile(r"[a-z][a-z0-9]*")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_ALIASES = {"schemaurl": "dataschema", "datamediatype": "datacontenttype"}
_TEXT: dict[str, Callable[[str, str], bool]] = {
    "exact": str.__eq__,
    "prefix": str.startswith,
    "suffix": str.endswith,
}
_DIALECTS = (*_TEXT, "all", "any", "not", "cesql")
DEEPEST = 32
"""Nesting of all, any and not; deeper ones are refused rather than risk the interpreter's stack."""


@dataclass(frozen=True)
class Filter:
    """A built filter. ``tests`` must all hold; None means that nothing was asked for."""

    tests: tuple[Test, ...] | None

    def result(self, event: Event) -> Result:
        if self.tests is None:
            return "none"
        return "pass" if all(test(event) for test in self.tests) else "fail"

    def matches(self, event: Event) -> bool:
        """Whether a broker delivers the event: it passes, or nothing was asked for."""
        return self.result(event) != "fail"


def validate(filters: Sequence[Any] | None, path: str = "spec.filters") -> list[Problem]:
    """Every mistake of a Trigger's ``spec.filters``, by field path; empty when it can be built."""
    problems: list[Problem] = []
    _build_list(filters or [], path, problems, 0)
    return problems


def validate_attributes(attributes: Mapping[str, Any] | None, path: str = "spec.filter.attributes") -> list[Problem]:
    """Every mistake of a Trigger's older ``spec.filter.attributes``."""
    problems: list[Problem] = []
    _build_attributes(attributes or {}, path, problems)
    return problems


def compile(filters: Sequence[Any] | None, legacy_attributes: Mapping[str, str] | None = None) -> Filter:
    """The filter of a Trigger; ``filters``, unless empty, wins over the older attributes. BadInput names mistakes."""
    problems: list[Problem] = []
    tests: list[Test] | None = None
    if filters:
        tests = _build_list(filters, "spec.filters", problems, 0)
    elif legacy_attributes is not None:
        tests = _build_attributes(legacy_attributes, "spec.filter.attributes", problems)
    if problems:
        raise BadInput.of(problems)
    return Filter(None if tests is None else tuple(tests))


def _build_list(filters: object, path: str, problems: list[Problem], depth: int) -> list[Test]:
    if not isinstance(filters, list | tuple):
        problems.append(Problem(path, f"a list of filters was expected, got {type(filters).__name__}"))
        return []
    built = [_build(one, f"{path}[{place}]", problems, depth) for place, one in enumerate(filters)]
    return [test for test in built if test is not None]


def _build(one: object, path: str, problems: list[Problem], depth: int) -> Test | None:
    """One filter; None (and at least one problem) if it cannot be built."""
    if not isinstance(one, Mapping):
        problems.append(Problem(path, f"a filter such as {{exact: {{type: …}}}} was expected, got {one!r}"[:200]))
        return None
    if len(one) != 1:
        found = ", ".join(map(str, one)) or "none"
        problems.append(Problem(path, f"a filter has exactly one dialect, got {found}"))
        return None
    if depth > DEEPEST:
        problems.append(Problem(path, f"filters are nested more than {DEEPEST} deep"))
        return None
    ((dialect, what),) = one.items()
    path = f"{path}.{dialect}"
    if dialect in _TEXT:
        return _build_text(_TEXT[dialect], dialect == "exact", what, path, problems)
    if dialect == "not":
        inner = _build(what, path, problems, depth + 1)
        return None if inner is None else lambda event: not inner(event)
    if dialect in ("all", "any"):
        members = _build_list(what, path, problems, depth + 1)
        if isinstance(what, list | tuple) and not what:
            problems.append(Problem(path, "at least one filter was expected"))
        decide = all if dialect == "all" else any
        return lambda event: decide(member(event) for member in members)
    if dialect == "cesql":
        return _build_cesql(what, path, problems)
    problems.append(Problem(path, f"unknown dialect; expected one of {', '.join(_DIALECTS)}"))
    return None


def _build_text(
    compare: Callable[[str, str], bool], exact: bool, what: object, path: str, problems: list[Problem]
) -> Test | None:
    if not isinstance(what, Mapping) or not what:
        problems.append(Problem(path, "a map of attribute names to values was expected"))
        return None
    wanted = []
    for name, value in what.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            problems.append(Problem(f"{path}.{name}", "an attribute's name is lower-case letters and digits"))
        elif not isinstance(value, str) or not value:
            problems.append(Problem(f"{path}.{name}", f"a non-empty string was expected, got {value!r}"[:200]))
        else:
            wanted.append((name, _canonical(value) if exact and name == "time" else value))
    if exact and len(wanted) == 1 and wanted[0][0] == "type":
        # What nearly all Triggers ask, of every event.
        type_ = wanted[0][1]
        return lambda event: event.type == type_
    return lambda event: all(compare(text(event, name) or "", value) for name, value in wanted)


def _build_cesql(what: object, path: str, problems: list[Problem]) -> Test | None:
    if not isinstance(what, str):
        problems.append(Problem(path, f"an expression was expected, got {type(what).__name__}"))
        return None
    try:
        return cesql.compile(what).matches
    except BadInput as error:
        problems.append(Problem(path, error.message))
        return None


def _build_attributes(attributes: Mapping[str, Any], path: str, problems: list[Problem]) -> list[Test]:
    wanted = []
    for name, value in attributes.items():
        if not _NAME.fullmatch(name):
            problems.append(Problem(f"{path}.{name}", "an attribute's name is lower-case letters and digits"))
        elif not isinstance(value, str):
            problems.append(Problem(f"{path}.{name}", f"a string was expected, got {value!r}"[:200]))
        else:
            wanted.append((name, _canonical(value) if name == "time" else value))

    def test(event: Event) -> bool:
        # An empty value asks for any value that is present and not empty.
        found = ((text(event, name), value) for name, value in wanted)
        return all(have == value if value else bool(have) for have, value in found)

    return [test]


def text(event: Event, name: str) -> str | None:
    """An attribute as filters compare it: booleans and integers as text, time in UTC without trailing zeros."""
    value = event.get(_ALIASES.get(name, name))
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if name == "time":
        return _canonical(str(value))
    return str(value).partition(";")[0].strip() if name == "datamediatype" else str(value)


def _canonical(time: str) -> str:
    """An RFC 3339 time as Go writes it (UTC, fraction without trailing zeros); text that is none stays as it is."""
    match = _TIME.fullmatch(time)
    if not match:
        return time
    date, clock, fraction, zone = match.groups()
    try:
        moment = datetime.fromisoformat(f"{date}T{clock}{'+00:00' if zone in 'Zz' else zone}")
        moment = moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return time
    fraction = (fraction or "").rstrip("0").rstrip(".")
    return moment.strftime("%Y-%m-%dT%H:%M:%S") + fraction + "Z"
