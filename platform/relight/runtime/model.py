"""Models: tensors in, tensors out."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relight.base.errors import BadInput, Failed
from relight.decide.batching import BatchingSettings
from relight.runtime.function import Function
from relight.wire import tensors, v2
from relight.wire.cloudevents import Event
from relight.wire.http import Headers
from relight.wire.tensors import Array, TensorSpec

log = logging.getLogger("relight.model")


@dataclass(frozen=True, slots=True)
class EmbeddingsMap:
    """Which tensors ``/v1/embeddings`` uses: texts in, vectors out, and, where the model counts them, tokens out."""

    input: str = "text"
    output: str = "embedding"
    tokens: str | None = None


class Model(Function):
    """A model: the author writes ``infer``, and ``load`` where there is something to load.

    ``infer`` gets one array per input, of the datatype and shape that ``inputs`` says (BYTES: an object array of
    ``bytes``), and returns one array per output. It is called by one thread at a time per instance.
    """

    inputs: Sequence[TensorSpec] = ()
    outputs: Sequence[TensorSpec] = ()
    max_batch_size: int = 0
    """Rows that one call of ``infer`` may hold; a request of more is computed in parts. 0: the first dimension is no
    batch."""
    batching: BatchingSettings | None = None
    """Where given, requests are computed together; None: each is a run of its own."""
    instances: int = 1
    """Runs that may go on at the same time, each in a thread."""
    on_loop: bool = True
    """Whether ``infer`` may be called on the event loop's thread once its runs are known to take less than a
    millisecond. False where it needs a thread of its own (a loop of its own, thread-local state)."""
    platform: str = "python"
    """What V2 metadata calls the framework."""
    openai_embeddings: EmbeddingsMap | None = None
    """Where given, ``/v1/embeddings`` is served."""

    def infer(self, inputs: dict[str, Array]) -> Mapping[str, Array]:
        """Compute the outputs."""
        raise NotImplementedError(f"{type(self).__name__} has no infer")

    def event_inputs(self, event: Event) -> dict[str, Array]:
        """The inputs from an event; by default its data is a V2 inference request in JSON."""
        request = v2.decode_request(Headers(), event.data or b"", inputs=self.inputs, outputs=self.outputs)
        return request.inputs

    def event_reply(self, event: Event, outputs: dict[str, Array]) -> Any:
        """The reply's data from the outputs; by default a V2 inference response in JSON."""
        return v2.response_json(self.context.model, self.context.version, outputs, self.outputs)

    def compute(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """``infer`` on at most ``max_batch_size`` rows at a time, its answers checked. For the runtime."""
        size = self.max_batch_size
        if size <= 0:
            return self._checked(inputs)
        rows = self._rows(inputs)
        if rows == 0:
            # No rows in, no rows out: the author's code need not know how to compute nothing.
            return {spec.name: _no_rows(spec) for spec in self.outputs}
        parts = [
            self._checked({name: array[at : at + size] for name, array in inputs.items()})
            for at in range(0, rows, size)
        ]
        if len(parts) == 1:
            return parts[0]
        return {spec.name: np.concatenate([part[spec.name] for part in parts]) for spec in self.outputs}

    def _rows(self, inputs: dict[str, Array]) -> int:
        rows = {name: len(array) for name, array in inputs.items()}
        if len(set(rows.values())) > 1:
            told = ", ".join(f"{name!r} {count}" for name, count in rows.items())
            raise BadInput(f"the inputs of one request have one number of rows each: {told}", param="inputs")
        return next(iter(rows.values()), 0)

    def _checked(self, inputs: dict[str, Array]) -> dict[str, Array]:
        given = self.infer(inputs)
        return {spec.name: self._output(spec, given) for spec in self.outputs}

    def _output(self, spec: TensorSpec, given: Mapping[str, Array]) -> Array:
        if not isinstance(given, Mapping) or spec.name not in given:
            log.error("model.output_missing output=%s: infer did not return it; the request fails", spec.name)
            raise Failed(f"the model did not return its output {spec.name!r}")
        array = np.asarray(given[spec.name])
        if tensors.datatype_of(array.dtype) != spec.datatype:
            array = array.astype(tensors.numpy_dtype(spec.datatype))
        if not spec.accepts(array.shape):
            log.error(
                "model.output_shape output=%s want=%s have=%s: the request fails", spec.name, spec.shape, array.shape
            )
            raise Failed(f"the model returned {spec.name!r} in another shape than it says")
        return array


def _no_rows(spec: TensorSpec) -> Array:
    return np.empty((0, *(max(size, 0) for size in spec.shape[1:])), tensors.numpy_dtype(spec.datatype))
