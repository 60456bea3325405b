"""Filters of Triggers: every row of the table, and what is refused with its field path."""

from __future__ import annotations

from typing import Any

import pytest
from tables import load

from relight.base.errors import BadInput
from relight.decide import filters
from relight.wire.cloudevents import Event

CASES = load("filter_cases")


def event_of(attributes: dict[str, Any]) -> Event:
    given = dict(attributes)
    assert given.pop("specversion") == "1.0"
    return Event(given.pop("id"), given.pop("source"), given.pop("type"), given)


@pytest.mark.parametrize("row", CASES["trigger_filters"], ids=lambda row: row["id"])
def test_trigger_filters(row: dict[str, Any]) -> None:
    assert filters.validate(row["filters"]) == []
    built = filters.compile(row["filters"])
    assert built.result(event_of(row["event"])) == row["want"]
    assert built.matches(event_of(row["event"])) == (row["want"] != "fail")


@pytest.mark.parametrize("row", CASES["legacy_attribute_filter"], ids=lambda row: str(row["attributes"]))
def test_legacy_attributes(row: dict[str, Any]) -> None:
    assert filters.validate_attributes(row["attributes"]) == []
    assert filters.compile(None, row["attributes"]).result(event_of(row["event"])) == row["want"]
    assert filters.compile([], row["attributes"]).result(event_of(row["event"])) == row["want"]


@pytest.mark.parametrize("row", CASES["validation"], ids=lambda row: str(row["filters"]))
def test_validation(row: dict[str, Any]) -> None:
    # The row whose ``ok`` is a sentence is a filter that Knative accepts and then skips: refused here.
    ok = row["ok"] is True
    problems = filters.validate(row["filters"])
    assert (problems == []) == ok
    if not ok:
        assert all(problem.path.startswith("spec.filters[0]") for problem in problems)
        with pytest.raises(BadInput):
            filters.compile(row["filters"])


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ([{"any": []}], "spec.filters[0].any"),
        ([{"all": [{"exact": {"type": "a"}}, {}]}], "spec.filters[0].all[1]"),
        ([{"prefix": {"type": ""}}], "spec.filters[0].prefix.type"),
        ([{"exact": {}}], "spec.filters[0].exact"),
        ([{"regex": {"type": ".*"}}], "spec.filters[0].regex"),
        ([{"not": [{"exact": {"type": "a"}}]}], "spec.filters[0].not"),
        ([{"exact": {"type": 7}}], "spec.filters[0].exact.type"),
        ({"exact": {"type": "a"}}, "spec.filters"),
        ([{"cesql": "type = "}], "spec.filters[0].cesql"),
        ([{"cesql": 7}], "spec.filters[0].cesql"),
        (["exact"], "spec.filters[0]"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_refusals_have_a_path(given: Any, path: str) -> None:
    assert [problem.path for problem in filters.validate(given)] == [path]


def test_a_bottomless_filter_is_refused() -> None:
    bottomless: dict[str, Any] = {"exact": {"type": "a"}}
    for _ in range(5000):
        bottomless = {"not": bottomless}
    assert "nested" in filters.validate([bottomless])[0].message


def test_filters_win_over_legacy_attributes() -> None:
    event = Event("1", "/s", "t.a")
    assert filters.compile([{"exact": {"type": "t.a"}}], {"type": "t.b"}).matches(event)


@pytest.mark.parametrize(
    ("name", "value", "event_value"),
    [
        ("time", "2020-03-21T12:34:56.78Z", "2020-03-21T13:34:56.780000000+01:00"),
        ("hops", "3", 3),
        ("schemaurl", "http://s", "http://s"),
    ],
)
def test_values_are_compared_as_text(name: str, value: str, event_value: Any) -> None:
    event = Event("1", "/s", "t", {"dataschema" if name == "schemaurl" else name: event_value})
    assert filters.compile([{"exact": {name: value}}]).matches(event)
    assert filters.compile(None, {name: value}).matches(event)
