"""Whether relight made an object: what it did not make, it does not delete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MANAGER = "relight"
"""The field manager under which everything is applied here."""


def is_ours(value: Mapping[str, Any]) -> bool:
    """Whether relight has applied this object.

    A patch of relight's on somebody else's object (an Update, such as min-scale on a revision) does not make it ours.
    An object that was applied with nothing but its name, such as a Broker, has no field that anybody owns.
    """
    entries = value["metadata"].get("managedFields") or ()
    applied = any(entry.get("manager") == MANAGER and entry.get("operation") == "Apply" for entry in entries)
    return applied or set(managers(value)) <= {MANAGER}


def managers(value: Mapping[str, Any]) -> list[str]:
    """Who has written to an object, besides controllers that only write its status."""
    entries = value["metadata"].get("managedFields") or ()
    return sorted({str(entry.get("manager")) for entry in entries if not entry.get("subresource")})
