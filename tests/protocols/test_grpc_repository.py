"""V2 over gRPC where the models are a repository's: loaded on demand, by version, let go of, counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from modelrepo.tiny import put, scaling
from protocols.calling import called
from tritonclient.utils import InferenceServerException

from relight.sdk import ModelServer


@pytest.fixture
def client(tmp_path: Path) -> Iterator[triton.InferenceServerClient]:
    repository = tmp_path / "models"
    put(repository, "double", 1, scaling(2))
    put(repository, "scale", 1, scaling(3), "version_policy: { all: {} }")
    put(repository, "scale", 2, scaling(5))
    environ = {"RELIGHT_REPOSITORY": repository.as_uri(), "RELIGHT_CACHE": str(tmp_path / "cache")}
    with called(ModelServer(), **environ) as here, here.client() as client:
        yield client


def infer(client: triton.InferenceServerClient, model: str, version: str = "") -> tuple[float, str]:
    """The first number of the answer, and the version that answered."""
    given = triton.InferInput("x", [1, 4], "FP32").set_data_from_numpy(np.ones((1, 4), np.float32))
    answer = client.infer(model, [given], model_version=version)
    return float(answer.as_numpy("y")[0, 0]), answer.get_response().model_version


def refused(client: triton.InferenceServerClient, model: str, version: str = "") -> str:
    with pytest.raises(InferenceServerException) as raised:
        infer(client, model, version)
    return str(raised.value.status())


def states(client: triton.InferenceServerClient) -> dict[tuple[str, str], str]:
    index = client.get_model_repository_index()
    return {(model.name, model.version): model.state for model in index.models}


def test_models_are_loaded_when_they_are_called(client: triton.InferenceServerClient) -> None:
    assert set(states(client).values()) == {"UNAVAILABLE"}
    assert client.is_model_ready("double"), "a call for it would be worked on"
    assert infer(client, "double") == (2.0, "1")
    assert infer(client, "scale") == (5.0, "2")
    assert infer(client, "scale", "1") == (3.0, "1")
    assert states(client) == {("double", "1"): "READY", ("scale", "1"): "READY", ("scale", "2"): "READY"}
    assert list(client.get_model_metadata("scale").versions) == ["1", "2"]
    assert refused(client, "scale", "3") == "StatusCode.NOT_FOUND"
    assert refused(client, "none") == "StatusCode.NOT_FOUND"


def test_load_with_a_configuration_and_unload(client: triton.InferenceServerClient) -> None:
    client.load_model("scale", config=json.dumps({"version_policy": {"specific": {"versions": [1]}}}))
    assert infer(client, "scale") == (3.0, "1")
    client.unload_model("scale")
    assert refused(client, "scale") == "StatusCode.UNAVAILABLE"
    assert not client.is_model_ready("scale")
    assert infer(client, "double") == (2.0, "1")
    client.load_model("scale")
    assert infer(client, "scale")[0] in (3.0, 5.0)
    with pytest.raises(InferenceServerException) as raised:
        client.load_model("scale", config="{}", files={"file:1/model.onnx": scaling(7)})
    assert raised.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_the_configuration_is_the_one_that_is_acted_on(client: triton.InferenceServerClient) -> None:
    config = client.get_model_config("scale", "2").config
    assert (config.name, config.backend, list(config.version_policy.all.ListFields())) == ("scale", "onnxruntime", [])
    assert [(tensor.name, list(tensor.dims)) for tensor in config.output] == [("y", [4])]
    assert client.get_model_config("double").config.max_batch_size == config.max_batch_size
    with pytest.raises(InferenceServerException) as raised:
        client.get_model_config("none")
    assert raised.value.status() == "StatusCode.NOT_FOUND"


def test_statistics_of_each_version(client: triton.InferenceServerClient) -> None:
    for version in ("1", "2", "2"):
        infer(client, "scale", version)
    infer(client, "double")
    counts = {
        (model.name, model.version): model.inference_count for model in client.get_inference_statistics().model_stats
    }
    assert counts == {("scale", "1"): 1, ("scale", "2"): 2, ("double", "1"): 1}
    (one,) = client.get_inference_statistics("scale", "2").model_stats
    assert one.inference_stats.success.count == 2
    with pytest.raises(InferenceServerException) as raised:
        client.get_inference_statistics("none")
    assert raised.value.status() == "StatusCode.NOT_FOUND"
