"""What a model's ``config.pbtxt`` says, as frozen values: Triton's ModelConfig as far as it is acted on here.

``dims`` leave the batch out where ``max_batch_size`` is above 0: a tensor's whole shape is then ``[-1, *dims]``. What a
configuration does not say is completed from the model's file by Triton's rule: if all inputs and outputs of the file
have a variable first dimension, that is the batch.

The values are structs and no dataclasses: those take a millisecond each to be made, at every start of a process.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from relight.base.errors import Problem
from relight.wire.tensors import ANY, TensorSpec

DEFAULT_MAX_BATCH_SIZE = 4
"""Rows of a batch for a model that can batch and has no configuration: Triton's ``default-max-batch-size``."""

InstanceKind = Literal["auto", "gpu", "cpu", "model"]


class ConfigTensor(msgspec.Struct, frozen=True):
    """An input or output as callers see it; ``reshape``, where given, is its shape as the model's file has it."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    optional: bool = False

    def spec(self, batched: bool) -> TensorSpec:
        """As callers see it, the batch included."""
        return TensorSpec(self.name, self.datatype, _whole(self.dims, batched), optional=self.optional)

    def native(self, batched: bool) -> tuple[int, ...]:
        """The shape that the file must have, the batch included."""
        return _whole(self.dims if self.reshape is None else self.reshape, batched)


class InstanceGroup(msgspec.Struct, frozen=True):
    """Copies of the model that work at the same time. ``count`` 0: as many as the backend finds right."""

    name: str = ""
    kind: InstanceKind = "auto"
    count: int = 0
    gpus: tuple[int, ...] = ()


class QueuePolicy(msgspec.Struct, frozen=True):
    """How long requests may wait. Times are in seconds; 0 is no timeout, ``max_size`` 0 no bound of its own."""

    timeout_action: Literal["reject", "delay"] = "reject"
    default_timeout: float = 0.0
    allow_timeout_override: bool = False
    max_size: int = 0


class DynamicBatching(msgspec.Struct, frozen=True):
    """How requests are put together. ``max_queue_delay`` is in seconds; ``priority_levels`` 0: there are none."""

    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay: float = 0.0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy = QueuePolicy()
    priority_queue_policy: Mapping[int, QueuePolicy] = msgspec.field(default_factory=dict)


class VersionPolicy(msgspec.Struct, frozen=True):
    """Which of the versions in the repository are served."""

    kind: Literal["latest", "all", "specific"] = "latest"
    count: int = 1
    versions: tuple[int, ...] = ()

    def pick(self, there: Iterable[int]) -> list[int]:
        """The versions to serve, in order."""
        ordered = sorted(there)
        if self.kind == "all":
            return ordered
        if self.kind == "specific":
            return [number for number in ordered if number in self.versions]
        return ordered[-self.count :]

    def __str__(self) -> str:
        if self.kind == "specific":
            return f"specific versions {', '.join(map(str, self.versions))}"
        return "all versions" if self.kind == "all" else f"the latest {self.count}"


class WarmupInput(msgspec.Struct, frozen=True):
    """One input of a warm-up. ``file``: a file's name in the model's folder ``warmup``, for data "file"."""

    datatype: str
    dims: tuple[int, ...]
    data: Literal["zero", "random", "file"]
    file: str = ""


class Warmup(msgspec.Struct, frozen=True):
    """A request that is computed ``count`` times before a model is ready."""

    name: str
    batch_size: int
    inputs: Mapping[str, WarmupInput]
    count: int = 1


class ModelConfig(msgspec.Struct, frozen=True):
    """All that is acted on. Empty ``inputs`` or ``outputs``: the file says what there is."""

    name: str = ""
    platform: str = ""
    backend: str = ""
    filename: str = ""
    max_batch_size: int = 0
    inputs: tuple[ConfigTensor, ...] = ()
    outputs: tuple[ConfigTensor, ...] = ()
    instance_groups: tuple[InstanceGroup, ...] = ()
    dynamic_batching: DynamicBatching | None = None
    version_policy: VersionPolicy = VersionPolicy()
    warmups: tuple[Warmup, ...] = ()
    response_cache: bool = False
    accelerators: tuple[str, ...] = ()
    """Names under ``optimization.execution_accelerators.gpu_execution_accelerator``."""
    parameters: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def batched(self) -> bool:
        return self.max_batch_size > 0

    @property
    def instances(self) -> int:
        """Runs that may go on at the same time."""
        return max(1, sum(group.count for group in self.instance_groups))

    def input_specs(self) -> list[TensorSpec]:
        return [tensor.spec(self.batched) for tensor in self.inputs]

    def output_specs(self) -> list[TensorSpec]:
        return [tensor.spec(self.batched) for tensor in self.outputs]

    def native_specs(self, tensors: Iterable[ConfigTensor]) -> list[TensorSpec]:
        """Inputs or outputs as the model's file has them."""
        return [TensorSpec(tensor.name, tensor.datatype, tensor.native(self.batched)) for tensor in tensors]


def completed(
    config: ModelConfig,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    default_max_batch_size: int = DEFAULT_MAX_BATCH_SIZE,
) -> ModelConfig:
    """The configuration with what the file knows. As in Triton, one that names inputs and outputs is left as it is."""
    if config.inputs and config.outputs:
        return config
    size = config.max_batch_size
    if size == 0 and all(spec.shape and spec.shape[0] == ANY for spec in (*inputs, *outputs)):
        size = default_max_batch_size
    batching = config.dynamic_batching
    if batching is None and size > 1:
        batching = DynamicBatching()
    return msgspec.structs.replace(
        config,
        max_batch_size=size,
        dynamic_batching=batching,
        inputs=config.inputs or tuple(_derived(spec, size > 0) for spec in inputs),
        outputs=config.outputs or tuple(_derived(spec, size > 0) for spec in outputs),
    )


def _derived(spec: TensorSpec, batched: bool) -> ConfigTensor:
    dims = tuple(spec.shape[1:] if batched else spec.shape)
    if dims:
        return ConfigTensor(spec.name, spec.datatype, dims)
    # A configuration's dims are never empty: callers see one dimension of size 1.
    return ConfigTensor(spec.name, spec.datatype, (1,), reshape=())


def differences(config: ModelConfig, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> list[Problem]:
    """Where a completed configuration and the file of its model do not fit, by field path."""
    found: list[Problem] = []
    for kind, configured, native in (("input", config.inputs, inputs), ("output", config.outputs, outputs)):
        known = {spec.name: spec for spec in native}
        for index, tensor in enumerate(configured):
            spec = known.pop(tensor.name, None)
            if spec is not None:
                found += _differing(f"{kind}[{index}]", tensor, spec, config.batched)
            elif not tensor.optional:
                names = ", ".join(repr(spec.name) for spec in native)
                found.append(
                    Problem(f"{kind}[{index}].name", f"the file has no {kind} {tensor.name!r}; it has {names}")
                )
        if kind == "input" and known:
            found.append(Problem("input", f"missing {', '.join(map(repr, known))}, which the file has"))
    return found


def _differing(path: str, tensor: ConfigTensor, spec: TensorSpec, batched: bool) -> Iterable[Problem]:
    if tensor.datatype != spec.datatype:
        yield Problem(f"{path}.data_type", f"{tensor.name!r} is {spec.datatype} in the file, not {tensor.datatype}")
    if batched and (not spec.shape or spec.shape[0] != ANY):
        message = f"max_batch_size is above 0, and {tensor.name!r} has no variable first dimension: {list(spec.shape)}"
        yield Problem(f"{path}.dims", message)
        return
    have = tensor.native(batched)
    if len(have) != len(spec.shape) or any(
        want not in (ANY, size) for want, size in zip(spec.shape, have, strict=True)
    ):
        message = f"{tensor.name!r} is {list(spec.shape)} in the file, and {list(have)} by the configuration"
        yield Problem(f"{path}.dims", message)


def _whole(dims: tuple[int, ...], batched: bool) -> tuple[int, ...]:
    return (ANY, *dims) if batched else dims


def checked(config: ModelConfig) -> list[Problem]:
    """Every mistake that the values alone show, by field path."""
    found: list[Problem] = []
    if config.max_batch_size < 0:
        found.append(Problem("max_batch_size", f"expected 0 or more, got {config.max_batch_size}"))
    for kind, tensors in (("input", config.inputs), ("output", config.outputs)):
        seen: set[str] = set()
        for index, tensor in enumerate(tensors):
            found += _wrong_tensor(f"{kind}[{index}]", tensor)
            if tensor.name and tensor.name in seen:
                found.append(Problem(f"{kind}[{index}].name", f"there are two named {tensor.name!r}"))
            seen.add(tensor.name)
    for index, group in enumerate(config.instance_groups):
        if group.count < 0:
            found.append(Problem(f"instance_group[{index}].count", f"expected 0 or more, got {group.count}"))
        if group.kind == "cpu" and group.gpus:
            found.append(Problem(f"instance_group[{index}].gpus", "a group of KIND_CPU has no GPUs"))
    found += _wrong_policy(config.version_policy)
    if config.dynamic_batching is not None:
        found += _wrong_batching(config.dynamic_batching, config.max_batch_size)
    for index, warmup in enumerate(config.warmups):
        found += _wrong_warmup(f"model_warmup[{index}]", warmup, config)
    return found


def _wrong_tensor(path: str, tensor: ConfigTensor) -> Iterable[Problem]:
    if not tensor.name:
        yield Problem(f"{path}.name", "missing")
    if not tensor.datatype:
        yield Problem(f"{path}.data_type", "missing")
    if not tensor.dims:
        yield Problem(f"{path}.dims", "expected at least one dimension; a reshape makes a scalar of [ 1 ]")
    yield from _wrong_dims(f"{path}.dims", tensor.dims)
    if tensor.reshape is not None:
        yield from _wrong_dims(f"{path}.reshape", tensor.reshape)
        if ANY not in (*tensor.dims, *tensor.reshape) and math.prod(tensor.dims) != math.prod(tensor.reshape):
            message = f"{list(tensor.reshape)} has another number of elements than dims {list(tensor.dims)}"
            yield Problem(f"{path}.reshape", message)
        elif tensor.dims.count(ANY) != tensor.reshape.count(ANY):
            yield Problem(f"{path}.reshape", f"{list(tensor.reshape)} and dims {list(tensor.dims)} vary differently")


def _wrong_dims(path: str, dims: Sequence[int]) -> Iterable[Problem]:
    if any(size < 1 and size != ANY for size in dims):
        yield Problem(path, f"expected sizes from 1, or -1 for any, got {list(dims)}")


def _wrong_policy(policy: VersionPolicy) -> Iterable[Problem]:
    if policy.kind == "latest" and policy.count < 1:
        yield Problem("version_policy.latest.num_versions", f"expected 1 or more, got {policy.count}")
    if policy.kind == "specific" and (not policy.versions or min(policy.versions) < 1):
        yield Problem("version_policy.specific.versions", f"expected numbers from 1, got {list(policy.versions)}")


def _wrong_batching(batching: DynamicBatching, largest: int) -> Iterable[Problem]:
    for index, size in enumerate(batching.preferred_batch_size):
        if not 1 <= size <= max(largest, 1):
            path = f"dynamic_batching.preferred_batch_size[{index}]"
            yield Problem(path, f"expected 1 to max_batch_size ({largest}), got {size}")
    levels = batching.priority_levels
    if levels and not 1 <= batching.default_priority_level <= levels:
        message = f"expected 1 to priority_levels ({levels}), got {batching.default_priority_level}"
        yield Problem("dynamic_batching.default_priority_level", message)
    for level in batching.priority_queue_policy:
        if not 1 <= level <= levels:
            message = f"expected 1 to priority_levels ({levels}), got {level}"
            yield Problem(f"dynamic_batching.priority_queue_policy[{level}]", message)


def _wrong_warmup(path: str, warmup: Warmup, config: ModelConfig) -> Iterable[Problem]:
    most = max(config.max_batch_size, 1)
    # Without inputs and outputs the batch size is still to be derived from the file.
    if warmup.batch_size < 1 or (config.inputs and config.outputs and warmup.batch_size > most):
        yield Problem(f"{path}.batch_size", f"expected 1 to {most}, got {warmup.batch_size}")
    known = {tensor.name for tensor in config.inputs}
    for name, data in warmup.inputs.items():
        at = f"{path}.inputs[{name}]"
        if known and name not in known:
            yield Problem(at, f"the model has no input {name!r}; it has {', '.join(map(repr, sorted(known)))}")
        if not data.datatype:
            yield Problem(f"{at}.data_type", "missing")
        if any(size < 1 for size in data.dims):
            yield Problem(f"{at}.dims", f"expected sizes from 1, got {list(data.dims)}")
        if data.data == "file" and (not data.file or "/" in data.file or data.file.startswith(".")):
            yield Problem(f"{at}.input_data_file", f"expected a file's name in the folder warmup, got {data.file!r}")


def to_json(config: ModelConfig) -> dict[str, Any]:
    """The configuration as Triton's model-configuration extension writes it, as far as it is acted on here."""
    kind = config.version_policy.kind
    policy: dict[str, Any] = {"all": {}, "latest": {"num_versions": config.version_policy.count}}.get(
        kind, {"versions": list(config.version_policy.versions)}
    )
    body: dict[str, Any] = {
        "name": config.name,
        "platform": config.platform,
        "backend": config.backend,
        "version_policy": {kind: policy},
        "max_batch_size": config.max_batch_size,
        "input": [_tensor_json(tensor) for tensor in config.inputs],
        "output": [_tensor_json(tensor) for tensor in config.outputs],
        "instance_group": [
            {"name": g.name, "kind": f"KIND_{g.kind.upper()}", "count": g.count, "gpus": list(g.gpus)}
            for g in config.instance_groups
        ],
        "default_model_filename": config.filename,
        "parameters": {key: {"string_value": value} for key, value in config.parameters.items()},
    }
    if config.dynamic_batching is not None:
        batching = config.dynamic_batching
        body["dynamic_batching"] = {
            "preferred_batch_size": list(batching.preferred_batch_size),
            "max_queue_delay_microseconds": round(batching.max_queue_delay * 1e6),
            "preserve_ordering": batching.preserve_ordering,
            "priority_levels": batching.priority_levels,
            "default_priority_level": batching.default_priority_level,
        }
    if config.response_cache:
        body["response_cache"] = {"enable": True}
    return body


def _tensor_json(tensor: ConfigTensor) -> dict[str, Any]:
    datatype = "STRING" if tensor.datatype == "BYTES" else tensor.datatype
    body: dict[str, Any] = {"name": tensor.name, "data_type": f"TYPE_{datatype}", "dims": list(tensor.dims)}
    if tensor.reshape is not None:
        body["reshape"] = {"shape": list(tensor.reshape)}
    if tensor.optional:
        body["optional"] = True
    return body
