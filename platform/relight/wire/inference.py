"""A request for inference, whichever way it is written: its values, and what must fit the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from relight.base.errors import Problem
from relight.wire import tensors
from relight.wire.classification import classify
from relight.wire.tensors import Array, TensorSpec
from relight.wire.v2mistakes import MOST, shown, shown_shape

CLASSIFICATION = "classification"
Parameter = str | int | float | bool


class Wanted(msgspec.Struct, frozen=True):
    """One output that the request asks for, and in which form."""

    name: str
    binary: bool
    classes: int = 0
    """Where not 0: not the values, but this many of the largest, as text (``classification``)."""


class InferRequest(msgspec.Struct, frozen=True, eq=False):
    """A request whose tensors fit the model. ``outputs`` empty: all of them, in ``binary`` form or not."""

    inputs: dict[str, Array]
    id: str | None = None
    parameters: Mapping[str, Parameter] = {}
    outputs: tuple[Wanted, ...] = ()
    binary: bool = False


def fit(
    name: str,
    datatype: str,
    shape: Sequence[int],
    known: Mapping[str, TensorSpec],
    seen: set[str],
    path: str,
    problems: list[Problem],
) -> TensorSpec | None:
    """The specification of an input that fits it, as far as can be said before its data is looked at."""
    before = len(problems)
    if name in seen:
        problems.append(Problem(f"{path}.name", f"there are two inputs named {shown(name)}"))
        return None
    seen.add(name)
    spec = known.get(name)
    if spec is None:
        names = ", ".join(map(repr, known)) or "no inputs"
        problems.append(Problem(f"{path}.name", f"the model has no input {shown(name)}; it has {names}"))
        return None
    if datatype not in tensors.DATATYPES:
        problems.append(Problem(f"{path}.datatype", f"{shown(datatype)} is not one of {tensors.expected()}"))
    elif datatype != spec.datatype:
        problems.append(Problem(f"{path}.datatype", f"input {name!r} is {spec.datatype}, got {datatype}"))
    if any(size < 0 for size in shape):
        problems.append(Problem(f"{path}.shape", f"{shown_shape(shape)} has a negative dimension"))
    elif not spec.accepts(shape):
        message = f"input {name!r} takes {list(spec.shape)}, got {shown_shape(shape)}"
        problems.append(Problem(f"{path}.shape", message))
    return spec if len(problems) == before else None


def not_missing(known: Mapping[str, TensorSpec], seen: set[str], problems: list[Problem]) -> None:
    """Note the inputs of the model that the request must have, and has not."""
    missing = [name for name, spec in known.items() if name not in seen and not spec.optional]
    if missing:
        problems.append(Problem("inputs", f"missing {', '.join(map(repr, missing))}"))


def pick(
    asked: Iterable[tuple[str, Mapping[str, Parameter]]],
    specs: Sequence[TensorSpec],
    binary: bool,
    problems: list[Problem],
) -> tuple[Wanted, ...]:
    """The outputs that a request asks for by name; ``binary`` is the form of those that do not say."""
    known = {spec.name: spec for spec in specs}
    wanted: dict[str, Wanted] = {}
    for index, (name, parameters) in enumerate(asked):
        path = f"outputs[{index}]"
        if len(problems) > MOST:
            break
        if name not in known:
            names = ", ".join(map(repr, known))
            problems.append(Problem(f"{path}.name", f"the model has no output {shown(name)}; it has {names}"))
            continue
        if name in wanted:
            problems.append(Problem(f"{path}.name", f"{name!r} is asked for twice"))
        classes = parameters.get(CLASSIFICATION, 0)
        if isinstance(classes, bool) or not isinstance(classes, int) or classes < 0:
            message = f"expected how many classes, got {shown(classes)}"
            problems.append(Problem(f"{path}.parameters.{CLASSIFICATION}", message))
            classes = 0
        elif classes and known[name].datatype == "BYTES":
            message = f"the output {name!r} is BYTES; only numbers can be ranked"
            problems.append(Problem(f"{path}.parameters.{CLASSIFICATION}", message))
        wanted[name] = Wanted(name, parameters.get("binary_data", binary) is True, classes)
    return tuple(wanted.values())


def answered(
    request: InferRequest, outputs: Mapping[str, Array], specs: Sequence[TensorSpec], batched: bool
) -> list[tuple[Wanted, str, Array]]:
    """What goes into an answer, in its order: each output's form, datatype and values."""
    if not request.outputs:
        return [(Wanted(spec.name, request.binary), spec.datatype, outputs[spec.name]) for spec in specs]
    datatypes = {spec.name: spec.datatype for spec in specs}
    return [
        (one, "BYTES", classify(outputs[one.name], one.classes, batched))
        if one.classes
        else (one, datatypes[one.name], outputs[one.name])
        for one in request.outputs
    ]
