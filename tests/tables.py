"""Conformance tables: facts from specifications and Knative's, KServe's and Triton's tests (``source`` in each)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def load(name: str) -> Any:
    """A table of ``tests/cases``, such as ``kpa_cases``."""
    return json.loads((ROOT / "tests" / "cases" / f"{name}.json").read_text())
