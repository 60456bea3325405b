"""Retries, backoff, Retry-After, TTL and dead letters as decisions: every row of the table."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from tables import load

from relight.base.errors import BadInput
from relight.decide import delivery
from relight.decide.delivery import Retry
from relight.wire.cloudevents import Event

CASES = load("filter_cases")
ROWS = CASES["delivery"]


def test_defaults_are_those_of_the_shipped_broker() -> None:
    assert Retry.of(ROWS["shipped_broker_default"]) == Retry() == Retry.of(None, None)


@pytest.mark.parametrize(("status", "want"), ROWS["retry_when"]["status"].items())
def test_retry_by_status(status: str, want: bool) -> None:
    assert delivery.should_retry(int(status)) is want


def test_no_answer_is_retried() -> None:
    assert ROWS["retry_when"]["no_response"]
    assert ROWS["retry_when"]["transport_error"]
    assert delivery.should_retry(None)


@pytest.mark.parametrize("row", ROWS["backoff"], ids=lambda row: f"{row['policy']} {row['delay']}")
def test_backoff(row: dict[str, Any]) -> None:
    spec = {"backoffPolicy": row["policy"], "backoffDelay": row["delay"]}
    if row.get("want") == "error":
        with pytest.raises(BadInput, match=r"spec\.delivery\.backoffDelay"):
            Retry.of(spec)
        return
    policy = Retry.of(spec)
    assert [delivery.backoff(policy, attempt) for attempt in range(1, 6)] == row["want_s"]


def test_the_first_retry_waits_one_delay_exponentially_and_nothing_linearly() -> None:
    assert delivery.backoff(Retry(), 0) == 0.2
    assert delivery.backoff(Retry(policy="linear"), 0) == 0
    assert delivery.backoff(Retry(), 10_000) == delivery.LONGEST_WAIT


NOW = 1_800_000_000.0  # Fri, 15 Jan 2027 08:00:00 GMT
HEADERS = {
    "present": ["30"],
    "seconds or HTTP date": ["30", "Fri, 15 Jan 2027 08:00:30 GMT"],
    "seconds": ["30"],
    "invalid": ["soon", "-5", "٣"],
}
LIMITS = {None: None, "large": "PT10M", "small": "PT5S"}


@pytest.mark.parametrize("row", ROWS["retry_after"], ids=lambda row: f"{row['max']} {row['status']} {row['header']}")
def test_retry_after(row: dict[str, Any]) -> None:
    policy = Retry.of({"retryAfterMax": LIMITS[row["max"]]})
    asked = {"normal backoff": 0.0, "max(header, backoff)": 30.0, "max(the cap, backoff)": 5.0}[row["want"]]
    for header in HEADERS[row["header"]]:
        for attempt in (0, 9):
            want = max(asked, delivery.backoff(policy, attempt))
            assert delivery.wait(policy, attempt, row["status"], header, NOW) == pytest.approx(want)


@pytest.mark.parametrize("row", CASES["broker_http"]["ttl"], ids=lambda row: str(row["value"]))
def test_ttl(row: dict[str, Any]) -> None:
    want = delivery.DEFAULT_TTL if row["want"] == "default set" else row["want"]
    assert delivery.next_ttl(row["value"]) == want


def test_a_trigger_wins_over_its_broker_field_by_field() -> None:
    policy = Retry.of({"backoffDelay": "PT1S"}, {"backoffDelay": "PT9S", "retry": 3, "timeout": "PT5S"})
    assert (policy.delay, policy.retries, policy.timeout) == (1.0, 3, 5.0)


def test_all_wrong_fields_are_named() -> None:
    with pytest.raises(BadInput) as caught:
        Retry.of({"retry": -1, "backoffDelay": "1s", "backoffPolicy": "random", "format": "xml", "timeout": "PT0S"})
    assert {problem.path.rpartition(".")[2] for problem in caught.value.problems} == {
        "retry",
        "backoffDelay",
        "backoffPolicy",
        "format",
        "timeout",
    }


def test_a_dead_letter_carries_a_bounded_reason() -> None:
    event = Event("1", "/s", "t", data=b"x")
    letter = delivery.dead_letter(event, "http://f/", 500, "boom é\nline2".encode() + b"." * 10_000)
    assert (letter.id, letter.data, letter.get("knativeerrorcode")) == ("1", b"x", 500)
    assert letter.get("knativeerrordest") == "http://f/"
    data = base64.b64decode(str(letter.get("knativeerrordata")))
    assert data.startswith("boom é\nline2".encode())
    assert len(data) == delivery.ERROR_BYTES


@pytest.mark.parametrize(("random01", "want"), [(0.0, 10.0), (0.5, 11.0), (1.0, 12.0)])
def test_jitter_only_ever_adds(random01: float, want: float) -> None:
    assert delivery.jittered(10.0, random01) == want
