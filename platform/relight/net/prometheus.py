"""Asking a Prometheus: one expression, its values now."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from relight.base.errors import PlatformError

Fetch = Callable[[str, Mapping[str, str]], bytes]
"""GET of a URL with a query: the body. PlatformError: no answer, or none that helps."""


def instant(url: str, expression: str, fetch: Fetch) -> list[tuple[Mapping[str, str], float]]:
    """Labels and value of each series of a vector; NaN is left out. PlatformError: this is no Prometheus."""
    where = url.rstrip("/") + "/api/v1/query"
    body = fetch(where, {"query": expression})
    try:
        answer: Any = json.loads(body)
        found = [(one["metric"], float(one["value"][1])) for one in answer["data"]["result"]]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise PlatformError(f"{where} did not answer as Prometheus does: {body[:200]!r}") from error
    return [(labels, value) for labels, value in found if not math.isnan(value)]
