"""CloudEvents SQL: every row of the table, and where expressions are refused."""

from __future__ import annotations

from typing import Any

import pytest
from tables import load

from relight.base.errors import BadInput
from relight.decide import cesql
from relight.wire.cloudevents import Event

EVENT = Event("1", "/s", "t", {"hops": 20, "tier": "hot", "urgent": True})


@pytest.mark.parametrize("row", load("filter_cases")["cesql"], ids=lambda row: row["expr"])
def test_rows(row: dict[str, Any]) -> None:
    if row["error"] == "parse":
        with pytest.raises(BadInput):
            cesql.compile(row["expr"])
        return
    value, flaw = cesql.compile(row["expr"]).evaluate(EVENT)
    assert (value, type(value), flaw) == (row["want"], type(row["want"]), row["error"])


@pytest.mark.parametrize(
    ("expression", "want"),
    [
        ("hops = 20 AND tier = 'hot'", True),
        ("NOT hops = 20", False),  # NOT binds tighter than =: (NOT hops) = 20, and that is false = true
        ("NOT (hops = 19)", True),
        ("1 + 2 * 3 = 7", True),
        ("10 - 4 - 3 = 3", True),
        ("-5 / 2 = -2", True),
        ("-5 % 2 = -1", True),
        ("tier IN ('cold', 'hot') XOR FALSE", True),
        ("tier NOT IN ('cold')", True),
        ("tier not like 'c%'", True),
        ("FALSE AND FALSE OR TRUE", False),  # all equal, grouped to the right: FALSE AND (FALSE OR TRUE)
        ("urgent", True),
        ("tier", False),
        ("missing", False),
        ("'it\\'s' = \"it's\"", True),
        ("concat(tier, '-', hops) = 'hot-20'", True),
        ("RIGHT(tier, 0) = ''", True),
        ("SUBSTRING(tier, -2) = 'ot'", True),
        ("IS_INT('x')", False),
        ("INT('x') = 0", False),
        ("2147483647 + 1 > 0", False),
        ("-2147483648 < 0", True),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_matches(expression: str, want: bool) -> None:
    assert cesql.compile(expression).matches(EVENT) is want


@pytest.mark.parametrize(
    ("expression", "where"),
    [
        ("type = ", "expected a value at character 8, got the end"),
        ("this is wrong", "character 6, got 'is'"),
        ("type = 'open", 'unexpected "\'" at character 8'),
        ("tier LIKE hot", "expected a pattern in quotes at character 11"),
        ("hops IN ()", "expected a value at character 10"),
        ("EXISTS 7", "an attribute's name at character 8"),
        ("(hops", "expected ')' at character 6"),
        ("hops NOT = 1", "LIKE or IN"),
        ("99999999999", "does not fit"),
        ("(" * 1000 + "1" + ")" * 1000, "nested"),
        ("NOT " * 1000 + "TRUE", "nested"),
        ("x" * 5000, "5000 characters"),
    ],
    ids=lambda value: value[:30],
)
def test_refused_with_the_place(expression: str, where: str) -> None:
    with pytest.raises(BadInput) as caught:
        cesql.compile(expression)
    assert where in caught.value.message


def test_like_does_not_backtrack() -> None:
    event = EVENT.replace(subject="a" * 5000)
    assert not cesql.compile("subject LIKE '%a%a%a%a%a%a%a%a%a%b'").matches(event)
