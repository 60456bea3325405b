"""Weights without a program: their class is the function's own, and only the numbers come from the file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from relight.base.errors import BadInput, CorruptWeights, PlatformError

PACKAGE = "function"
"""The one package that a model's class is taken from: what a function's folder holds."""
CLASS, ARGUMENTS = "class", "class_arguments"


def build(torch: Any, path: Path, parameters: Mapping[str, str], device: str) -> Any:
    """The module that ``parameters`` names, with the weights of a safetensors file in it.

    ``class`` is ``module:Class`` within the package ``function``; ``class_arguments`` is a JSON object. CorruptWeights
    names the tensors that the file lacks or has too many.
    """
    kind = find_class(torch, parameters.get(CLASS), path)
    arguments = _arguments(parameters.get(ARGUMENTS))
    try:
        safetensors = import_module("safetensors.torch")
    except ModuleNotFoundError:
        raise PlatformError("safetensors is not installed here; install relight[torch]") from None
    # Without storage first: to draw random weights that are thrown away takes longer than to read the right ones.
    with torch.device("meta"):
        module = kind(**arguments)
    with reading(path):
        tensors = safetensors.load_file(str(path), device=device)
        missing, unexpected = module.load_state_dict(tensors, strict=False, assign=True)
    if missing or unexpected or _has_no_storage(module):
        # Tied weights are in a file once, and computed buffers in none: both need the module as it is made.
        module = kind(**arguments)
        with reading(path):
            missing, unexpected = safetensors.load_model(module, str(path), strict=False)
    if missing or unexpected:
        parts = [f"lacks {', '.join(sorted(missing))}"] if missing else []
        parts += [f"has {', '.join(sorted(unexpected))}, which the class does not"] if unexpected else []
        raise CorruptWeights(f"{path} does not fit {parameters[CLASS]}: it {' and '.join(parts)}")
    return module.to(device).eval()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """CorruptWeights for whatever PyTorch raises over a file: its errors have no common base."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise CorruptWeights(f"PyTorch cannot read {path}: {type(error).__name__}: {reason}") from error


def find_class(torch: Any, name: str | None, path: Path) -> Any:
    """A subclass of ``torch.nn.Module`` in the function's own code."""
    if not name:
        raise BadInput(
            f'{path.name} holds weights only: name their class by parameters {{ key: "{CLASS}" value '
            '{ string_value: "module:Class" } } in config.pbtxt, a class in the function\'s own code'
        )
    module_name, colon, attribute = name.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module_name.split("."), attribute)):
        raise BadInput(f"parameters.{CLASS}: expected module:Class, got {name!r}")
    if module_name.split(".")[0] != PACKAGE:
        module_name = f"{PACKAGE}.{module_name}"
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise BadInput(f"parameters.{CLASS}: there is no module {module_name} in the function's own code") from None
    kind = getattr(module, attribute, None)
    if not isinstance(kind, type) or not issubclass(kind, torch.nn.Module):
        raise BadInput(f"parameters.{CLASS}: {module_name} has no class {attribute} that is a torch.nn.Module")
    return kind


def _arguments(text: str | None) -> dict[str, Any]:
    if not text:
        return {}
    try:
        arguments = json.loads(text)
    except ValueError as error:
        raise BadInput(f"parameters.{ARGUMENTS}: expected a JSON object: {error}") from None
    if not isinstance(arguments, dict):
        raise BadInput(f"parameters.{ARGUMENTS}: expected a JSON object, got {text!r}")
    return arguments


def _has_no_storage(module: Any) -> bool:
    return any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers()))
