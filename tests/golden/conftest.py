"""The API server of ``kubekit``, and the seed of a failed replay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from golden.shuffling import SEED
from kubekit import api, raw, running

__all__ = ["api", "raw", "running"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed:
        report.sections.append(("replay", f"repeat this with GOLDEN_SEED={SEED}"))
    return report
