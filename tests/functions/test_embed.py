"""embed: the same vectors as a direct run of the model, whatever else is computed with them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tokenizers import Tokenizer

from relight.base.errors import BadInput, CorruptWeights, NotFound
from relight.wire.cloudevents import Event
from relight.wire.tensors import TensorSpec

TEXTS = [
    "parse command line options",
    "compute a checksum of a file",
    "",
    "a",
    "naïve café, 漢字, 😀 and \x00",
    "The quick brown fox jumps over the lazy dog. " * 8,
    "many words beyond what the encoder reads " * 60,
    "hello world",
    "hello there",
]


@pytest.fixture(scope="module")
def embed(start: Callable[..., Any], encoder_files: Path) -> Iterator[Any]:
    function = start("embed", files=encoder_files)
    yield function
    function.unload()


@pytest.fixture(scope="module")
def direct(encoder_files: Path) -> Callable[[str], Any]:
    """One text by onnxruntime alone: tokenise, run, mean over all tokens, unit length."""
    session = onnxruntime.InferenceSession(str(encoder_files / "model.onnx"), providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(encoder_files / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)

    def direct(text: str) -> Any:
        ids = np.array([tokenizer.encode(text).ids], np.int64)
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        states = session.run(["last_hidden_state"], feed)[0][0]
        mean = states.mean(axis=0)
        return mean / np.linalg.norm(mean)

    return direct


def infer(embed: Any, texts: list[str]) -> Any:
    array = np.empty(len(texts), object)
    array[:] = [text.encode() for text in texts]
    return embed.compute({"text": array})


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:20])
def test_agrees_with_a_direct_run(embed: Any, direct: Callable[[str], Any], text: str) -> None:
    out = infer(embed, [text])
    assert out["embedding"].shape == (1, 384)
    assert out["embedding"].dtype == np.float32
    np.testing.assert_allclose(out["embedding"][0], direct(text), atol=1e-5)
    assert np.linalg.norm(out["embedding"][0]) == pytest.approx(1, abs=1e-5)


def test_a_text_has_the_same_vector_among_others(embed: Any, direct: Callable[[str], Any]) -> None:
    out = infer(embed, TEXTS * 3)
    for row, text in enumerate(TEXTS * 3):
        np.testing.assert_allclose(out["embedding"][row], direct(text), atol=1e-5, err_msg=text[:40])
    assert out["tokens"].dtype == np.int32
    assert out["tokens"].tolist()[:4] == [7, 9, 2, 3]
    assert out["tokens"].max() == 256


def test_close_in_meaning_is_close_in_space(embed: Any) -> None:
    vectors = infer(embed, ["read a csv file", "parse comma separated values", "play the violin"])["embedding"]
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2


def test_no_text_at_all(embed: Any) -> None:
    out = infer(embed, [])
    assert (out["embedding"].shape, out["tokens"].shape) == ((0, 384), (0,))


def test_bytes_that_are_no_text_spoil_no_neighbour(embed: Any, direct: Callable[[str], Any]) -> None:
    array = np.empty(2, object)
    array[:] = [b"\xff\xfe", b"hello world"]
    out = embed.compute({"text": array})["embedding"]
    np.testing.assert_allclose(out[1], direct("hello world"), atol=1e-5)
    assert np.isfinite(out).all()


def event(data: Any) -> Event:
    return Event("1", "/default/split", "dev.relight.chunks.v1", {}, json.dumps(data).encode())


def test_chunks_get_their_vectors(embed: Any, direct: Callable[[str], Any]) -> None:
    chunks = [{"id": "0", "start": 0, "end": 5, "text": "hello"}, {"id": "1", "text": "world"}]
    cause = event({"document": "d", "title": "greeting", "chunks": chunks, "metadata": {"lang": "en"}})
    reply = embed.event_reply(cause, embed.compute(embed.event_inputs(cause)))
    vectors = [chunk.pop("vector") for chunk in reply["chunks"]]
    assert reply == {
        "document": "d",
        "title": "greeting",
        "metadata": {"lang": "en"},
        "model": "minilm",
        "chunks": chunks,
    }
    np.testing.assert_allclose(vectors[1], direct("greeting\nworld"), atol=1e-5)
    json.dumps(vectors)


def test_a_document_without_chunks(embed: Any) -> None:
    cause = event({"document": "d", "chunks": []})
    reply = embed.event_reply(cause, embed.compute(embed.event_inputs(cause)))
    assert reply == {"document": "d", "model": "minilm", "chunks": []}


@pytest.mark.parametrize(
    ("data", "paths"),
    [
        ({"document": "d"}, ["chunks"]),
        ({"document": "d", "chunks": [1]}, ["chunks[0]"]),
        ({"document": "d", "chunks": [{"id": "0"}, {"id": 1, "text": "x"}]}, ["chunks[0].text", "chunks[1].id"]),
        (
            {"document": "d", "chunks": [{"id": "0", "text": "x", "start": -1, "end": True}]},
            ["chunks[0].start", "chunks[0].end"],
        ),
        ({"document": "d", "chunks": [{"id": "0", "text": "x"}, {"id": "0", "text": "y"}]}, ["chunks"]),
    ],
)
def test_every_mistake_of_an_event_is_named(embed: Any, data: Any, paths: list[str]) -> None:
    with pytest.raises(BadInput) as caught:
        embed.event_inputs(event(data))
    assert [problem.path for problem in caught.value.problems] == paths


def test_weights_that_are_cut_are_named(start: Callable[..., Any], encoder_files: Path, tmp_path: Path) -> None:
    shutil.copy(encoder_files / "tokenizer.json", tmp_path)
    (tmp_path / "model.onnx").write_bytes((encoder_files / "model.onnx").read_bytes()[:100_000])
    with pytest.raises(CorruptWeights, match=r"model\.onnx"):
        start("embed", files=tmp_path)


def test_a_tokenizer_that_is_missing_is_named(start: Callable[..., Any], encoder_files: Path, tmp_path: Path) -> None:
    shutil.copy(encoder_files / "model.onnx", tmp_path)
    with pytest.raises(NotFound, match=r"'minilm' version 1 has no tokenizer\.json"):
        start("embed", files=tmp_path)


class Rows:
    """A session that notes how many texts each run has."""

    inputs = (TensorSpec("input_ids", "INT64", [-1, -1]),)
    outputs = (TensorSpec("last_hidden_state", "FP32", [-1, -1, 4]),)

    def __init__(self) -> None:
        self.runs: list[tuple[int, ...]] = []

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        ids = inputs["input_ids"]
        self.runs.append(ids.shape)
        return {"last_hidden_state": np.repeat(ids[:, :, None], 4, axis=2).astype(np.float32)}


@pytest.mark.parametrize(
    ("graph", "texts", "runs"),
    [
        pytest.param(b"MatMul", ["a", "b c d e f g h i", "c"], [(2, 3), (1, 10)], id="equal-lengths-together"),
        pytest.param(b"DynamicQuantizeLinear", ["a", "b", "c"], [(1, 3)] * 3, id="a-graph-that-mixes-rows"),
        pytest.param(b"MatMul", ["w " * 300] * 20, [(16, 256), (4, 256)], id="no-more-than-fits"),
    ],
)
def test_which_texts_are_computed_together(
    package: Callable[[str], Any], encoder_files: Path, tmp_path: Path, graph: bytes, texts: list[str], runs: list[Any]
) -> None:
    shutil.copy(encoder_files / "tokenizer.json", tmp_path)
    (tmp_path / "model.onnx").write_bytes(graph)
    session = Rows()
    from relight.retrieval import encoder

    encoder.Encoder(tmp_path, session, encoder.read_tokenizer(tmp_path)).encode(texts)
    assert session.runs == runs
