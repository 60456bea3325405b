"""ONNX files made smaller or quicker: INT8, FP16, and the graph as ONNX Runtime optimises it."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from relight.backends import cpus, onnxruntime
from relight.backends.graphs import SHIPPED, Graphs
from relight.backends.optimizing.samples import Sample
from relight.base.errors import BadInput, PlatformError, Unprocessable

MODEL = "model.onnx"
_INT8_OPS = frozenset(
    {"DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv"}
)
_LAYERS = ("MatMul", "Gemm", "Conv")
"""Quantised with learned ranges: what has weights. A softmax or a normalisation in INT8 costs more than it gives (the
worst row of a MiniLM encoder agrees by .88 so, by .72 with all of it)."""
_SEVEN_BITS = True
"""With eight, processors without VNNI saturate while they add up, and answer wrongly; a version is for all of them."""
_SPLIT = 1 << 30
"""Bytes from which on weights are written beside the graph: a file of protobuf ends at 2 GiB."""


def int8(source: Path, target: Path) -> None:
    """Weights as INT8, activations quantised as they come (dynamic). Needs no data."""
    quantization = _quantization()
    with _refusing("INT8"), _prepared(source) as prepared:
        quantization.quantize_dynamic(
            prepared,
            target / MODEL,
            per_channel=True,
            reduce_range=_SEVEN_BITS,
            use_external_data_format=_is_large(prepared),
        )
    _check_quantised(source, target / MODEL)


def int8_static(source: Path, target: Path, calibration: Sequence[Sample]) -> None:
    """Weights and activations as INT8, with ranges learned from samples."""
    quantization = _quantization()
    remaining = iter(calibration)

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc,name-defined]
        def get_next(self) -> Any:
            return next(remaining, None)

    with _refusing("INT8"), _prepared(source) as prepared:
        quantization.quantize_static(
            prepared,
            target / MODEL,
            Reader(),
            per_channel=True,
            reduce_range=_SEVEN_BITS,
            op_types_to_quantize=list(_LAYERS),
            extra_options={"MatMulConstBOnly": True},
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            use_external_data_format=_is_large(prepared),
        )
    _check_quantised(source, target / MODEL)


def fp16(source: Path, target: Path) -> None:
    """Everything in FP16 but inputs and outputs, so that callers notice nothing. For GPUs; processors convert back."""
    onnx = _onnx()
    onnxruntime.library()
    try:
        float16 = import_module("onnxruntime.transformers.float16")
    except ImportError as error:
        raise PlatformError(f"the converter to FP16 is not part of this build of ONNX Runtime: {error}") from None
    if _count(source):
        raise Unprocessable(f"{source.name} is INT8 already: make FP16 of the version that it was made from")
    with _refusing("FP16"):
        model = onnx.load(str(source))
        if not any(tensor.data_type == onnx.TensorProto.FLOAT for tensor in model.graph.initializer):
            raise Unprocessable(f"{source.name} has no weights in FP32: there is nothing to make FP16 of")
        model = float16.convert_float_to_float16(model, keep_io_types=True)
        onnx.save(model, str(target / MODEL), save_as_external_data=_is_large(source), location=f"{MODEL}.data")


def fuse(source: Path, target: Path) -> Path:
    """The graph as ONNX Runtime optimises it for this kind of processor; the folder that it is in, within ``target``.

    It lies beside the model's own file: another kind of processor, or version of ONNX Runtime, loads that.
    """
    runtime = onnxruntime.library()
    folder = target / SHIPPED / cpus.kind() / str(runtime.__version__)
    folder.mkdir(parents=True)
    onnxruntime.save_graph(source, folder)
    Graphs(folder).ship(source)
    return folder


def files_of(source: Path) -> list[Path]:
    """The model's file and the files with its weights, where these lie beside it."""
    onnx = _onnx()
    model = onnx.load(str(source), load_external_data=False)
    names = {
        entry.value
        for tensor in model.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location" and tensor.data_location == onnx.TensorProto.EXTERNAL
    }
    return [source, *(source.parent / name for name in sorted(names))]


def _onnx() -> Any:
    try:
        return import_module("onnx")
    except ModuleNotFoundError:
        raise PlatformError("the package onnx is not installed here; install relight[optimize]") from None


def _quantization() -> Any:
    _onnx()
    onnxruntime.library()
    return import_module("onnxruntime.quantization")


@contextmanager
def _prepared(source: Path) -> Iterator[Path]:
    """The file with constants folded and shapes written into it: weights behind a cast are not seen as weights."""
    prepare = import_module("onnxruntime.quantization.shape_inference").quant_pre_process
    source = source.resolve()
    # What it cannot finish it leaves in the working directory, whoever's that is.
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        prepared = Path(folder) / MODEL
        large = _is_large(source)
        external = {"save_as_external_data": True, "all_tensors_to_one_file": True} if large else {}
        try:
            prepare(str(source), str(prepared), **external)
        except Exception as error:  # its errors have no common base; without shapes fewer nodes are quantised
            logging.getLogger("relight.optimizing").info("shapes.unknown model=%s: %s", source, error)
            prepare(str(source), str(prepared), skip_symbolic_shape=True, **external)
        yield prepared


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Unprocessable for whatever the tools raise over a model; their warnings are for their developers."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (Unprocessable, BadInput, PlatformError):
        raise
    except Exception as error:  # none of these tools has errors of its own
        reason = " ".join(str(error).split())[:300]
        raise Unprocessable(f"the model cannot be made {what}: {type(error).__name__}: {reason}") from error
    finally:
        logging.disable(level)


def _check_quantised(source: Path, made: Path) -> None:
    before, after = _count(source), _count(made)
    if after <= before:
        already = (
            "it is INT8 already" if before else "it has no layer that INT8 helps (MatMul, Gemm, Conv with weights)"
        )
        raise Unprocessable(f"there is nothing to quantise in {source.name}: {already}")


def _count(path: Path) -> int:
    model = _onnx().load(str(path), load_external_data=False)
    return sum(node.op_type in _INT8_OPS for node in model.graph.node)


def _is_large(path: Path) -> bool:
    return sum(file.stat().st_size for file in files_of(path) if file.is_file()) >= _SPLIT
