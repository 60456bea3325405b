"""What is called, from each kind of source."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from relight.base.errors import PlatformError
from relight.warm.sources import FunctionSource, PrometheusSource, Reading, RouterSource, Tally

ROUTER = """
# TYPE relight_router_requests counter
relight_router_requests_total{namespace="a",revision="f-00001",code_class="2xx"} 5.0
relight_router_requests_total{namespace="a",revision="f-00001",code_class="hangup"} 1.0
# TYPE relight_router_held gauge
relight_router_held{namespace="a",revision="f-00001"} 2.0
# TYPE relight_router_in_flight gauge
relight_router_in_flight{namespace="a",revision="f-00001"} 1.0
# TYPE relight_cold_start_seconds histogram
relight_cold_start_seconds_bucket{revision="a/f-00001",phase="total",le="+Inf"} 2.0
relight_cold_start_seconds_count{revision="a/f-00001",phase="total"} 2.0
relight_cold_start_seconds_sum{revision="a/f-00001",phase="total"} 3.5
relight_cold_start_seconds_count{revision="a/f-00001",phase="load"} 2.0
relight_cold_start_seconds_sum{revision="a/f-00001",phase="load"} 3.0
"""


def test_local_modes_router() -> None:
    asked: list[str] = []

    def fetch(url: str, query: Mapping[str, str]) -> bytes:
        asked.append(url)
        return ROUTER.encode()

    found = RouterSource("http://127.0.0.1:1/", fetch).read()
    assert found == {("a", "f-00001"): Reading(6.0, 3.0, 3.5, 2.0, {"load": 3.0})}
    assert asked == ["http://127.0.0.1:1/metrics"]


def test_what_is_no_prometheus() -> None:
    with pytest.raises(PlatformError, match="did not answer as Prometheus does"):
        PrometheusSource("http://p", lambda url, query: b"<html>").read()


def test_a_counter_ends_with_its_replica_and_what_it_counted_does_not() -> None:
    tally, f = Tally(), ("a", "f")
    for replica, value, total in (("x", 5, 5), ("y", 2, 7), ("x", 6, 8), ("y", 1, 9), ("z", 0, 9), ("x", 6, 9)):
        tally.put(f, replica, value)
        assert tally.totals() == {f: total}
    for number in range(Tally.MOST):
        tally.put(("b", "g"), str(number), 1.0)
    assert tally.totals() == {f: 9, ("b", "g"): Tally.MOST}, "those that are no longer told apart are in the sum"


def test_the_functions_themselves_whose_counters_end_with_them() -> None:
    pages = {"http://1": 'relight_requests_total{code="200"} 5.0\nrelight_requests_in_flight 1.0\n', "http://2": ""}
    up = {"http://1": ("a", "f"), "http://2": ("a", "f")}

    def fetch(url: str, query: Mapping[str, str]) -> bytes:
        page = pages[url.removesuffix("/metrics")]
        if not page:
            raise PlatformError("nobody answers")
        return page.encode()

    source = FunctionSource(lambda: up, fetch)
    assert source.read() == {("a", "f"): Reading(5.0, 1.0)}
    pages["http://2"] = 'relight_requests_total{code="200"} 2.0\nrelight_load_seconds{phase="load"} 3.0\n'
    assert source.read() == {("a", "f"): Reading(7.0, 1.0, 3.0, 1.0, {"load": 3.0})}
    del up["http://1"]
    assert source.read()["a", "f"].requests == 7.0, "what it had counted stays counted"
    pages["http://2"] = 'relight_requests_total{code="200"} 1.0\n'
    assert source.read()["a", "f"].requests == 8.0, "the replica began anew"
    up.clear()
    assert source.read() == {("a", "f"): Reading(8.0, 0.0, 3.0, 1.0, {"load": 3.0})}
