"""A platform whose machine is declared: two GPUs that nobody has, which is all that counting them needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from relight.testing.platform import RunningPlatform, running_platform


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    declared = ("--resources", "nvidia.com/gpu=2,cpu=64")
    with running_platform(tmp_path_factory.mktemp("home"), arguments=declared) as platform:
        yield platform


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    """A platform that makes no control groups."""
    with running_platform(tmp_path_factory.mktemp("bounded"), environ={"RELIGHT_LIMITS": "rlimit"}) as platform:
        yield platform
