"""What all tests share: clean environments, and the longest files first where several processes take them."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the developer's own settings or kubeconfig."""
    for name in list(os.environ):
        if name.startswith(("RELIGHT_", "K_", "MILVUS_")) or name == "KUBECONFIG":
            monkeypatch.delenv(name)


#: Folders whose files take longest: started last, one process would still be at them when the others have nothing left.
LONG = ("scenarios", "cluster", "manifests", "golden", "parity", "backends")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order within a file stays as it is."""
    items.sort(key=lambda item: LONG.index(item.path.parent.name) if item.path.parent.name in LONG else len(LONG))
