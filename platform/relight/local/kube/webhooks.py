"""Refusals and immutable fields as Knative's admission webhooks word them.

A fault is a message, the fields it is about, and sometimes details on a line of their own; faults that differ only in
the field are told together, and all are sorted, as ``apis.FieldError`` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from relight.local.kube.failures import Failure, bad_request


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with an object."""

    message: str
    paths: tuple[str, ...] = ()
    details: str = ""


def missing(*paths: str) -> Fault:
    return Fault("missing field(s)", paths)


def disallowed(*paths: str) -> Fault:
    return Fault("must not set the field(s)", paths)


def invalid(value: object, path: str) -> Fault:
    return Fault(f"invalid value: {value}", (path,))


def out_of_bounds(value: object, low: object, high: object, path: str) -> Fault:
    return Fault(f"expected {low} <= {value} <= {high}", (path,))


def needs_one_of(*paths: str) -> Fault:
    return Fault("expected at least one, got none", paths)


def render(faults: Iterable[Fault]) -> str:
    """One line per message; details follow on their own line."""
    grouped: dict[tuple[str, str], set[str]] = {}
    for fault in faults:
        grouped.setdefault((fault.message, fault.details), set()).update(fault.paths)
    lines = []
    for (message, details), paths in sorted(grouped.items()):
        lines.append(f"{message}: {', '.join(sorted(paths))}" + (f"\n{details}" if details else ""))
    return "\n".join(lines)


def denied(group: str, faults: Iterable[Fault], webhook: str = "validation") -> Failure:
    """The refusal of ``<webhook>.webhook.<group>``."""
    return bad_request(
        f'admission webhook "{webhook}.webhook.{group}" denied the request: validation failed: {render(faults)}'
    )


def cannot_decode(group: str, found: str, path: str, expected: str) -> Failure:
    """The refusal of a value of the wrong type, which the defaulting webhook meets first."""
    return bad_request(
        f'admission webhook "webhook.{group}" denied the request: mutation failed: cannot decode incoming new object: '
        f"json: cannot unmarshal {found} into field {path} of type {expected}"
    )


def changes(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, old, new) of every leaf that differs; None stands for absent."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            yield from changes(old.get(name), new.get(name), f"{path}.{name}" if path else name)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from changes(before, after, f"{path}[{index}]")
    elif old != new:
        yield path, old, new


def immutable(what: str, *paths: str, diff: Iterable[tuple[str, Any, Any]]) -> Fault:
    """Fields that may not change, with what was and what came."""
    lines = []
    for path, old, new in diff:
        lines.append(f"{{{path or what}}}:")
        lines += [f'\t-: "{old}"'] if old is not None else []
        lines += [f'\t+: "{new}"'] if new is not None else []
    return Fault("Immutable fields changed (-old +new)", paths, "\n".join(lines) + "\n")
