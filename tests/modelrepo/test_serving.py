"""An existing Triton repository, served as it is."""

from __future__ import annotations

import json
import struct
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from modelrepo.conftest import Door
from modelrepo.tiny import passing, put, scaling
from programs.hosting import running
from runtime.serving import loaded

from relight.base.errors import NotFound
from relight.runtime.lifecycle import State
from relight.sdk import BadInput, ModelServer, Step
from relight.store.repository import Repository

Open = Callable[..., AbstractContextManager[Door]]


@pytest.fixture(scope="module")
def triton() -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("tritonclient.http", exc_type=RuntimeError)


def test_a_model_that_is_loaded_at_the_start_counts_by_phase(repository: Path, door: Open) -> None:
    put(repository, "double", 1, scaling(2))
    with door(RELIGHT_MODEL="double") as open_door:
        assert open_door.infer("double") == (200, (2.0, "1"))
        within, phases = open_door.function.within_load, open_door.here.engine.timeline.phases
    assert within["fetch"] > 0
    assert within["warmup"] > 0
    assert phases["fetch"] > within["fetch"]
    assert phases["warmup"] > within["warmup"]
    assert phases["load"] > 0


def test_models_are_loaded_when_they_are_asked_for(repository: Path, door: Open) -> None:
    put(repository, "double", 1, scaling(2))
    put(repository, "triple", 7, scaling(3))
    (repository / "empty").mkdir()
    with door() as open_door:
        assert open_door.index() == {
            ("double", "1"): ("UNAVAILABLE", "not loaded: the first request loads it"),
            ("triple", "7"): ("UNAVAILABLE", "not loaded: the first request loads it"),
        }
        assert open_door.ask("GET", "/v2/models")[1] == {"models": ["double", "triple"]}
        assert open_door.ask("GET", "/v2/models/double/ready")[0] == 200, "a request for it would be worked on"
        assert open_door.infer("double") == (200, (2.0, "1"))
        assert open_door.infer("triple/versions/7") == (200, (3.0, "7"))
        assert open_door.index()["double", "1"] == ("READY", "")
        assert open_door.metric("relight_models_loaded") == 2
        assert [entry["id"] for entry in open_door.ask("GET", "/v1/models")[1]["data"]] == ["double", "triple"]


UNKNOWN = {
    "model": ("nothing/infer", "there is no model 'nothing'"),
    "version": ("double/versions/9/infer", "there is no version 9 of model 'double'; its versions served are 1"),
    "no number": ("double/versions/x/infer", "there is no version 'x' of model 'double'; versions are numbers"),
    "no name": ("%20x/infer", "' x' is no name for a model"),
}


@pytest.mark.parametrize(("path", "message"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_unknown(path: str, message: str, repository: Path, door: Open) -> None:
    put(repository, "double", 1, scaling(2))
    with door() as open_door:
        for _ in range(2):
            status, answer = open_door.ask("POST", f"/v2/models/{path}", {})
            assert status == 404, answer
            assert message in answer["error"]
        assert open_door.ask("GET", f"/v2/models/{path.replace('/infer', '/ready')}")[0] == 404


def test_metadata_and_configuration_are_derived(repository: Path, door: Open) -> None:
    put(repository, "double", 1, scaling(2))
    with door() as open_door:
        tensor = {"datatype": "FP32", "shape": [-1, 4]}
        metadata = open_door.ask("GET", "/v2/models/double")[1]
        assert metadata.pop("parameters")["device"] == "cpu"
        assert metadata == {
            "name": "double",
            "versions": ["1"],
            "platform": "onnxruntime_onnx",
            "inputs": [{"name": "x", **tensor}],
            "outputs": [{"name": "y", **tensor}],
        }
        config = open_door.ask("GET", "/v2/models/double/config")[1]
        assert (config["max_batch_size"], config["input"][0]["dims"]) == (4, [4])
        assert (config["backend"], config["default_model_filename"]) == ("onnxruntime", "model.onnx")
        assert open_door.infer("double", rows=9) == (200, (2.0, "1")), "more rows than a batch are computed in parts"


def test_a_configuration_is_acted_on(repository: Path, door: Open) -> None:
    folder = put(repository, "flat", 1, passing("FP32", ["n", "m"]))
    (folder / "model.onnx").rename(folder / "net.onnx")
    (repository / "flat" / "config.pbtxt").write_text("""
        backend: "onnxruntime" max_batch_size: 8 default_model_filename: "net.onnx"
        input { name: "x" data_type: TYPE_FP32 dims: [ 1, -1 ] reshape { shape: [ -1 ] } }
        output { name: "y" data_type: TYPE_FP32 dims: [ -1, 1 ] reshape { shape: [ -1 ] } }
        optimization { priority: PRIORITY_MAX }""")
    with door() as open_door:
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 1, 3], "data": [1, 2, 3, 4, 5, 6]}]}
        status, answer = open_door.ask("POST", "/v2/models/flat/infer", body)
        assert status == 200, answer
        assert (answer["outputs"][0]["shape"], answer["outputs"][0]["data"]) == ([2, 3, 1], [1, 2, 3, 4, 5, 6])
        body["inputs"][0]["shape"] = [6, 1]  # type: ignore[index]
        status, answer = open_door.ask("POST", "/v2/models/flat/infer", body)
        assert (status, "takes [-1, 1, -1]" in answer["error"]) == (400, True)


def test_a_field_that_is_not_acted_on_is_logged_by_name(
    repository: Path, door: Open, caplog: pytest.LogCaptureFixture
) -> None:
    put(repository, "double", 1, scaling(2), "optimization { priority: PRIORITY_MAX }")
    with door() as open_door:
        assert open_door.infer("double")[0] == 200
    said = [record.getMessage() for record in caplog.records if "config.ignored" in record.getMessage()]
    assert said == ["config.ignored model=double: optimization.priority is not acted on in config.pbtxt"]


BROKEN = {
    "a configuration that cannot be read": ("max_batch: 2", "config.pbtxt of model 'm', line 1"),
    "one that does not fit the file": (
        'input { name: "z" data_type: TYPE_FP32 dims: 4 } output { name: "y" data_type: TYPE_FP32 dims: 4 }',
        "input[0].name: the file has no input 'z'",
    ),
    "a platform that is not served": ('platform: "tensorflow_savedmodel"', "'tensorflow_savedmodel' is not served"),
    "a file that is not there": ('default_model_filename: "net.onnx"', "there is no model file"),
    "a warm-up without its data": (
        'model_warmup { name: "w" batch_size: 1 inputs { key: "x" value'
        ' { data_type: TYPE_FP32 dims: 4 input_data_file: "w" } } }',
        "there is no file 'w' in the model's folder warmup",
    ),
}


@pytest.mark.parametrize(("config", "reason"), BROKEN.values(), ids=BROKEN.keys())
def test_a_model_that_cannot_be_loaded_is_told_and_harms_no_other(
    config: str, reason: str, repository: Path, door: Open
) -> None:
    put(repository, "m", 1, scaling(2), config)
    put(repository, "good", 1, scaling(2))
    with door() as open_door:
        for _ in range(2):
            status, error = open_door.infer("m")
            assert (status, reason in error) == (503, True), error
        assert open_door.infer("good") == (200, (2.0, "1"))
        assert open_door.ask("GET", "/v2/models/m/ready")[0] == 503
        state, told = open_door.index()["m", "1"]
        assert (state, reason in told) == ("UNAVAILABLE", True)
        status, answer = open_door.ask("POST", "/v2/repository/models/m/load")
        assert (status >= 400, reason in answer["error"]) == (True, True)
        # It is mended, and asked for by name.
        (repository / "m" / "config.pbtxt").write_text("")
        assert open_door.ask("POST", "/v2/repository/models/m/load") == (200, {"name": "m", "load": True})
        assert open_door.infer("m") == (200, (2.0, "1"))


VERSIONS = {
    "the latest by default": ("", {"3"}),
    "the latest two": ("version_policy { latest { num_versions: 2 } }", {"2", "3"}),
    "all": ("version_policy { all { } }", {"1", "2", "3"}),
    "specific ones": ("version_policy { specific { versions: [ 1, 2 ] } }", {"1", "2"}),
}


@pytest.mark.parametrize(("config", "want"), VERSIONS.values(), ids=VERSIONS.keys())
def test_versions(config: str, want: set[str], repository: Path, door: Open) -> None:
    for version in (1, 2, 3):
        put(repository, "m", version, scaling(version), config)
    put(repository, "m", 4, b"")
    (repository / "m" / "4" / "model.onnx").unlink()
    (repository / "m" / "04").mkdir()
    with door() as open_door:
        newest = max(want)
        assert open_door.infer("m") == (200, (float(newest), newest))
        served = {version for version in "123" if open_door.infer(f"m/versions/{version}")[0] == 200}
        assert served == want
        for version in want:
            assert open_door.infer(f"m/versions/{version}") == (200, (float(version), version))
        assert {version for _, version in open_door.index()} == want


def test_a_newest_version_that_is_broken_leaves_the_one_before(repository: Path, door: Open) -> None:
    put(repository, "m", 1, scaling(1), "version_policy { all { } }")
    put(repository, "m", 2, b"no model")
    with door() as open_door:
        assert open_door.infer("m")[0] == 503, "the newest was asked for, and its failure is news"
        assert open_door.infer("m/versions/1") == (200, (1.0, "1"))
        assert open_door.infer("m") == (200, (1.0, "1")), "the newest that is ready"


def test_an_older_version_does_not_stand_in_for_one_that_is_not_in_memory(repository: Path, door: Open) -> None:
    for version in (1, 2):
        put(repository, "m", version, scaling(version), "version_policy { all { } }")
    with door() as open_door:
        assert open_door.infer("m/versions/1") == (200, (1.0, "1"))
        assert open_door.infer("m") == (200, (2.0, "2")), "as in Triton, which loads all at the start"
        put(repository, "m", 3, scaling(3))
        assert open_door.infer("m") == (200, (2.0, "2")), "until load, or a poll, brings the new one"
        assert open_door.ask("POST", "/v2/repository/models/m/load")[0] == 200
        assert open_door.infer("m") == (200, (3.0, "3"))


def test_an_older_version_answers_where_the_newest_cannot_be_loaded(repository: Path, door: Open) -> None:
    put(repository, "m", 1, scaling(1), "version_policy { all { } }")
    put(repository, "m", 2, b"no model")
    with door() as open_door:
        assert open_door.infer("m/versions/1") == (200, (1.0, "1"))
        assert open_door.infer("m") == (200, (1.0, "1"))
        put(repository, "m", 2, scaling(2))
        assert open_door.ask("POST", "/v2/repository/models/m/load")[0] == 200
        assert open_door.infer("m") == (200, (2.0, "2"))


def test_warm_up_runs_before_the_first_request(repository: Path, door: Open) -> None:
    put(
        repository,
        "m",
        1,
        passing("INT64", ["n", 2]),
        """max_batch_size: 4
        input { name: "x" data_type: TYPE_INT64 dims: 2 } output { name: "y" data_type: TYPE_INT64 dims: 2 }
        model_warmup [
          { name: "zero" batch_size: 4 count: 2 inputs { key: "x" value { data_type: TYPE_INT64 dims: 2 zero_data: true } } },
          { name: "random" batch_size: 1 inputs { key: "x" value { data_type: TYPE_INT64 dims: 2 random_data: true } } },
          { name: "file" batch_size: 2 inputs { key: "x" value { data_type: TYPE_INT64 dims: 2 input_data_file: "ids" } } }
        ]""",  # noqa: E501
    )
    (repository / "m" / "warmup").mkdir()
    (repository / "m" / "warmup" / "ids").write_bytes(struct.pack("<2q", 7, 8))
    with door(RELIGHT_MODEL="m") as open_door:
        assert open_door.index()["m", "1"] == ("READY", "")
        assert open_door.ask("GET", "/v2/models/m/stats")[1]["model_stats"][0]["inference_count"] == 0
        (repository / "m" / "warmup" / "ids").write_bytes(b"short")
        assert open_door.ask("POST", "/v2/repository/models/m/load")[0] == 400, "it is read anew, and does not fit"


def test_statistics(repository: Path, door: Open) -> None:
    put(repository, "double", 1, scaling(2))
    with door() as open_door:
        assert open_door.ask("GET", "/v2/models/stats")[1] == {"model_stats": []}
        assert open_door.ask("GET", "/v2/models/double/stats")[0] == 404
        for rows in (1, 2, 2):
            assert open_door.infer("double", rows=rows)[0] == 200
        (stat,) = open_door.ask("GET", "/v2/models/double/versions/1/stats")[1]["model_stats"]
        assert (stat["name"], stat["version"]) == ("double", "1")
        assert (stat["inference_count"], stat["execution_count"]) == (5, 3)
        assert stat["inference_stats"]["success"]["count"] == 3
        assert stat["inference_stats"]["success"]["ns"] > 0
        assert [(batch["batch_size"], batch["compute_infer"]["count"]) for batch in stat["batch_stats"]] == [
            (1, 1),
            (2, 2),
        ]
        assert stat["last_inference"] > 1.7e12


def test_tritons_client(repository: Path, door: Open, triton: ModuleType) -> None:
    put(repository, "double", 1, scaling(2))
    put(repository, "triple", 1, scaling(3))
    with door() as open_door:
        client = triton.InferenceServerClient(f"127.0.0.1:{open_door.port}", network_timeout=60)
        assert client.is_server_ready()
        assert [entry["state"] for entry in client.get_model_repository_index()] == ["UNAVAILABLE", "UNAVAILABLE"]
        client.load_model("double")
        assert client.is_model_ready("double")
        assert client.get_model_config("double")["max_batch_size"] == 4
        x = triton.InferInput("x", [2, 4], "FP32")
        x.set_data_from_numpy(np.ones((2, 4), np.float32))
        assert client.infer("double", [x]).as_numpy("y").tolist() == [[2.0] * 4] * 2
        states = {entry["name"]: entry["state"] for entry in client.get_model_repository_index()}
        assert states == {"double": "READY", "triple": "UNAVAILABLE"}
        client.unload_model("double")
        assert not client.is_model_ready("double")
        with pytest.raises(Exception, match="model 'double' was unloaded"):
            client.infer("double", [x])
        with pytest.raises(Exception, match="there is no model 'other'"):
            client.load_model("other")
        # A configuration for this load alone: what the file has is used again by the next one.
        client.load_model("double", config=json.dumps({"max_batch_size": 2}))
        assert client.get_model_config("double")["max_batch_size"] == 2
        client.load_model("double")
        assert client.get_model_config("double")["max_batch_size"] == 4
        with pytest.raises(Exception, match="push them to the repository"):
            client.load_model("double", config="{}", files={"file:1/model.onnx": b"x"})
        assert client.get_inference_statistics("double")["model_stats"][0]["name"] == "double"
        client.close()


INDEX = {
    "all": (None, ["READY", "UNAVAILABLE"]),
    "only what is ready": ({"ready": True}, ["READY"]),
    "said so": ({"ready": False}, ["READY", "UNAVAILABLE"]),
}


@pytest.mark.parametrize(("body", "states"), INDEX.values(), ids=INDEX.keys())
def test_index(body: object, states: list[str], repository: Path, door: Open) -> None:
    put(repository, "a", 1, scaling(1))
    put(repository, "b", 1, scaling(1))
    with door(RELIGHT_MODEL="a") as open_door:
        assert [entry["state"] for entry in open_door.ask("POST", "/v2/repository/index", body)[1]] == states


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("index", {"ready": "yes"}, "ready: expected true or false"),
        ("index", [], "expected a JSON object"),
        ("models/a/load", {"parameters": {"config": {}}}, "parameters.config: expected a text"),
        ("models/a/load", {"parameters": {"config": "{]"}}, "the configuration given for model 'a'"),
        ("models/a/load", {"parameters": {"force": True}}, "parameters.force: unknown"),
        ("models/a/unload", {"parameters": []}, "parameters: expected an object"),
        ("models/a/unload", {"parameters": {"now": True}}, "parameters.now: unknown"),
    ],
)
def test_bad_requests_to_the_repository(path: str, body: object, message: str, repository: Path, door: Open) -> None:
    put(repository, "a", 1, scaling(1))
    with door() as open_door:
        status, answer = open_door.ask("POST", f"/v2/repository/{path}", body)
        assert (status, message in answer["error"]) == (400, True), answer


def test_unload_ends_what_is_asked_by_nobody_and_load_brings_it_back(repository: Path, door: Open) -> None:
    put(repository, "double", 1, scaling(2))
    with door() as open_door:
        assert open_door.infer("double")[0] == 200
        unload = ("POST", "/v2/repository/models/double/unload", {"parameters": {"unload_dependents": True}})
        for _ in range(2):
            assert open_door.ask(*unload) == (200, {"name": "double", "unload": True})
            assert open_door.infer("double")[0] == 503, "no request brings it back"
        assert open_door.index()["double", "1"] == ("UNAVAILABLE", "unloaded")
        assert open_door.metric("relight_models_loaded") == 0
        assert open_door.ask("POST", "/v2/repository/models/double/load")[0] == 200
        assert open_door.infer("double") == (200, (2.0, "1"))
        assert open_door.ask("POST", "/v2/repository/models/nothing/unload")[0] == 404


def test_all_may_be_loaded_before_it_is_ready(repository: Path, door: Open) -> None:
    put(repository, "a", 1, scaling(1))
    put(repository, "b", 1, scaling(2))
    with door(RELIGHT_MODEL="*") as open_door:
        assert {state for state, _ in open_door.index().values()} == {"READY"}
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1] * 4}]}
        status, answer = open_door.ask("POST", "/", body)
        assert (status, "name one by its path" in answer["error"]) == (404, True)


def test_one_model_named_also_takes_what_names_none(repository: Path, door: Open) -> None:
    put(repository, "a", 1, scaling(1))
    put(repository, "a", 2, scaling(2))
    with door(RELIGHT_MODEL="a", RELIGHT_MODEL_VERSION="1") as open_door:
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1] * 4}]}
        status, answer = open_door.ask("POST", "/", body)
        assert (status, answer["model_version"]) == (200, "1"), "a revision's version is pinned"
        assert open_door.infer("a/versions/2")[0] == 404


MISSING = {
    "a repository": ({"RELIGHT_REPOSITORY": ""}, "RELIGHT_REPOSITORY is not set"),
    "the model": ({"RELIGHT_MODEL": "other"}, "there is no model 'other'"),
}


@pytest.mark.parametrize(("environ", "reason"), MISSING.values(), ids=MISSING.keys())
def test_what_is_missing_is_told_at_the_start(
    environ: dict[str, str], reason: str, repository: Path, tmp_path: Path
) -> None:
    repository.mkdir()
    given = {"RELIGHT_REPOSITORY": repository.as_uri(), "RELIGHT_CACHE": str(tmp_path / "cache")}
    engine = loaded(ModelServer(), **(given | environ))
    assert engine.lifecycle.state is State.FAILED
    assert reason in engine.lifecycle.reason
    engine.stop()


class Chain(Step):
    """A step that calls models in its own process."""

    uses_models = ("double",)

    def load(self) -> None:
        self.loaded = self.models["double"].infer({"x": np.ones((1, 4), np.float32)})["y"].tolist()

    def run(self, data: object, event: object) -> object:
        given = dict(data) if isinstance(data, dict) else {}
        name, inputs = given.pop("model"), given
        return {"y": self.models[name].infer(inputs)["y"].tolist()}


def test_a_step_calls_models_without_http(repository: Path, tmp_path: Path) -> None:
    put(repository, "double", 1, scaling(2))
    Repository.open(repository.as_uri()).push(repository / "double" / "1" / "model.onnx", "copy")
    put(repository, "text", 1, passing("BYTES", ["n", 1]))
    step = Chain()
    engine = loaded(step, RELIGHT_REPOSITORY=repository.as_uri(), RELIGHT_CACHE=str(tmp_path / "cache"))
    assert engine.ready() == (True, "OK"), "its models are loaded with it"
    assert step.loaded == [[2.0] * 4]
    assert step.run({"model": "copy", "x": [[1, 2, 3, 4]]}, None) == {"y": [[2.0, 4.0, 6.0, 8.0]]}
    assert step.run({"model": "text", "x": [["größe"]]}, None) == {"y": [["größe"]]}
    with pytest.raises(BadInput) as refused:
        step.run({"model": "double", "x": [["a"] * 4], "z": 1}, None)
    assert [problem.path for problem in refused.value.problems] == ["z", "x"]
    with pytest.raises(BadInput, match=r"expected the shape \[-1, 4\], got \[1, 3\]"):
        step.run({"model": "double", "x": [[1, 2, 3]]}, None)
    with pytest.raises(BadInput, match="x: missing"):
        step.run({"model": "double"}, None)
    with pytest.raises(NotFound, match="there is no model 'other'"):
        step.run({"model": "other"}, None)
    assert "relight_models_loaded 3.0" in engine.metrics.render().decode()
    engine.stop()


def test_a_step_without_a_repository_says_so() -> None:
    step = Step()
    engine = loaded(step)
    with pytest.raises(NotFound, match="RELIGHT_REPOSITORY is not set"):
        step.models["double"]
    engine.stop()


@pytest.mark.parametrize("host", ["replica", "func", "flask"])
def test_every_host_opens_the_door(host: str, repository: Path, tmp_path: Path) -> None:
    put(repository, "double", 1, scaling(2))
    environ = {"RELIGHT_REPOSITORY": repository.as_uri(), "RELIGHT_CACHE": str(tmp_path / "cache")}
    with running(host, "models", tmp_path, **environ) as program:
        program.ready()
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1] * 4}]}
        answers: list[int] = []
        threads = [
            threading.Thread(target=lambda: answers.append(program.post("/v2/models/double/infer", body)[0]))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [200] * 4, "one load, and all who waited are answered"
        assert program.stop() == 0


def test_a_repository_may_be_named_by_its_path(repository: Path, door: Open) -> None:
    put(repository, "m", 1, scaling(2))
    with door(RELIGHT_REPOSITORY=str(repository)) as open_door:
        assert open_door.infer("m") == (200, (2.0, "1"))
