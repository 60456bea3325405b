"""``config.pbtxt``: protobuf's text format by Triton's published schema, to the values of ``modelconfig``.

The schema is the one that the ``tritonclient`` wheel carries, as one generated module. It is loaded by itself, from its
file: the package around it would import gRPC, which takes half a second and must not be there before a fork.

A field that is not acted on here is named in a warning. What would make answers wrong if it were left out (ensembles,
sequences, decoupled answers) is a mistake instead.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from relight.base.errors import BadInput, PlatformError, Problem
from relight.wire import modelconfig
from relight.wire.modelconfig import (
    ConfigTensor,
    DynamicBatching,
    InstanceGroup,
    ModelConfig,
    QueuePolicy,
    VersionPolicy,
    Warmup,
    WarmupInput,
)

FILE = "config.pbtxt"
PARAMETERS = frozenset({"class", "class_arguments", "intra_op_thread_count"})
"""Keys of ``parameters`` that are acted on: PyTorch's class of some weights and what it is made with, and the threads
of one inference."""

_MODULE = "tritonclient.grpc.model_config_pb2"
_ALL: Any = None
_TENSOR = {"name": _ALL, "data_type": _ALL, "dims": _ALL, "reshape": _ALL}
_ACTED_ON: dict[str, Any] = {
    "name": _ALL,
    "platform": _ALL,
    "backend": _ALL,
    "default_model_filename": _ALL,
    "max_batch_size": _ALL,
    "input": _TENSOR | {"optional": _ALL},
    "output": _TENSOR,
    "instance_group": {"name": _ALL, "kind": _ALL, "count": _ALL, "gpus": _ALL},
    "dynamic_batching": _ALL,
    "version_policy": _ALL,
    "model_warmup": _ALL,
    "response_cache": _ALL,
    "parameters": _ALL,
    "optimization": {"execution_accelerators": {"gpu_execution_accelerator": {"name": _ALL}}},
}
"""Fields that are acted on; ``_ALL``: with all that is below them."""
_REFUSED = {
    "ensemble_scheduling": "ensembles are not served; write a step that calls its models",
    "sequence_batching": "sequences with state are not served",
}


class Decoded(NamedTuple):
    """A configuration, and a sentence for each of its fields that is not acted on."""

    config: ModelConfig
    warnings: tuple[str, ...]


def decode(text: bytes, name: str) -> Decoded:
    """Read the ``config.pbtxt`` of the model ``name``. BadInput names every mistake: by line or by field path."""
    schema, text_format = _schema(), _protobuf("google.protobuf.text_format")
    try:
        message = text_format.Parse(text.decode(), schema.ModelConfig())
    except UnicodeDecodeError as error:
        raise BadInput(f"{FILE} of model {name!r} is not UTF-8: {error.reason} at byte {error.start}") from None
    except text_format.ParseError as error:
        raise BadInput(f"{FILE} of model {name!r}, {_where(error)}") from None
    return _decoded(message, name)


def from_json(text: str, name: str) -> bytes:
    """A ``config.pbtxt`` from JSON, as the load endpoint's parameter ``config`` has it. BadInput as ``decode``."""
    schema, json_format = _schema(), _protobuf("google.protobuf.json_format")
    try:
        message = json_format.Parse(text, schema.ModelConfig())
    except json_format.ParseError as error:
        raise BadInput(f"the configuration given for model {name!r}: {error}", param="parameters.config") from None
    written: str = _protobuf("google.protobuf.text_format").MessageToString(message)
    decode(written.encode(), name)
    return written.encode()


def to_message(config: dict[str, Any]) -> bytes:
    """The message of the published schema, serialized, from what ``modelconfig.to_json`` makes."""
    message = _protobuf("google.protobuf.json_format").ParseDict(config, _schema().ModelConfig())
    serialized: bytes = message.SerializeToString()
    return serialized


def _decoded(message: Any, name: str) -> Decoded:
    config = _config(message)
    problems = list(_refused(message)) + modelconfig.checked(config)
    if config.name not in ("", name):
        problems.insert(0, Problem("name", f"{config.name!r} is not the name of the model's folder, {name!r}"))
    for index, (warmup, read) in enumerate(zip(message.model_warmup, config.warmups, strict=True)):
        problems += _undecided(f"model_warmup[{index}]", warmup, read)
    if problems:
        message = f"{FILE} of model {name!r}: {'; '.join(map(str, problems))}"
        raise BadInput(message, param=problems[0].path, problems=problems)
    warnings = tuple(f"{path} is not acted on" for path in _ignored(message, _ACTED_ON, ""))
    return Decoded(config, warnings)


def _undecided(path: str, message: Any, warmup: Warmup) -> Iterator[Problem]:
    for key in warmup.inputs:
        if message.inputs[key].WhichOneof("input_data_type") is None:
            yield Problem(f"{path}.inputs[{key}]", "expected zero_data, random_data or input_data_file")


def _refused(message: Any) -> Iterator[Problem]:
    for field, reason in _REFUSED.items():
        if message.HasField(field):
            yield Problem(field, reason)
    if message.platform == "ensemble" and not message.HasField("ensemble_scheduling"):
        yield Problem("platform", _REFUSED["ensemble_scheduling"])
    if message.model_transaction_policy.decoupled:
        yield Problem("model_transaction_policy.decoupled", "models with several answers to a request are not served")


def _ignored(message: Any, acted_on: dict[str, Any], prefix: str) -> Iterator[str]:
    """Paths of the fields that are set and not acted on, each once, the outermost of them."""
    seen: set[str] = set()
    for descriptor, value in message.ListFields():
        path = f"{prefix}{descriptor.name}"
        if descriptor.name not in acted_on:
            yield path
        elif acted_on[descriptor.name] is not _ALL:
            for item in value if descriptor.is_repeated else [value]:
                for below in _ignored(item, acted_on[descriptor.name], f"{path}."):
                    if below not in seen:
                        yield below
                    seen.add(below)
        elif path == "parameters":
            yield from (f"parameters[{key!r}]" for key in sorted(value) if key not in PARAMETERS)


def _config(message: Any) -> ModelConfig:
    return ModelConfig(
        name=message.name,
        platform=message.platform,
        backend=message.backend,
        filename=message.default_model_filename,
        max_batch_size=message.max_batch_size,
        inputs=tuple(_tensor(tensor, tensor.optional) for tensor in message.input),
        outputs=tuple(_tensor(tensor, False) for tensor in message.output),
        instance_groups=tuple(
            InstanceGroup(g.name, _enum(g, "kind").removeprefix("kind_"), g.count, tuple(g.gpus))  # type: ignore[arg-type]
            for g in message.instance_group
        ),
        dynamic_batching=_batching(message.dynamic_batching) if message.HasField("dynamic_batching") else None,
        version_policy=_policy(message.version_policy),
        warmups=tuple(_warmup(warmup) for warmup in message.model_warmup),
        response_cache=message.response_cache.enable,
        accelerators=tuple(a.name for a in message.optimization.execution_accelerators.gpu_execution_accelerator),
        parameters={key: value.string_value for key, value in message.parameters.items()},
    )


def _tensor(message: Any, optional: bool) -> ConfigTensor:
    reshape = tuple(message.reshape.shape) if message.HasField("reshape") else None
    return ConfigTensor(message.name, _datatype(message), tuple(message.dims), reshape, optional)


def _datatype(message: Any) -> str:
    """The protocol's name of a datatype; empty where none is given."""
    name = _enum(message, "data_type").removeprefix("type_").upper()
    return {"INVALID": "", "STRING": "BYTES"}.get(name, name)


def _enum(message: Any, field: str) -> str:
    descriptor = message.DESCRIPTOR.fields_by_name[field].enum_type
    name: str = descriptor.values_by_number[getattr(message, field)].name
    return name.lower()


def _policy(message: Any) -> VersionPolicy:
    kind = message.WhichOneof("policy_choice")
    if kind == "specific":
        return VersionPolicy("specific", versions=tuple(message.specific.versions))
    if kind == "all":
        return VersionPolicy("all")
    return VersionPolicy(count=message.latest.num_versions if kind == "latest" else 1)


def _batching(message: Any) -> DynamicBatching:
    return DynamicBatching(
        preferred_batch_size=tuple(message.preferred_batch_size),
        max_queue_delay=message.max_queue_delay_microseconds / 1e6,
        preserve_ordering=message.preserve_ordering,
        priority_levels=message.priority_levels,
        default_priority_level=message.default_priority_level,
        default_queue_policy=_queue(message.default_queue_policy),
        priority_queue_policy={key: _queue(value) for key, value in message.priority_queue_policy.items()},
    )


def _queue(message: Any) -> QueuePolicy:
    return QueuePolicy(
        timeout_action="delay" if _enum(message, "timeout_action") == "delay" else "reject",
        default_timeout=message.default_timeout_microseconds / 1e6,
        allow_timeout_override=message.allow_timeout_override,
        max_size=message.max_queue_size,
    )


def _warmup(message: Any) -> Warmup:
    inputs = {}
    for name in sorted(message.inputs):
        given = message.inputs[name]
        kind = given.WhichOneof("input_data_type")
        file = given.input_data_file if kind == "input_data_file" else ""
        data = {"random_data": "random", "input_data_file": "file"}.get(kind or "", "zero")
        inputs[name] = WarmupInput(_datatype(given), tuple(given.dims), data, file)  # type: ignore[arg-type]
    return Warmup(message.name, message.batch_size, inputs, message.count or 1)


def _where(error: Any) -> str:
    """``line 3: ...`` of what protobuf says as ``3:1 : ...``."""
    reason = re.sub(r"^\d+:\d+ : ", "", str(error))
    reason = re.sub(r'^Message type "[\w.]+\.(\w+)" has no field named "(\w+)"\.?$', r"\1 has no field \2", reason)
    return f"line {error.GetLine()}: {reason}" if error.GetLine() else reason


def _protobuf(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise _missing("protobuf") from None


@cache
def _schema() -> Any:
    """The generated module; the package's own if somebody imported it already."""
    if _MODULE in sys.modules:
        return sys.modules[_MODULE]
    _protobuf("google.protobuf")
    package = importlib.util.find_spec("tritonclient")
    for folder in (package.submodule_search_locations or []) if package else []:
        path = Path(folder, "grpc", "model_config_pb2.py")
        spec = importlib.util.spec_from_file_location("relight_model_config_pb2", path)
        if path.is_file() and spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise _missing("tritonclient")


def _missing(name: str) -> PlatformError:
    return PlatformError(
        f"{FILE} is read with the library {name}, which is not installed here: install relight[triton]"
    )
