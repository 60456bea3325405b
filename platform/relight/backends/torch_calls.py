"""How a module of PyTorch is called: which tensor is which argument, and which result which output."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relight.backends.base import Declared
from relight.base.errors import BadInput, Failed
from relight.wire.tensors import ANY, Array, TensorSpec

_BY_INDEX = re.compile(r".+__([0-9]+)")
_DATATYPES = {
    "bool": "BOOL",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
}


@dataclass(frozen=True)
class Call:
    """The inputs and outputs of a module, in the order of its arguments and results."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    keywords: int = 0
    """How many inputs, counted from the last, are passed by name; the others by place."""

    @classmethod
    def of_program(cls, torch: Any, program: Any, declared: Declared) -> Call:
        """As an exported program's signature has it; declared outputs give names to results that have none."""
        results = next(node for node in program.graph.nodes if node.op == "output").args[0]
        given = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
        found = {node.name: node.meta.get("val") for node in results if hasattr(node, "meta")}
        asked, wanted = list(program.graph_signature.user_inputs), list(program.graph_signature.user_outputs)
        positional, keyword = program.call_spec.in_spec.children()
        out = program.call_spec.out_spec
        flat = all(spec.is_leaf() for spec in (*positional.children(), *keyword.children(), *out.children()))
        tensors = all(
            isinstance(values.get(name), torch.Tensor)
            for values, names in ((given, asked), (found, wanted))
            for name in names
        )
        if not flat or not tensors:
            raise BadInput("an input or output of the exported program is not a tensor; only plain tensors are served")
        if out.type is dict:
            names = [str(key) for key in out.context]
        elif len(declared.outputs) == len(wanted):
            names = [spec.name for spec in _in_order(declared.outputs, "output")]
        else:
            names = [f"OUTPUT__{at}" for at in range(len(wanted))]
        return cls(
            tuple(_spec(name, given[name]) for name in asked),
            tuple(_spec(name, found[key]) for name, key in zip(names, wanted, strict=True)),
            keyword.num_children,
        )

    def invoke(self, module: Any, arguments: Mapping[str, Any]) -> Any:
        """Call the module with the tensors of one request."""
        names = [spec.name for spec in self.inputs]
        split = len(names) - self.keywords
        return module(*(arguments[name] for name in names[:split]), **{name: arguments[name] for name in names[split:]})

    def collect(self, result: Any, label: str) -> dict[str, Any]:
        """Results by the names of the outputs. Failed says what came instead."""
        if isinstance(result, Mapping):
            found = {spec.name: result[spec.name] for spec in self.outputs if spec.name in result}
        else:
            results = result if isinstance(result, tuple | list) else [result]
            found = dict(zip((spec.name for spec in self.outputs), results, strict=False))
        for spec in self.outputs:
            have = _DATATYPES.get(str(found[spec.name].dtype).removeprefix("torch.")) if spec.name in found else None
            if have != spec.datatype:
                was = f"a tensor of {have}" if have else "not among the results"
                raise Failed(f"{label}: output {spec.name!r} is {was}; {spec.datatype} was declared")
        return found


def described(declared: Declared, label: str, arguments: Sequence[str]) -> Call:
    """As config.pbtxt declares it: by the arguments' names where they are those, else by ``NAME__0``, else in order."""
    if not declared.inputs or not declared.outputs:
        raise BadInput(f"{label} does not say what goes in and out: declare input and output in config.pbtxt")
    names = {spec.name for spec in declared.inputs}
    if names <= set(arguments):
        ordered = sorted(declared.inputs, key=lambda spec: list(arguments).index(spec.name))
        return Call(tuple(ordered), _in_order(declared.outputs, "output"), keywords=len(ordered))
    return Call(_in_order(declared.inputs, "input"), _in_order(declared.outputs, "output"))


def from_signature(forward: Callable[..., Any]) -> list[str]:
    """The names of a method's arguments."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [name for name, parameter in inspect.signature(forward).parameters.items() if parameter.kind in kinds]


def to_tensor(torch: Any, array: Array, datatype: str, device: str) -> Any:
    """A tensor over the array's memory where that can be; a copy of what is read only, or of another order."""
    if not array.flags.writeable or not array.flags.c_contiguous:
        array = np.array(array, order="C")
    tensor = torch.from_numpy(array)
    if datatype == "BF16":
        tensor = tensor.to(torch.bfloat16)
    return tensor.to(device)


def from_tensor(torch: Any, tensor: Any) -> Array:
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    array: Array = tensor.contiguous().numpy()
    return array


def _in_order(specs: Sequence[TensorSpec], what: str) -> tuple[TensorSpec, ...]:
    """By the number after two underscores where all have one; it has to count from 0."""
    places = [match and int(match[1]) for match in (_BY_INDEX.fullmatch(spec.name) for spec in specs)]
    if None in places:
        return tuple(specs)
    by_place = dict(zip(places, specs, strict=True))
    if sorted(by_place) != list(range(len(specs))):  # type: ignore[type-var]
        raise BadInput(f"{what}: {', '.join(spec.name for spec in specs)} do not count from __0 without a gap")
    return tuple(by_place[at] for at in range(len(specs)))


def _spec(name: str, value: Any) -> TensorSpec:
    datatype = _DATATYPES.get(str(value.dtype).removeprefix("torch."))
    if datatype is None:
        raise BadInput(f"{name!r} is of {value.dtype}, which the Open Inference Protocol does not have")
    return TensorSpec(name, datatype, [size if isinstance(size, int) else ANY for size in value.shape])
