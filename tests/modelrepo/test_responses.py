"""Answers that are kept: equal requests get them, others do not, and they are bounded."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from modelrepo.conftest import Door
from modelrepo.tiny import put, scaling

from relight.runtime.batcher import Job
from relight.runtime.responses import Responses, key_of

X = np.array([[1, 2]], np.float32)
BASE = Job({"x": X}, {"temperature": 0.5})
DIFFERENT: dict[str, Job] = {
    "a value": Job({"x": X + 1}, {"temperature": 0.5}),
    "a name": Job({"y": X}, {"temperature": 0.5}),
    "a shape": Job({"x": X.reshape(2, 1)}, {"temperature": 0.5}),
    "a type": Job({"x": X.view(np.int32)}, {"temperature": 0.5}),
    "a parameter": Job({"x": X}, {"temperature": 0.6}),
    "a text for a number": Job({"x": X}, {"temperature": "0.5"}),
    "no parameter": Job({"x": X}),
}


@pytest.mark.parametrize("job", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_requests_that_differ_have_keys_that_differ(job: Job) -> None:
    assert key_of(job) != key_of(BASE)
    assert key_of(BASE) == key_of(Job({"x": X.copy()}, {"temperature": 0.5}))


def texts(*items: bytes) -> Any:
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


def test_texts_do_not_run_into_each_other() -> None:
    assert key_of(Job({"x": texts(b"ab", b"c")})) != key_of(Job({"x": texts(b"a", b"bc")}))


def test_the_least_recently_used_goes() -> None:
    kept = Responses(limit=24)
    for name in (b"a", b"b", b"c"):
        kept.put(name, {"y": np.zeros(2, np.float32)})
    assert kept.get(b"a") is not None
    kept.put(b"d", {"y": np.zeros(2, np.float32)})
    assert [name for name in (b"a", b"b", b"c", b"d") if kept.get(name) is not None] == [b"a", b"c", b"d"]
    kept.put(b"e", {"y": np.zeros(100, np.float32)})
    assert kept.get(b"e") is None, "larger than all of it"
    assert (kept.hits, kept.misses) == (4, 2)


def test_what_is_kept_is_a_copy() -> None:
    kept, batch = Responses(), np.zeros((8, 2), np.float32)
    kept.put(b"a", {"y": batch[:1]})
    batch[:] = 1
    (array,) = (kept.get(b"a") or {}).values()
    assert (array.tolist(), array.base, array.flags.writeable) == ([[0, 0]], None, False)


def test_equal_requests_are_answered_from_what_is_kept(
    repository: Path, door: Callable[..., AbstractContextManager[Door]]
) -> None:
    put(repository, "m", 1, scaling(2), "response_cache { enable: true }")
    put(repository, "n", 1, scaling(2))
    with door() as open_door:
        for value in (1, 1, 3, 1):
            assert open_door.infer("m", value=value) == (200, (2.0 * value, "1"))
            assert open_door.infer("n", value=value) == (200, (2.0 * value, "1"))
        stats = {stat["name"]: stat for stat in open_door.ask("GET", "/v2/models/stats")[1]["model_stats"]}
        assert {name: stat["execution_count"] for name, stat in stats.items()} == {"m": 2, "n": 4}
        assert {name: stat["inference_count"] for name, stat in stats.items()} == {"m": 4, "n": 4}
        counted = {name: part["count"] for name, part in stats["m"]["inference_stats"].items()}
        assert (counted["success"], counted["cache_hit"], counted["cache_miss"]) == (4, 2, 2)
        assert stats["n"]["inference_stats"]["cache_miss"] == {"count": 0, "ns": 0}
        assert open_door.metric('relight_model_cache_requests_total{model="m",outcome="hit"}') == 2
