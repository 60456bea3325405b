"""What a function's process reads from its environment, and every mistake in it."""

from __future__ import annotations

from typing import Any

import pytest

from relight.base.errors import BadInput
from relight.runtime.context import FunctionSettings

GOOD: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "nothing": ({}, {"memory_budget": 0, "repository_poll": 0.0, "load_wait": 60.0, "default_max_batch_size": 4}),
    "empty is nothing": (
        {"RELIGHT_MEMORY_BUDGET": "", "RELIGHT_LOAD_WAIT": ""},
        {"memory_budget": 0, "load_wait": 60.0},
    ),
    "bytes": ({"RELIGHT_MEMORY_BUDGET": "1000"}, {"memory_budget": 1000}),
    "a quantity": ({"RELIGHT_MEMORY_BUDGET": "1.5Gi"}, {"memory_budget": 3 * 2**29}),
    "seconds": (
        {"RELIGHT_REPOSITORY_POLL": "0.5", "RELIGHT_LOAD_WAIT": "2"},
        {"repository_poll": 0.5, "load_wait": 2.0},
    ),
    "a batch": ({"RELIGHT_DEFAULT_MAX_BATCH_SIZE": "16"}, {"default_max_batch_size": 16}),
}


@pytest.mark.parametrize(("environ", "want"), GOOD.values(), ids=GOOD.keys())
def test_settings(environ: dict[str, str], want: dict[str, Any]) -> None:
    settings = FunctionSettings.from_environ(environ)
    assert {name: getattr(settings, name) for name in want} == want


def test_all_mistakes_are_told_by_name() -> None:
    environ = {
        "RELIGHT_MEMORY_BUDGET": "much",
        "RELIGHT_REPOSITORY_POLL": "-1",
        "RELIGHT_LOAD_WAIT": "soon",
        "RELIGHT_DEFAULT_MAX_BATCH_SIZE": "0",
    }
    with pytest.raises(BadInput) as refused:
        FunctionSettings.from_environ(environ)
    assert sorted(problem.path for problem in refused.value.problems) == sorted(environ)
    with pytest.raises(BadInput, match="RELIGHT_MEMORY_BUDGET"):
        FunctionSettings.from_environ({"RELIGHT_MEMORY_BUDGET": "-1"})
    with pytest.raises(BadInput, match="RELIGHT_LOAD_WAIT"):
        FunctionSettings.from_environ({"RELIGHT_LOAD_WAIT": "nan"})
