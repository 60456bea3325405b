"""The clients that people have: openai's and Triton's, unchanged."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import openai
import pytest
from programs.hosting import Running, running

TEXTS = ["hello world", "größe"]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running("replica", "embedder", tmp_path_factory.mktemp("clients")) as program:
        yield program.ready()


@pytest.fixture(scope="module")
def client(embedder: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{embedder.port}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def triton() -> ModuleType:
    with warnings.catch_warnings():
        # Its dependencies warn of themselves when they are imported.
        warnings.simplefilter("ignore")
        return pytest.importorskip("tritonclient.http", exc_type=RuntimeError)


def test_openai_embeddings(client: openai.OpenAI) -> None:
    # The client asks for base64 unless it is told otherwise, and reads it back into numbers.
    asked = client.embeddings.create(model="embedder", input=TEXTS)
    plain = client.embeddings.create(model="embedder", input=TEXTS, encoding_format="float")
    assert [item.embedding for item in asked.data] == [item.embedding for item in plain.data]
    assert [item.index for item in asked.data] == [0, 1]
    assert asked.data[0].embedding[0] == len("hello world") / 8
    assert asked.usage.total_tokens == 3


def test_openai_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.embeddings.create(model="gpt", input="a")
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as empty:
        client.embeddings.create(model="embedder", input="")
    assert (empty.value.param, empty.value.type) == ("input", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as tokens:
        client.embeddings.create(model="embedder", input=[1, 2])
    assert tokens.value.param == "input"


def test_openai_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["embedder"]
    assert client.models.retrieve("embedder").id == "embedder"


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_triton_infer(embedder: Running, triton: ModuleType, binary: bool) -> None:
    client = triton.InferenceServerClient(f"127.0.0.1:{embedder.port}")
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("embedder")
    assert client.get_model_metadata("embedder")["outputs"][0]["shape"] == [-1, 4]
    texts = triton.InferInput("text", [2], "BYTES")
    texts.set_data_from_numpy(np.array([text.encode() for text in TEXTS], dtype=object), binary_data=binary)
    wanted = [triton.InferRequestedOutput("embedding", binary_data=binary)]
    result = client.infer("embedder", [texts], outputs=wanted, request_id="7")
    assert result.get_response()["id"] == "7"
    assert result.as_numpy("embedding").tolist()[0][0] == len(TEXTS[0]) / 8
    assert result.as_numpy("tokens") is None
    client.close()


def test_triton_error(embedder: Running, triton: ModuleType) -> None:
    client = triton.InferenceServerClient(f"127.0.0.1:{embedder.port}")
    numbers = triton.InferInput("text", [1], "FP32")
    numbers.set_data_from_numpy(np.zeros(1, np.float32))
    with pytest.raises(Exception, match="input 'text' is BYTES, got FP32"):
        client.infer("embedder", [numbers])
    client.close()
