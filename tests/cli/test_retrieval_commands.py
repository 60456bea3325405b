"""``relight index`` and ``relight eval``, as they are called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relight.cli.encoder import push_encoder
from relight.cli.main import main
from relight.retrieval.qdrant import Qdrant
from relight.retrieval.vectors import Row, Space


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


@pytest.fixture
def store(tmp_path: Path) -> str:
    pytest.importorskip("qdrant_client", reason="qdrant-client (relight[qdrant]) is not installed")
    folder = tmp_path / "qdrant"
    opened = Qdrant(str(folder))
    opened.ensure(Space(3, "minilm"))
    vectors = np.random.default_rng(0).normal(size=(20, 3))
    opened.upsert([Row(f"d{n}", "0", "text", [float(x) for x in vector]) for n, vector in enumerate(vectors)])
    opened.close()
    return f"qdrant://{folder}"


def test_a_plan_without_a_store(capsys: pytest.CaptureFixture[str]) -> None:
    size = ("--rows", "5000000", "--dimension", "768")
    code, out, _ = run(capsys, "index", "plan", *size, "--memory", "8Gi", "-o", "json")
    assert code == 0
    assert json.loads(out)["kind"] == "DISKANN"
    code, out, _ = run(capsys, "index", "plan", *size, "--memory", "64Gi")
    assert code == 0
    assert out.splitlines()[0].split() == ["INDEX", "MEMORY", "BUILD", "SEARCH"]
    assert out.splitlines()[1].startswith("HNSW")
    assert "nothing answers sooner" in " ".join(out.split())


def test_status_plan_and_build(capsys: pytest.CaptureFixture[str], store: str) -> None:
    code, out, _ = run(capsys, "index", "status", "--store", store, "--recall", "-o", "json")
    assert code == 0
    found = json.loads(out)
    assert (found["rows"], found["model"], found["index"], found["recall@10"]) == (20, "minilm", "FLAT", 1.0)
    code, out, _ = run(capsys, "index", "plan", "--store", store)
    assert (code, out.splitlines()[1].split()[0]) == (0, "FLAT")
    code, out, _ = run(capsys, "index", "build", "--store", store)
    assert (code, "documents has FLAT already" in out) == (0, True)
    code, out, _ = run(capsys, "index", "rebuild", "--store", store)
    assert (code, "FLAT → FLAT over 20 rows" in out) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("status", "nobody"), "there is no collection 'nobody' in this store"),
        (("rebuild", "--kind", "IVF_PQ"), "this store builds FLAT, and not IVF_PQ"),
        (("plan", "--memory", "much"), "--memory: 'much' is not a quantity"),
        (("plan", "--rows", "-5", "--dimension", "3"), "--rows"),
        (("plan", "--rows", "5", "--dimension", "0"), "--dimension"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_cannot_be_done_is_a_sentence(
    capsys: pytest.CaptureFixture[str], store: str, arguments: tuple[str, ...], sentence: str
) -> None:
    code, _, err = run(capsys, "index", *arguments, "--store", store)
    assert code != 0
    assert sentence in err
    assert "Traceback" not in err


def test_no_store_at_all(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIGHT_HOME", str(tmp_path))
    code, _, err = run(capsys, "index", "status")
    assert code != 0
    assert "no vector store: VECTOR_STORE is not set" in err


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    folder = tmp_path / "set"
    (folder / "qrels").mkdir(parents=True)
    texts = {
        "zip": "Tools to create, read and append archives in the ZIP format.",
        "csv": "Classes to read and write tabular data in which commas separate the values.",
        "mail": "A client that sends messages to any machine with an SMTP daemon.",
        "temp": "Creates temporary files and directories, which are removed afterwards.",
    }
    questions = {"zip": "unpack an archive", "csv": "comma separated table", "mail": "email"}
    write = lambda rows: "\n".join(json.dumps({"_id": key, "text": text}) for key, text in rows.items())  # noqa: E731
    (folder / "corpus.jsonl").write_text(write(texts))
    (folder / "queries.jsonl").write_text(write(questions))
    lines = ["query-id\tcorpus-id\tscore", *(f"{key}\t{key}\t1" for key in questions)]
    (folder / "qrels" / "test.tsv").write_text("\n".join(lines))
    return folder


def test_an_evaluation(
    capsys: pytest.CaptureFixture[str], dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = (tmp_path / "models").as_uri()
    push_encoder(repository, lambda text: None)
    monkeypatch.setenv("RELIGHT_REPOSITORY", repository)
    monkeypatch.setenv("RELIGHT_HOME", str(tmp_path / "home"))
    vectors = tmp_path / "vectors.npy"
    code, out, err = run(capsys, "eval", str(dataset), "-o", "json", "--vectors", str(vectors))
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    modes = found["sets"]["test"]["modes"]
    assert set(modes) == {"bm25", "dense", "hybrid", "hybrid+rerank"}
    assert modes["dense"]["ndcg@10"]["mean"] == 1.0
    assert 0 < modes["bm25"]["ndcg@10"]["mean"] < 1
    assert np.load(vectors).shape == (4, 384)
    code, out, _ = run(capsys, "eval", str(dataset), "--mode", "dense", "--limit", "2", "--vectors", str(vectors))
    assert code == 0
    assert out.splitlines()[0] == "test: 2 questions, mean [95 % interval]"
    assert max(map(len, out.splitlines())) <= 80
    code, _, err = run(capsys, "eval", str(dataset), "--mode", "best")
    assert (code != 0, "--mode: expected bm25, dense" in err) == (True, True)
