"""What the retrieval functions read from their environment: ValueError names the variable and what was expected."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def whole(environ: Mapping[str, str], name: str, default: int | None, low: int = 0) -> int | None:
    """A whole number of at least ``low``; the default where the variable is not set or empty."""
    value = environ.get(name)
    if not value:
        return default
    if not value.isdecimal() or int(value) < low:
        raise ValueError(f"{name}: expected a whole number from {low}, got {value!r}")
    return int(value)


def seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    """Seconds, 0 or more."""
    value = environ.get(name)
    try:
        found = float(value) if value else default
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise ValueError(f"{name}: expected seconds such as 3600, or 0, got {value!r}")
    return found


def one_of(environ: Mapping[str, str], name: str, known: Sequence[str], default: str) -> str:
    """One of some words."""
    value = environ.get(name) or default
    if value not in known:
        raise ValueError(f"{name}: expected {', '.join(known)}, got {value!r}")
    return value


def flag(environ: Mapping[str, str], name: str, default: bool = False) -> bool:
    """``true`` or ``false``, in any case."""
    value = environ.get(name)
    if value and value.lower() not in ("true", "false"):
        raise ValueError(f"{name}: expected true or false, got {value!r}")
    return value.lower() == "true" if value else default
