"""Conditions of an object's status, as Knative's reconcilers keep them.

A condition keeps its ``lastTransitionTime`` while its status stays the same. ``Ready`` sums up the others: False as
soon as one is False, Unknown while one is Unknown, True when all are True; it takes reason and message of the one that
decided. Conditions of severity Info (such as a Revision's ``Active``) do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["True", "False", "Unknown"]


@dataclass(frozen=True)
class Condition:
    """One condition: its type, and what is true of it."""

    type: str
    status: Status
    reason: str = ""
    message: str = ""
    info: bool = False
    """Severity Info: shown, but not part of Ready."""


def summary(conditions: Iterable[Condition], name: str = "Ready") -> Condition:
    """The happy condition over the others."""
    decisive = [condition for condition in conditions if not condition.info]
    for wanted in ("False", "Unknown"):
        for condition in decisive:
            if condition.status == wanted:
                return Condition(name, condition.status, condition.reason, condition.message)
    return Condition(name, "True")


def render(conditions: Iterable[Condition], before: Iterable[Mapping[str, Any]], now: str) -> list[dict[str, Any]]:
    """The list for ``status.conditions``, sorted by type. ``now`` is RFC 3339; ``before`` is the list as it was."""
    old = {str(condition.get("type")): condition for condition in before}
    rows = []
    for condition in sorted(conditions, key=lambda one: one.type):
        previous = old.get(condition.type)
        same = previous is not None and previous.get("status") == condition.status
        row: dict[str, Any] = {
            "lastTransitionTime": previous["lastTransitionTime"] if same and previous is not None else now,
            "status": condition.status,
            "type": condition.type,
        }
        if condition.reason:
            row["reason"] = condition.reason
        if condition.message:
            row["message"] = condition.message
        if condition.info:
            row["severity"] = "Info"
        rows.append(row)
    return rows


def find(obj: Mapping[str, Any] | None, name: str) -> Condition | None:
    """A condition of an object's status, or None."""
    for row in ((obj or {}).get("status") or {}).get("conditions") or ():
        if row.get("type") == name:
            return Condition(
                name,
                row.get("status", "Unknown"),
                row.get("reason", ""),
                row.get("message", ""),
                row.get("severity") == "Info",
            )
    return None


def is_true(obj: Mapping[str, Any] | None, name: str = "Ready") -> bool:
    condition = find(obj, name)
    return condition is not None and condition.status == "True"
