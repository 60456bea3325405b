"""ONNX Runtime: models as ``.onnx`` files.

The way to a first result matters here as much as the speed after it. The first session uses one thread and, where a
saved optimised graph is there and was measured to be quicker, that one, with optimisation and prepacking off (13 ms for
a MiniLM encoder whose own file takes 450). Behind the first result a thread builds the session for steady work,
prepacked and with all the threads that this process may use, and swaps it in; where no graph is saved, it saves one.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from relight.backends import gpus
from relight.backends.base import Declared, Placement
from relight.backends.graphs import DATA, GRAPH, Graphs, Measured
from relight.backends.opening import Opening, Options
from relight.backends.placing import CPU, CUDA, TENSORRT, on_onnxruntime
from relight.base.errors import CorruptWeights, PlatformError
from relight.wire.tensors import ANY, Array, TensorSpec

log = logging.getLogger("relight.onnxruntime")

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
    "float": "FP32",
    "double": "FP64",
    "string": "BYTES",
}
_EXTERNAL_MIN_BYTES = "1024"
"""Initialisers from this size on go to the data file, which is mapped into memory instead of parsed."""


class OnnxRuntime:
    """The backend. Its library is imported when the first model is opened."""

    def open(self, path: Path, **options: Unpack[Options]) -> OnnxSession:
        """Load a model for its first result; ``OnnxSession`` goes on from there."""
        runtime = library()
        given = Opening(path, **options)
        available = runtime.get_available_providers()
        place = given.placed(on_onnxruntime(given.declared, available, gpus.visible(), given.run_threads))
        if place.engine != CPU:
            return _on_gpu(path, place, given.declared, given.cache)
        graphs = Graphs.of(given.cache, path, given.digest, runtime.__version__) if given.cache is not None else None
        for saved in (Graphs.shipped(path, runtime.__version__), graphs):
            if saved is None or not saved.chosen():
                continue
            begun = time.perf_counter()
            try:
                native = _create(saved.graph, threads=1, optimise=False, prepack=False)
            except CorruptWeights as error:
                log.warning("graph.unusable error=%s: the next best is loaded", error)
                if saved is graphs:  # the other one is part of the model's version
                    saved.discard()
            else:
                return OnnxSession(native, saved.graph, place, load_seconds=time.perf_counter() - begun, saved=True)
        begun = time.perf_counter()
        native = _create(path, threads=1)
        missing = graphs if graphs is not None and graphs.chosen() is None else None
        return OnnxSession(native, path, place, load_seconds=time.perf_counter() - begun, missing=missing)


def _on_gpu(path: Path, place: Placement, declared: Declared, cache: Path | None) -> OnnxSession:
    """A session on a GPU. Where its provider cannot start, ONNX Runtime itself falls back; that is said, or refused."""
    native = _create(path, threads=place.threads, providers=_providers(place, cache))
    used = native.get_providers()[0]
    if used == CPU:
        lacks = f"{place.engine} could not start (its libraries, or the driver): see ONNX Runtime's own lines above"
        if declared.kind == "gpu":
            raise PlatformError(f"{path}: instance_group asks for KIND_GPU, and {lacks}")
        log.warning("model.fallback model=%s: %s; it runs on the processor", path, lacks)
        place = Placement("cpu", CPU, place.threads, lacks)
    elif used != place.engine:
        place = dataclasses.replace(place, engine=used, reason=f"{place.reason}; {place.engine} could not start")
    return OnnxSession(native, path, place, steady=True)


def _providers(place: Placement, cache: Path | None) -> list[Any]:
    """What a session may use, first choice first: each takes what the one before it cannot run."""
    device = {"device_id": place.device.partition(":")[2]}
    chosen: list[Any] = [(CUDA, device), CPU]
    if place.engine == TENSORRT:
        engines = {}
        if cache is not None:
            folder = cache / "tensorrt"
            folder.mkdir(parents=True, exist_ok=True)
            # Named by ONNX Runtime after the model's content, the GPU's kind and TensorRT's version.
            engines = {"trt_engine_cache_enable": "True", "trt_engine_cache_path": str(folder)}
        chosen.insert(0, (TENSORRT, device | engines))
    return chosen


class OnnxSession:
    """A model that answers at once and becomes faster behind its first result.

    ``saved``: ``path`` is an optimised graph already. ``missing``: where to save one. ``steady``: it is at its best.
    """

    def __init__(
        self,
        native: Any,
        path: Path,
        placement: Placement,
        *,
        load_seconds: float = 0.0,
        saved: bool = False,
        missing: Graphs | None = None,
        steady: bool = False,
    ) -> None:
        self.inputs: Sequence[TensorSpec] = [_spec(node, path) for node in native.get_inputs()]
        self.outputs: Sequence[TensorSpec] = [_spec(node, path) for node in native.get_outputs()]
        self.placement = placement
        self._native = native
        self._path = path
        self._saved = saved
        self._missing = missing
        self._load_seconds = load_seconds
        self._texts = frozenset(spec.name for spec in self.inputs if spec.datatype == "BYTES")
        self._names = [spec.name for spec in self.outputs]
        self._first = threading.Lock()
        if steady:
            self._first.acquire()
        self._steady = steady
        self._behind: threading.Thread | None = None
        self._closed = False

    @property
    def is_steady(self) -> bool:
        """Whether the session for steady work is in place, and nothing is going on behind it."""
        return self._steady or (self._behind is not None and not self._behind.is_alive())

    def run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        feed = {name: _as_text(array) if name in self._texts else array for name, array in inputs.items()}
        begun = time.perf_counter()
        results = self._native.run(self._names, feed)
        if self._behind is None and self._first.acquire(blocking=False):
            seconds = time.perf_counter() - begun
            self._behind = threading.Thread(target=self._improve, args=(feed, seconds), name="onnx-steady", daemon=True)
            self._behind.start()
        return dict(zip(self._names, results, strict=True))

    def settle(self) -> None:
        """Wait until the session for steady work is in place; at once where nothing has run yet."""
        if self._behind is not None:
            self._behind.join()

    def close(self) -> None:
        self._closed = True
        if self._behind is not None:
            self._behind.join()
        self._native = None

    def _improve(self, feed: dict[str, Array], first_run: float) -> None:
        threads = self.placement.threads
        try:
            if self._missing is not None:
                _save(self._path, self._missing, feed, self._load_seconds, first_run)
            if not self._closed and (self._saved or threads > 1):
                self._native = _create(self._path, threads=threads, optimise=not self._saved)
        except (CorruptWeights, OSError) as error:
            log.warning("session.not_improved model=%s error=%s: the first session stays", self._path, error)


def save_graph(path: Path, folder: Path) -> None:
    """Write the graph as ONNX Runtime optimises it for this processor, weights beside it to be mapped into memory."""
    _create(path, threads=1, save=folder)


def _save(path: Path, graphs: Graphs, feed: dict[str, Array], plain_load: float, plain_run: float) -> None:
    """Save the optimised graph, measure it as a cold start would use it, and publish it with the measurement."""
    with graphs.building() as part:
        if part is None:
            return
        save_graph(path, part)
        begun = time.perf_counter()
        native = _create(part / GRAPH, threads=1, optimise=False, prepack=False)
        loaded = time.perf_counter()
        native.run(None, feed)
        measured = Measured((plain_load, plain_run), (loaded - begun, time.perf_counter() - loaded))
        graphs.publish(part, measured)
        log.info("graph.saved model=%s quicker=%s measured=%s", path, measured.saved_is_quicker, measured)


def _create(
    path: Path,
    *,
    threads: int,
    optimise: bool = True,
    prepack: bool = True,
    save: Path | None = None,
    providers: Sequence[Any] = (CPU,),
) -> Any:
    runtime = library()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Errors only: a graph that is saved with this processor's optimisations is meant to be.
    options.log_severity_level = 3
    if not optimise:
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if not prepack:
        options.add_session_config_entry("session.disable_prepacking", "1")
    if save is not None:
        options.optimized_model_filepath = str(save / GRAPH)
        prefix = "session.optimized_model_external_initializers"
        options.add_session_config_entry(f"{prefix}_file_name", DATA)
        options.add_session_config_entry(f"{prefix}_min_size_in_bytes", _EXTERNAL_MIN_BYTES)
    try:
        return runtime.InferenceSession(str(path), options, providers=list(providers))
    except Exception as error:  # Its errors have no common base but this one.
        reason = re.sub(r"\s+", " ", str(error)).removeprefix("[ONNXRuntimeError] : ")[:300]
        raise CorruptWeights(f"ONNX Runtime cannot read {path}: {reason}") from error


def library() -> Any:
    """ONNX Runtime's module; every import of it is this one.

    Its telemetry writes a database into the user's home and sends over the network, unless it is told not to before
    the import. Whoever wants it sets ``ORT_DISABLE_TELEMETRY=0``.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError:
        raise PlatformError("ONNX Runtime is not installed here; install relight[onnx]") from None
    return onnxruntime


def _spec(node: Any, path: Path) -> TensorSpec:
    match = re.fullmatch(r"tensor\((\w+)\)", node.type)
    datatype = _DATATYPES.get(match[1]) if match else None
    if datatype is None:
        raise CorruptWeights(f"{path}: {node.name!r} is a {node.type}; only plain tensors are served")
    shape = [size if isinstance(size, int) and size >= 0 else ANY for size in node.shape]
    return TensorSpec(node.name, datatype, shape)


def _as_text(array: Array) -> Array:
    """ONNX Runtime takes text where the protocol has bytes."""
    texts = np.empty(array.shape, dtype=object)
    flat = [item.decode() if isinstance(item, bytes) else item for item in array.ravel().tolist()]
    texts.ravel()[:] = flat
    return texts
