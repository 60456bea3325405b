"""What all tests share: clean environments."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the developer's own settings or kubeconfig."""
    for name in list(os.environ):
        if name.startswith(("RELIGHT_", "K_", "MILVUS_")) or name == "KUBECONFIG":
            monkeypatch.delenv(name)
