"""What some tests need and not every developer has: skipped at home with a sentence, a failure where ``CI`` is set."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest


def need(module: str, extra: str) -> Any:
    """The module, or the end of the test (or of the file, at its top)."""
    if os.environ.get("CI"):
        return importlib.import_module(module)
    return pytest.importorskip(module, reason=f"{module} (relight[{extra}]) is not installed")
