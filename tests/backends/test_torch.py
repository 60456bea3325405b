"""PyTorch behind its seam: the three kinds of file, names, threads, and pickles refused."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from needing import need

from relight.backends.base import Declared
from relight.backends.torch import Torch
from relight.base.errors import BadInput, CorruptWeights, Failed, MissingWeights, PlatformError, RelightError
from relight.wire.tensors import TensorSpec

torch = need("torch", "torch")
safetensors_torch = need("safetensors.torch", "torch")

DECLARED = Declared(
    inputs=[TensorSpec("INPUT__0", "FP32", (-1, 4))],
    outputs=[TensorSpec("OUTPUT__0", "FP32", (-1, 3)), TensorSpec("OUTPUT__1", "FP32", (-1, 8))],
)
X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)

NETWORK = """
import torch

class Network(torch.nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first = torch.nn.Linear(4, width)
        self.second = torch.nn.Linear(width, 3)

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        return self.second(hidden), hidden

class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.full((4,), 2.0), persistent=False)

    def forward(self, x):
        return self.second(self.first(x)) * self.scale
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function's own code: the package ``function`` with a module ``net``."""
    folder = tmp_path / "code" / "function"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "net.py").write_text(NETWORK)
    monkeypatch.syspath_prepend(folder.parent)
    for name in [name for name in sys.modules if name.split(".")[0] == "function"]:
        monkeypatch.delitem(sys.modules, name)
    import function.net as net  # type: ignore[import-not-found]

    torch.manual_seed(7)
    yield net
    for name in [name for name in sys.modules if name.split(".")[0] == "function"]:
        del sys.modules[name]


def quiet(make: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return make()


def script(module: Any, path: Path) -> Path:
    quiet(lambda: torch.jit.trace(module.eval(), (torch.zeros(2, 4),)).save(str(path)))
    return path


def export(module: Any, path: Path, *inputs: Any, **named: Any) -> Path:
    batch = torch.export.Dim("batch", min=1, max=64)
    shapes = tuple({0: batch} for _ in inputs) + tuple({0: batch} for _ in named)
    names = [*("x" for _ in inputs), *named]
    program = torch.export.export(module.eval(), inputs, named, dynamic_shapes=dict(zip(names, shapes, strict=True)))
    torch.export.save(program, str(path))
    return path


def want(module: Any, x: Any = X) -> tuple[np.ndarray[Any, Any], ...]:
    with torch.inference_mode():
        return tuple(tensor.numpy() for tensor in module(torch.from_numpy(x)))


def test_torchscript_takes_its_names_from_the_config(code: Any, tmp_path: Path) -> None:
    module = code.Network()
    session = Torch().open(script(module, tmp_path / "model.pt"), declared=DECLARED)
    assert [spec.name for spec in session.inputs] == ["INPUT__0"]
    given = X.copy()
    given.flags.writeable = False
    results = session.run({"INPUT__0": given})
    for have, expected in zip(results.values(), want(module), strict=True):
        np.testing.assert_allclose(have, expected, rtol=1e-5)
    assert list(results) == ["OUTPUT__0", "OUTPUT__1"]
    session.settle()
    session.close()
    session.close()


def test_torchscript_inputs_are_matched_by_the_names_of_its_arguments(tmp_path: Path) -> None:
    class Minus(torch.nn.Module):  # type: ignore[misc]
        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return left - right

    path = tmp_path / "model.pt"
    quiet(lambda: torch.jit.trace(Minus(), (torch.ones(1), torch.ones(1))).save(str(path)))
    one = [TensorSpec("y", "FP32", (-1,))]
    by_name = Declared([TensorSpec("right", "FP32", (-1,)), TensorSpec("left", "FP32", (-1,))], one)
    by_index = Declared([TensorSpec("b__1", "FP32", (-1,)), TensorSpec("a__0", "FP32", (-1,))], one)
    in_order = Declared([TensorSpec("p", "FP32", (-1,)), TensorSpec("q", "FP32", (-1,))], one)
    three, two = np.array([3], np.float32), np.array([2], np.float32)
    for declared, names in ((by_name, ("left", "right")), (by_index, ("a__0", "b__1")), (in_order, ("p", "q"))):
        session = Torch().open(path, declared=declared)
        assert session.run({names[0]: three, names[1]: two})["y"].tolist() == [1.0], names
    gap = Declared([TensorSpec("a__0", "FP32", (-1,)), TensorSpec("b__2", "FP32", (-1,))], one)
    with pytest.raises(BadInput, match=r"a__0, b__2 do not count from __0"):
        Torch().open(path, declared=gap)


def test_torchscript_without_a_declaration_is_refused(code: Any, tmp_path: Path) -> None:
    path = script(code.Network(), tmp_path / "model.pt")
    with pytest.raises(BadInput, match=r"declare input and output in config\.pbtxt"):
        Torch().open(path)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([TensorSpec("OUTPUT__0", "INT64", (-1, 3))], "is a tensor of FP32; INT64 was declared"),
        ([TensorSpec(f"OUTPUT__{at}", "FP32", (-1, 3)) for at in range(3)], "'OUTPUT__2' is not among the results"),
    ],
    ids=["another type", "one too many"],
)
def test_outputs_that_are_not_as_declared(outputs: list[TensorSpec], message: str, code: Any, tmp_path: Path) -> None:
    path = script(code.Network(), tmp_path / "model.pt")
    session = Torch().open(path, declared=Declared(DECLARED.inputs, outputs))
    with pytest.raises(Failed, match=message):
        session.run({"INPUT__0": X})


def test_an_exported_program_describes_itself(code: Any, tmp_path: Path) -> None:
    module = code.Network()
    session = Torch().open(export(module, tmp_path / "model.pt2", torch.zeros(2, 4)))
    assert session.inputs == (TensorSpec("x", "FP32", (-1, 4)),)
    assert session.outputs == (TensorSpec("OUTPUT__0", "FP32", (-1, 3)), TensorSpec("OUTPUT__1", "FP32", (-1, 8)))
    big = np.concatenate([X, X, X])
    for have, expected in zip(session.run({"x": big}).values(), want(module, big), strict=True):
        np.testing.assert_allclose(have, expected, rtol=1e-5)
    named = Torch().open(
        tmp_path / "model.pt2",
        declared=Declared(outputs=[TensorSpec("scores", "FP32", (-1, 3)), TensorSpec("hidden", "FP32", (-1, 8))]),
    )
    assert list(named.run({"x": X})) == ["scores", "hidden"]


def test_an_exported_program_with_named_inputs_and_a_dictionary(tmp_path: Path) -> None:
    class Masked(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, *, mask: Any) -> dict[str, Any]:
            return {"kept": x * mask, "sum": x.sum(-1)}

    path = export(Masked(), tmp_path / "model.pt2", torch.ones(2, 4), mask=torch.ones(2, 4))
    session = Torch().open(path)
    assert [spec.name for spec in session.inputs] == ["x", "mask"]
    mask = np.zeros_like(X)
    mask[:, 0] = 1
    results = session.run({"mask": mask, "x": X})
    np.testing.assert_allclose(results["kept"], X * mask)
    np.testing.assert_allclose(results["sum"], X.sum(-1), atol=1e-6)


def test_an_exported_program_with_arithmetic_over_sizes(tmp_path: Path) -> None:
    class Sizes(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, y: Any) -> Any:
            joined = torch.cat([x, x, y])[: x.shape[0] * 3 // 2]
            wide = torch.nn.functional.interpolate(x[None, None], scale_factor=1.5)
            return joined * y[0], wide, x.reshape(2, -1)

    auto = torch.export.Dim.AUTO
    program = torch.export.export(
        Sizes(), (torch.ones(6, 4), torch.ones(3, 4)), dynamic_shapes=({0: auto, 1: auto}, {0: auto, 1: auto})
    )
    torch.export.save(program, str(tmp_path / "model.pt2"))
    session = Torch().open(tmp_path / "model.pt2")
    results = session.run({"x": np.ones((6, 4), np.float32), "y": np.ones((3, 4), np.float32)})
    assert [array.shape for array in results.values()] == [(9, 4), (1, 1, 9, 6), (2, 12)]


def test_bf16_goes_in_and_comes_out_as_float32(tmp_path: Path) -> None:
    class Twice(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x * 2

    path = export(Twice(), tmp_path / "model.pt2", torch.ones(2, 4, dtype=torch.bfloat16))
    session = Torch().open(path)
    assert session.inputs[0].datatype == session.outputs[0].datatype == "BF16"
    assert session.run({"x": np.full((2, 4), 1.5, np.float32)})["OUTPUT__0"].tolist() == [[3.0] * 4] * 2


def test_weights_with_the_functions_own_class(code: Any, tmp_path: Path) -> None:
    module = code.Network(width=6)
    path = tmp_path / "model" / "model.safetensors"
    path.parent.mkdir()
    safetensors_torch.save_model(module, str(path))
    parameters = {"class": "net:Network", "class_arguments": '{"width": 6}'}
    declared = Declared(
        [TensorSpec("x", "FP32", (-1, 4))],
        [TensorSpec("scores", "FP32", (-1, 3)), TensorSpec("hidden", "FP32", (-1, 6))],
        parameters=parameters,
    )
    results = Torch().open(path, declared=declared).run({"x": X})
    for have, expected in zip(results.values(), want(module), strict=True):
        np.testing.assert_allclose(have, expected, rtol=1e-5)
    smaller = Declared(declared.inputs, declared.outputs, parameters={"class": "function.net:Network"})
    with pytest.raises(CorruptWeights, match="size mismatch"):
        Torch().open(path, declared=smaller)


def test_tied_weights_and_computed_buffers(code: Any, tmp_path: Path) -> None:
    module = code.Tied()
    path = tmp_path / "model.safetensors"
    safetensors_torch.save_model(module, str(path))
    declared = Declared(
        [TensorSpec("x", "FP32", (-1, 4))], [TensorSpec("y", "FP32", (-1, 4))], parameters={"class": "net:Tied"}
    )
    with torch.inference_mode():
        expected = module(torch.from_numpy(X)).numpy()
    np.testing.assert_allclose(Torch().open(path, declared=declared).run({"x": X})["y"], expected, rtol=1e-5)


def test_weights_that_do_not_fit_are_named(code: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = dict(code.Network().state_dict())
    tensors["third.bias"] = tensors.pop("second.bias")
    safetensors_torch.save_file(tensors, str(path))
    declared = Declared(DECLARED.inputs, DECLARED.outputs, parameters={"class": "net:Network"})
    with pytest.raises(CorruptWeights, match=r"lacks second\.bias and has third\.bias, which the class does not"):
        Torch().open(path, declared=declared)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, r"name their class by parameters"),
        ({"class": "Network"}, r"expected module:Class, got 'Network'"),
        ({"class": "os:system"}, r"no module function\.os in the function's own code"),
        ({"class": "net:torch"}, r"no class torch that is a torch\.nn\.Module"),
        ({"class": "net:nothing"}, r"no class nothing"),
        ({"class": "net:Network", "class_arguments": "6"}, r"class_arguments: expected a JSON object"),
    ],
    ids=["none", "no module", "the standard library", "a module", "unknown", "arguments"],
)
def test_a_class_comes_from_the_function_only(
    parameters: dict[str, str], message: str, code: Any, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    safetensors_torch.save_model(code.Network(), str(path))
    with pytest.raises(BadInput, match=message):
        Torch().open(path, declared=Declared(DECLARED.inputs, DECLARED.outputs, parameters=parameters))


class Evil:
    """Reading it runs code."""

    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["RELIGHT_TEST_EVIL"],)


def rewrite(path: Path, change: Callable[[str, bytes], bytes], extra: dict[str, bytes] | None = None) -> None:
    with zipfile.ZipFile(path) as archive:
        members = {name: change(name, archive.read(name)) for name in archive.namelist()}
        root = next(iter(members)).partition("/")[0]
    members |= {f"{root}/{name}": data for name, data in (extra or {}).items()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def in_program(old: str, new: str) -> Callable[[str, bytes], bytes]:
    def change(name: str, data: bytes) -> bytes:
        if not name.endswith("models/model.json"):
            return data
        text = data.decode()
        assert old in text
        return text.replace(old, new).encode()

    return change


def pickled_weight(name: str, data: bytes) -> bytes:
    if name.endswith("/weight_0"):
        return pickle.dumps(Evil())
    return data.replace(b'"use_pickle": false', b'"use_pickle": true') if name.endswith("weights_config.json") else data


def pickled_samples(name: str, data: bytes) -> bytes:
    if "/sample_inputs/" not in name:
        return data
    buffer = io.BytesIO()
    torch.save(Evil(), buffer)
    return buffer.getvalue()


def opaque_constant(name: str, data: bytes) -> bytes:
    if not name.endswith("constants_config.json"):
        return data
    entry = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    return json.dumps({"config": {"evil": entry}}).encode()


RUN = "__import__('os').mkdir(__import__('os').environ['RELIGHT_TEST_EVIL'])"
FORGED: dict[str, Callable[[str, bytes], bytes]] = {
    "a pickled weight": pickled_weight,
    "pickled sample inputs": pickled_samples,
    "an opaque object": opaque_constant,
    "a guard": in_program('"guards_code": []', f'"guards_code": ["{RUN}"]'),
    "an expression": in_program('"expr_str": "', f'"expr_str": "{RUN}+'),
    "a call of PyTorch": in_program("torch.ops.aten.relu.default", "torch.os.mkdir"),
    "a call of an operator": in_program("torch.ops.aten.relu.default", "_operator.attrgetter"),
}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED.keys())
def test_an_exported_program_with_code_in_it_is_refused(
    change: Callable[[str, bytes], bytes], code: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = tmp_path / "evil"
    monkeypatch.setenv("RELIGHT_TEST_EVIL", str(evil))
    path = export(code.Network(), tmp_path / "model.pt2", torch.zeros(2, 4))
    rewrite(path, lambda name, data: data)
    Torch().open(path).run({"x": X})
    before = path.read_bytes()
    rewrite(path, change, {"data/constants/opaque_obj_0": pickle.dumps(Evil())} if change is opaque_constant else None)
    assert path.read_bytes() != before, "the forgery is in the file"
    with pytest.raises(CorruptWeights, match=r"is a pickle|is not an operator|is not an expression"):
        Torch().open(path)
    assert not evil.exists()


def test_what_torch_export_would_have_run(tmp_path: Path, code: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason for looking first: PyTorch itself runs what the sample inputs of a forged file say."""
    evil = tmp_path / "evil"
    monkeypatch.setenv("RELIGHT_TEST_EVIL", str(evil))
    path = export(code.Network(), tmp_path / "model.pt2", torch.zeros(2, 4))
    rewrite(path, pickled_samples)
    with contextlib.suppress(Exception):
        torch.export.load(str(path))
    assert evil.exists()


@pytest.mark.parametrize("legacy", [False, True], ids=["archive", "old format"])
def test_a_pickle_is_refused_by_name(legacy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = tmp_path / "evil"
    monkeypatch.setenv("RELIGHT_TEST_EVIL", str(evil))
    path = tmp_path / "model.pt"
    torch.save({"evil": Evil()}, str(path), _use_new_zipfile_serialization=not legacy)
    with pytest.raises(CorruptWeights, match=r"model\.pt is a pickle.*none is loaded; save the model as"):
        Torch().open(path, declared=DECLARED)
    assert not evil.exists()


@pytest.mark.parametrize("name", ["model.pt", "model.pt2", "model.safetensors"])
@pytest.mark.parametrize("content", [b"", b"no model", b"PK\x03\x04cut"], ids=["empty", "text", "cut"])
def test_a_corrupt_file_is_named(name: str, content: bytes, code: Any, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    declared = Declared(DECLARED.inputs, DECLARED.outputs, parameters={"class": "net:Network"})
    with pytest.raises(CorruptWeights, match=r"cannot be read|cannot read") as refused:
        Torch().open(path, declared=declared)
    assert str(path) in refused.value.message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingWeights, match=r"there is no model file .*model\.pt2"):
        Torch().open(tmp_path / "model.pt2")


def test_threads_are_those_that_were_given(code: Any, tmp_path: Path) -> None:
    path = export(code.Network(), tmp_path / "model.pt2", torch.zeros(2, 4))
    session = Torch().open(path, threads=1)
    assert torch.get_num_threads() == session.placement.threads == 1
    assert session.placement.describe()["device"] == "cpu"


def test_a_gpu_that_is_not_there_is_refused(code: Any, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    path = export(code.Network(), tmp_path / "model.pt2", torch.zeros(2, 4))
    with pytest.raises(PlatformError, match="asks for KIND_GPU, and PyTorch sees no GPU"):
        Torch().open(path, declared=Declared(kind="gpu"))


def test_a_missing_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(RelightError, match=r"install relight\[torch\]"):
        Torch().open(tmp_path / "model.pt")
