"""What is wrong with a request that has not the form of the Open Inference Protocol: every mistake, by field path.

The typed decoder stops at the first one. Only a request that it refused comes here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from relight.base.errors import BadInput, Problem

MOST = 20
"""Mistakes that one answer lists; a body of a million wrong tensors gets no answer of a million lines."""
LONGEST = 80
"""Characters of the caller's own text that a sentence repeats."""


def refusal(problems: Sequence[Problem]) -> BadInput:
    """One error for a non-empty list of problems, its length bounded."""
    told = [*problems[:MOST]]
    if len(problems) > MOST:
        told.append(Problem("", "and more mistakes that are not listed"))
    return BadInput.of(told)


def shown(value: object) -> str:
    """The caller's own words for a sentence, cut where they are long."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def shown_shape(shape: Sequence[int]) -> str:
    """A shape for a sentence, cut where it has many dimensions."""
    return str(list(shape)) if len(shape) <= 8 else f"{str(list(shape[:8]))[:-1]}, …] ({len(shape)} dimensions)"


def mistakes(body: Any) -> list[Problem]:
    """Every mistake in the form of a decoded request."""
    if not isinstance(body, dict):
        return [Problem("", f"expected a JSON object, got {_kind(body)}")]
    found = list(_wrong_parameters(body, ""))
    if not isinstance(body.get("id"), str | None):
        found.append(Problem("id", f"expected a string, got {_kind(body['id'])}"))
    if "inputs" not in body:
        found.append(Problem("inputs", "missing"))
    for field_name, check in (("inputs", _wrong_input), ("outputs", _wrong_output)):
        items = body.get(field_name, [])
        if not isinstance(items, list):
            found.append(Problem(field_name, f"expected an array, got {_kind(items)}"))
            continue
        for index, item in enumerate(items):
            if len(found) > MOST:
                return found
            path = f"{field_name}[{index}]"
            if isinstance(item, dict):
                found.extend(check(item, path))
            else:
                found.append(Problem(path, f"expected an object, got {_kind(item)}"))
    return found


def _wrong_input(item: dict[str, Any], path: str) -> Iterable[Problem]:
    for name in ("name", "datatype"):
        if not isinstance(item.get(name), str):
            yield Problem(f"{path}.{name}", f"expected a string, got {_kind(item.get(name))}")
    shape = item.get("shape")
    if not isinstance(shape, list):
        yield Problem(f"{path}.shape", f"expected an array of integers, got {_kind(shape)}")
    elif any(isinstance(size, bool) or not isinstance(size, int) for size in shape):
        yield Problem(f"{path}.shape", f"expected integers, got {shown(shape)}")
    yield from _wrong_parameters(item, f"{path}.")


def _wrong_output(item: dict[str, Any], path: str) -> Iterable[Problem]:
    if not isinstance(item.get("name"), str):
        yield Problem(f"{path}.name", f"expected a string, got {_kind(item.get('name'))}")
    yield from _wrong_parameters(item, f"{path}.")


def _wrong_parameters(item: dict[str, Any], prefix: str) -> Iterable[Problem]:
    parameters = item.get("parameters", {})
    if not isinstance(parameters, dict):
        yield Problem(f"{prefix}parameters", f"expected an object, got {_kind(parameters)}")
        return
    for name, value in parameters.items():
        if not isinstance(value, str | int | float):
            message = f"expected a string, a number or a boolean, got {_kind(value)}"
            yield Problem(f"{prefix}parameters.{name[:LONGEST]}", message)


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", int: "a number"}
    return "nothing" if value is None else names.get(type(value), "a number")
