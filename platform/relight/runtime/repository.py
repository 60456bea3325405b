"""A model of the repository that a backend runs, with no code of the user's: as its configuration or its file says."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from relight.backends import registry
from relight.backends.base import Session
from relight.backends.declaring import of_config
from relight.backends.registry import Kind
from relight.base.errors import BadInput, MissingWeights, Problem
from relight.decide.batching import BatchingSettings, QueuePolicy
from relight.runtime.model import Model
from relight.wire import modelconfig
from relight.wire.modelconfig import ConfigTensor, DynamicBatching, ModelConfig
from relight.wire.tensors import ANY, Array

log = logging.getLogger("relight.repository")


class RepositoryModel(Model):
    """Serves one version of a repository's model by its ``config.pbtxt``, or by what its file says of itself."""

    uses_repository = True
    file = ""
    """The file's name in the version's folder; empty: as the configuration says, or the one that is there."""
    session: Session
    config: ModelConfig

    def load(self) -> None:
        context = self.context
        if context.files is None:
            raise MissingWeights(f"the model {context.model!r} has no folder of weights")
        config = self.configuration()
        kind = self.kind(config)
        name = config.filename or self.file or registry.file_of(kind, self._present())
        threads = config.parameters.get("intra_op_thread_count", "0")
        if not threads.isdecimal():
            message = f"expected a number of threads, got {threads!r}"
            raise BadInput.of([Problem("parameters['intra_op_thread_count']", message)])
        self.session = kind.backend().open(
            context.files / name,
            threads=int(threads) or None,
            cache=context.cache,
            digest=context.digest,
            declared=of_config(config),
        )
        inputs, outputs = self.session.inputs, self.session.outputs
        config = modelconfig.completed(config, inputs, outputs, context.default_max_batch_size)
        if problems := modelconfig.differences(config, inputs, outputs):
            self.session.close()
            raise BadInput(
                f"the configuration of model {context.model!r} does not fit its file: {'; '.join(map(str, problems))}",
                param=problems[0].path,
                problems=problems,
            )
        # As Triton completes it: what was found is said.
        platform = config.platform or kind.platform
        self.config = msgspec.structs.replace(
            config, name=context.model, platform=platform, backend=kind.library, filename=name
        )
        self.platform = kind.platform
        self.inputs, self.outputs = config.input_specs(), config.output_specs()
        if not type(self).max_batch_size:
            self.max_batch_size = config.max_batch_size
        if config.dynamic_batching is not None and type(self).batching is None and self.max_batch_size > 1:
            self.batching = _batching(config.dynamic_batching, self.max_batch_size)
        self.instances = config.instances
        self._reshaped_inputs = _reshaped(config.inputs)
        self._reshaped_outputs = _reshaped(config.outputs)

    def kind(self, config: ModelConfig | None = None) -> Kind:
        """Which backend's the model is, by its configuration or its files."""
        config = config or self.configuration()
        return registry.kind_of(config.platform, config.backend, self._present())

    def _present(self) -> set[str]:
        if self.context.files is None:
            raise MissingWeights(f"the model {self.context.model!r} has no folder of weights")
        return {path.name for path in self.context.files.iterdir() if path.is_file()}

    def configuration(self) -> ModelConfig:
        """What ``config.pbtxt`` says, before it is completed by the file. Each field not acted on is a warning."""
        files = self.context.model_files
        if files is None or files.config is None:
            return ModelConfig(name=self.context.model)
        from relight.wire import modelconfig_text

        decoded = modelconfig_text.decode(files.config, self.context.model)
        for warning in decoded.warnings:
            log.warning("config.ignored model=%s: %s in %s", self.context.model, warning, modelconfig_text.FILE)
        return decoded.config

    def warmup(self) -> None:
        """Run what the configuration says under ``model_warmup``."""
        if not self.config.warmups:
            return
        from relight.runtime import warming

        files = self.context.model_files
        for warmup in self.config.warmups:
            inputs = warming.inputs(warmup, self.config, files.warmup if files else {})
            for _ in range(warmup.count):
                self.run(inputs)
            log.info("warmup.done model=%s name=%s count=%d", self.context.model, warmup.name, warmup.count)

    def infer(self, inputs: dict[str, Array]) -> Mapping[str, Array]:
        return self.run(inputs)

    def run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """Compute what the file computes, on tensors as the configuration has them."""
        batched = self.config.batched
        if self._reshaped_inputs:
            inputs = dict(inputs)
            for tensor, reshape in self._reshaped_inputs:
                if tensor.name in inputs:
                    inputs[tensor.name] = _reshape(inputs[tensor.name], tensor.dims, reshape, batched)
        outputs = self.session.run(inputs)
        for tensor, reshape in self._reshaped_outputs:
            outputs[tensor.name] = _reshape(outputs[tensor.name], reshape, tensor.dims, batched)
        return outputs

    @property
    def placement(self) -> Mapping[str, str]:
        """Where the model runs, and why there: for its metadata."""
        return self.session.placement.describe()

    def unload(self) -> None:
        self.session.close()


def _batching(given: DynamicBatching, largest: int) -> BatchingSettings:
    return BatchingSettings(
        max_batch_size=largest,
        preferred_batch_sizes=given.preferred_batch_size,
        max_queue_delay=given.max_queue_delay,
        queue_policy=_policy(given.default_queue_policy),
        queue_policies={level: _policy(policy) for level, policy in given.priority_queue_policy.items()},
        priority_levels=given.priority_levels,
        default_priority_level=given.default_priority_level,
        preserve_ordering=given.preserve_ordering,
    )


def _policy(given: modelconfig.QueuePolicy) -> QueuePolicy:
    return QueuePolicy(given.timeout_action, given.default_timeout, given.allow_timeout_override, given.max_size)


def _reshaped(tensors: tuple[ConfigTensor, ...]) -> list[tuple[ConfigTensor, tuple[int, ...]]]:
    return [(tensor, tensor.reshape) for tensor in tensors if tensor.reshape is not None]


def _reshape(array: Array, have: tuple[int, ...], want: tuple[int, ...], batched: bool) -> Array:
    """An array of shape ``have`` as ``want``, the sizes that vary taken over in order; the batch stays in front."""
    sizes: Any = array.shape[1:] if batched else array.shape
    varying = iter([size for dimension, size in zip(have, sizes, strict=True) if dimension == ANY])
    shape = [next(varying) if size == ANY else size for size in want]
    return array.reshape([len(array), *shape] if batched else shape)
