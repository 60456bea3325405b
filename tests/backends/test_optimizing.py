"""Models made smaller or quicker, and compared: on small models made here, and an encoder from its wheel."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from needing import need

from relight.backends.graphs import SHIPPED, Graphs
from relight.backends.onnxruntime import OnnxRuntime, library
from relight.backends.optimizing import plans, samples
from relight.backends.optimizing.agreement import compare
from relight.backends.optimizing.trial import RECORD, Way, attempt, examine
from relight.base.errors import BadInput, MissingWeights, NotFound, PlatformError, RelightError, Unprocessable
from relight.cli.encoder import encoder_files
from relight.cli.main import main
from relight.store.repository import Repository
from relight.wire.tensors import Array, TensorSpec

onnx = need("onnx", "optimize")

RANDOM = np.random.default_rng(5)
ROWS = RANDOM.uniform(-1, 1, (40, 16)).astype(np.float32)


def mlp(path: Path, width: int = 64, scale: float = 0.3) -> Path:
    """16 → width → 4, in FP32, with a free batch."""
    helper, numbers = onnx.helper, np.random.default_rng(3)
    weights = {
        "w1": numbers.standard_normal((16, width)).astype(np.float32) * scale,
        "b1": numbers.standard_normal(width).astype(np.float32),
        "w2": numbers.standard_normal((width, 4)).astype(np.float32) * scale,
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h1"]),
        helper.make_node("Add", ["h1", "b1"], ["h2"]),
        helper.make_node("Relu", ["h2"], ["h3"]),
        helper.make_node("MatMul", ["h3", "w2"], ["y"]),
    ]
    return save(path, nodes, weights, 4)


def save(path: Path, nodes: list[Any], weights: dict[str, Array], outputs: int) -> Path:
    helper = onnx.helper
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 16])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", outputs])],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(path))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A version's folder: the model, and a file that belongs to it."""
    mlp(tmp_path / "version" / "model.onnx")
    (tmp_path / "version" / "labels.txt").write_text("a\nb\nc\nd\n")
    return tmp_path / "version"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    np.savez(tmp_path / "rows.npz", x=ROWS)
    return tmp_path / "rows.npz"


WAYS: dict[Way, str] = {"int8": "MatMulInteger", "int8-static": "DequantizeLinear", "fp16": "Cast", "fuse": ""}


@pytest.mark.parametrize("way", WAYS, ids=WAYS)
def test_an_onnx_file_is_made_so_and_still_answers(way: Way, folder: Path, rows: Path, tmp_path: Path) -> None:
    before = (folder / "model.onnx").read_bytes()
    subject = examine(folder, inputs=rows if way != "int8-static" else None, calibration=rows)
    (target := tmp_path / "made").mkdir()
    trial = attempt(subject, way, target, seconds=0)
    assert (folder / "model.onnx").read_bytes() == before
    assert (target / "labels.txt").read_text().startswith("a")
    least = 0.96 if way == "int8-static" else 0.99  # ranges of 30 random rows
    assert trial.agreement >= least
    trial.refuse(least)
    assert trial.placed["device"] == "cpu"
    assert min(trial.before.size, trial.after.size, trial.before.p50, trial.after.load, trial.after.throughput) > 0
    assert trial.after.batch == 8
    session = OnnxRuntime().open(target / "model.onnx")
    want = OnnxRuntime().open(folder / "model.onnx").run({"x": ROWS})["y"]
    np.testing.assert_allclose(session.run({"x": ROWS})["y"], want, atol=0.5)
    session.close()
    kinds = {node.op_type for node in onnx.load(str(target / "model.onnx")).graph.node}
    assert WAYS[way] in kinds or way == "fuse"
    assert (target / "model.onnx").read_bytes() == before or way != "fuse"


def test_ranges_are_learned_from_others_than_are_compared(folder: Path, rows: Path) -> None:
    subject = examine(folder, calibration=rows)
    assert (len(subject.samples), len(subject.calibration)) == (10, 30)
    taken = np.concatenate([sample["x"] for sample in (*subject.samples, *subject.calibration)])
    assert sorted(map(tuple, taken.tolist())) == sorted(map(tuple, ROWS.tolist()))


def test_a_fused_graph_is_loaded_where_it_fits(folder: Path, rows: Path, tmp_path: Path) -> None:
    (target := tmp_path / "made").mkdir()
    attempt(examine(folder, inputs=rows), "fuse", target, seconds=0)
    path, version = target / "model.onnx", library().__version__
    graphs = Graphs.shipped(path, version)
    assert graphs is not None
    assert graphs.chosen() is True
    assert graphs.folder.relative_to(target).parts[0] == SHIPPED
    session = OnnxRuntime().open(path)
    assert session._path == graphs.graph
    session.close()
    assert Graphs.shipped(path, "1.0.0") is None, "another version of the runtime loads the model's own file"

    (target / "model.onnx").unlink()  # a link to the original
    mlp(path, scale=0.2)
    assert Graphs.shipped(path, version) is None, "other weights were put there: the graph is not theirs"
    session = OnnxRuntime().open(path)
    assert session._path == path
    session.close()


def test_a_wrong_one_is_refused_with_the_figures(folder: Path, rows: Path, tmp_path: Path) -> None:
    (target := tmp_path / "made").mkdir()
    trial = attempt(examine(folder, inputs=rows), "int8", target, seconds=0)
    assert trial.agreement < 1
    with pytest.raises(Unprocessable, match=r"'y' has 0\.\d{4}, expected at least 1.0; nothing was written"):
        trial.refuse(1.0)


def test_what_cannot_be_made(folder: Path, rows: Path, tmp_path: Path) -> None:
    (made := tmp_path / "made").mkdir()
    attempt(examine(folder, inputs=rows), "int8", made, seconds=0)
    for number, (source, way, sentence) in enumerate(
        [
            (made, "int8", "it is INT8 already"),
            (made, "fp16", "INT8 already: make FP16 of the version"),
            (folder, "tensorrt", r"install relight\[tensorrt\]|none is visible"),
        ]
    ):
        (target := tmp_path / f"again{number}").mkdir()
        with pytest.raises(RelightError, match=sentence):
            attempt(examine(source, inputs=rows), way, target, seconds=0)  # type: ignore[arg-type]
    (target := tmp_path / "none").mkdir()
    plain = save(tmp_path / "plain" / "model.onnx", [onnx.helper.make_node("Relu", ["x"], ["y"])], {}, 16)
    with pytest.raises(Unprocessable, match="it has no layer that INT8 helps"):
        attempt(examine(plain.parent, inputs=rows), "int8", target, seconds=0)


def test_a_missing_package_names_the_extra(folder: Path, rows: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "onnx", None)
        with pytest.raises(PlatformError, match=r"install relight\[optimize\]"):
            attempt(examine(folder, inputs=rows), "int8", tmp_path, seconds=0)


def test_torchscript_in_int8(rows: Path, tmp_path: Path) -> None:
    torch = need("torch", "torch")
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)).eval()
    (folder := tmp_path / "version").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.trace(module, (torch.zeros(1, 16),)).save(str(folder / "model.pt"))
    (target := tmp_path / "made").mkdir()
    trial = attempt(examine(folder, inputs=rows), "int8", target, seconds=0)
    assert trial.agreement >= 0.99
    assert trial.after.size < trial.before.size
    assert [found.output for found in trial.agreements] == ["OUTPUT__0"]
    with pytest.raises(Unprocessable, match="--fp16 is for ONNX files"):
        attempt(examine(folder, inputs=rows), "fp16", target, seconds=0)


SPECS = [TensorSpec("a", "INT64", (-1, 2)), TensorSpec("b", "FP32", (-1,))]
GOOD = {
    "lists": {"a": [[1, 2]], "b": [0.5]},
    "a V2 request": {
        "inputs": [
            {"name": "a", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]},
            {"name": "b", "datatype": "FP32", "shape": [1], "data": [0.5]},
        ]
    },
    "several": [{"a": [[1, 2]], "b": [0.5]}, {"a": [[1, 2], [3, 4]], "b": [0.5, 1]}],
}


@pytest.mark.parametrize("value", GOOD.values(), ids=GOOD)
def test_inputs_from_json(value: Any, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text(json.dumps(value))
    found = samples.from_file(tmp_path / "in.json", SPECS)
    assert len(found) == (len(value) if isinstance(value, list) else 1)
    assert found[0]["a"].tolist() == [[1, 2]]
    assert (found[0]["a"].dtype, found[0]["b"].dtype) == (np.int64, np.float32)


BAD = {
    "missing": ({"a": [[1, 2]]}, "b: is not in"),
    "unknown": ({"a": [[1, 2]], "b": [1], "c": [1]}, "c: the model has no such input; it has a, b"),
    "shape": ({"a": [[1, 2, 3]], "b": [1]}, r"a: expected shape \[-1, 2\], got \[1, 3\]"),
    "text": ({"a": [["x", "y"]], "b": [1]}, "a: invalid literal"),
    "no object": ([3], "expected an object"),
    "nothing": ([], "holds no input"),
}


@pytest.mark.parametrize(("value", "sentence"), BAD.values(), ids=BAD)
def test_inputs_that_do_not_fit(value: Any, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text(json.dumps(value))
    with pytest.raises(BadInput, match=sentence):
        samples.from_file(tmp_path / "in.json", SPECS)


def test_arrays_that_do_not_fit(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", a=np.zeros((3, 2), np.float64), b=np.zeros(3, np.float32))
    with pytest.raises(BadInput, match="a: expected INT64, got numbers of type float64"):
        samples.from_file(tmp_path / "in.npz", SPECS)
    np.savez(tmp_path / "in.npz", a=np.zeros((3, 2), np.int64), b=np.zeros(2, np.float32))
    with pytest.raises(BadInput, match="a has 3, b has 2"):
        samples.from_file(tmp_path / "in.npz", SPECS)
    np.savez(tmp_path / "in.npz", a=np.array([{"pickled": 1}], dtype=object))
    with pytest.raises(BadInput, match="is no file of numpy arrays"):
        samples.from_file(tmp_path / "in.npz", SPECS)
    with pytest.raises(NotFound):
        samples.from_file(tmp_path / "nothing.npz", SPECS)
    (tmp_path / "in.txt").write_text("text")
    with pytest.raises(MissingWeights, match=r"texts need a tokenizer\.json"):
        samples.from_texts(tmp_path / "in.txt", tmp_path / "tokenizer.json", SPECS)


NAN = float("nan")
AGREEING: dict[str, tuple[Array, Array, float, float, float | None]] = {
    # before, after: the largest distance, the least cosine, top-1
    "equal": (np.eye(3), np.eye(3), 0, 1, 1),
    "one row wrong": (np.eye(3), np.array([[1.0, 0, 0], [0, 1, 0], [0, 1, 0]]), 1, 0, 2 / 3),
    "scaled": (np.ones((2, 2)), 2 * np.ones((2, 2)), 1, 1, 1),
    "nothing": (np.zeros((2, 2)), np.zeros((2, 2)), 0, 1, 1),
    "nothing became something": (np.zeros((1, 2)), np.ones((1, 2)), 1, 0, 1),
    "not a number in both": (np.array([[1, NAN]]), np.array([[1, NAN]]), 0, 1, 1),
    "became no number": (np.array([[1.0, 2]]), np.array([[1, NAN]]), np.inf, 0, 1),
    "another shape": (np.ones((1, 2)), np.ones((1, 3)), np.inf, 0, None),
    "one number a row": (np.array([[1.0], [2.0]]), np.array([[1.0], [2.5]]), 0.5, 1, None),
    "labels": (np.array([1, 2, 3, 4]), np.array([1, 2, 3, 7]), 3, 0.75, 0.75),
    "text": (np.array([b"a", b"b"], object), np.array([b"a", b"b"], object), 0, 1, 1),
}


@pytest.mark.parametrize(("before", "after", "distance", "cosine", "top1"), AGREEING.values(), ids=AGREEING)
def test_agreement(before: Array, after: Array, distance: float, cosine: float, top1: float | None) -> None:
    (found,) = compare([({"y": before}, {"y": after})])
    assert found.max_abs == distance
    assert found.cosine == pytest.approx(cosine)
    assert found.top1 == (top1 if top1 is None else pytest.approx(top1))


def test_a_lost_output_does_not_agree() -> None:
    (found,) = compare([({"y": np.eye(2)}, {"z": np.eye(2)})])
    assert found.cosine == 0


def test_profiles_of_plans_reach_over_the_samples() -> None:
    seen = [(1, 5), (1, 40), (1, 12)]
    assert plans.shapes((-1, -1), seen) == ((1, 5), (1, 12), (plans.MAX_ROWS, 40))
    assert plans.shapes((-1, 3), [(2, 3)]) == ((1, 3), (2, 3), (plans.MAX_ROWS, 3))


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["model", "optimize", *arguments])
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


@pytest.fixture
def repository(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setenv("RELIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RELIGHT_REPOSITORY", (tmp_path / "models").as_uri())
    there = Repository.open((tmp_path / "models").as_uri())
    assert there.push(folder, "mlp") == 1
    return there


def test_the_command_writes_a_version(repository: Repository, rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["mlp", "--int8", "--inputs", str(rows), "--seconds", "0"]
    code, out, _ = run(options, capsys)
    assert code == 0
    for text in ("INT8", "BEFORE", "AFTER", "size", "load to first answer", "latency p95", "throughput, batch 8"):
        assert text in out
    assert "answers to 40 samples, on cpu" in out
    assert "mlp version 2 written to" in out
    assert {file.path for file in repository.manifest("mlp", 2).files} == {"model.onnx", "labels.txt", RECORD}
    record = json.loads(repository.objects.read(f"mlp/2/{RECORD}"))
    assert record["of"]["version"] == 1
    assert record["way"] == "int8"
    assert record["agreements"][0]["rows"] == 40

    code, out, _ = run([*options, "--version", "1", "--as", "small", "-o", "json"], capsys)
    assert code == 0
    assert json.loads(out)["model"] == "small"
    assert repository.versions("small") == [1]


REFUSED: dict[str, tuple[Callable[[Path], list[str]], int, str]] = {
    "answers differ": (lambda rows: ["--int8", "--inputs", str(rows), "--min-agreement", "1"], 7, "other answers"),
    "no inputs": (lambda rows: ["--int8"], 7, "real inputs are needed"),
    "no way": (lambda rows: [], 2, "expected one of --int8, --int8-static"),
    "two ways": (lambda rows: ["--int8", "--fp16"], 2, "got --int8, --fp16"),
    "no such file": (lambda rows: ["--int8", "--inputs", "nothing.npz"], 4, "no such file"),
    "no inputs in it": (lambda rows: ["--int8", "--inputs", __file__], 7, "a file of inputs ending in .npz or .json"),
    "no such version": (lambda rows: ["--int8", "--inputs", str(rows), "--version", "9"], 4, "has no version 9"),
}


@pytest.mark.parametrize(("options", "want", "sentence"), REFUSED.values(), ids=REFUSED)
def test_the_command_refuses_and_writes_nothing(
    options: Callable[[Path], list[str]],
    want: int,
    sentence: str,
    repository: Repository,
    rows: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = run(["mlp", "--seconds", "0", *options(rows)], capsys)
    assert (code, sentence in err) == (want, True), err
    assert repository.versions("mlp") == [1]


def test_a_plan_is_no_version_of_a_model_that_says_otherwise(
    repository: Repository, rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.objects.put("mlp/config.pbtxt", [b'name: "mlp"\nplatform: "onnxruntime_onnx"\n'])
    code, _, err = run(["mlp", "--tensorrt", "--inputs", str(rows)], capsys)
    assert code == 5
    assert "such as --as mlp-trt" in err


def test_an_encoder_by_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        files = encoder_files()
    except MissingWeights as error:
        pytest.skip(str(error))
    (folder := tmp_path / "encoder").mkdir()
    for name, path in files.items():
        (folder / name).symlink_to(path)
    monkeypatch.setenv("RELIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RELIGHT_REPOSITORY", (tmp_path / "models").as_uri())
    Repository.open((tmp_path / "models").as_uri()).push(folder, "minilm")
    (tmp_path / "texts.txt").write_text("What is the capital of France?\n\nParis.\nA function that scales to zero.\n")
    code, out, _ = run(["minilm", "--fuse", "--texts", str(tmp_path / "texts.txt"), "--seconds", "0"], capsys)
    assert code == 0
    assert "answers to 3 samples" in out
    assert "last_hidden_state" in out
