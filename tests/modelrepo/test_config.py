"""``config.pbtxt``: what is read, what is derived, and every mistake by its path."""

from __future__ import annotations

import subprocess
import sys

import pytest

from relight.base.errors import BadInput, PlatformError
from relight.wire import modelconfig, modelconfig_text
from relight.wire.modelconfig import (
    ConfigTensor,
    DynamicBatching,
    InstanceGroup,
    ModelConfig,
    QueuePolicy,
    VersionPolicy,
    Warmup,
    WarmupInput,
)
from relight.wire.tensors import TensorSpec

WHOLE = b"""
name: "m"
platform: "onnxruntime_onnx"
max_batch_size: 8
default_model_filename: "net.onnx"
input [
  { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "scale" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } optional: true }
]
output { name: "text" data_type: TYPE_STRING dims: [ 1, 3 ] }
instance_group [ { count: 2 kind: KIND_CPU }, { name: "g" kind: KIND_GPU gpus: [ 0, 1 ] } ]
dynamic_batching {
  preferred_batch_size: [ 4, 8 ]
  max_queue_delay_microseconds: 100
  priority_levels: 2
  default_priority_level: 1
  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5000 max_queue_size: 16 }
  priority_queue_policy { key: 2 value { allow_timeout_override: true } }
}
version_policy: { specific: { versions: [ 1, 3 ] } }
model_warmup [ {
  name: "some"
  batch_size: 2
  count: 3
  inputs { key: "ids" value: { data_type: TYPE_INT64 dims: [ 7 ] random_data: true } }
  inputs { key: "scale" value: { data_type: TYPE_FP32 dims: [ 1 ] input_data_file: "scale" } }
} ]
response_cache { enable: true }
optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }
parameters { key: "intra_op_thread_count" value { string_value: "2" } }
"""


def test_every_field_that_is_acted_on() -> None:
    config, warnings = modelconfig_text.decode(WHOLE, "m")
    assert warnings == ()
    assert config == ModelConfig(
        name="m",
        platform="onnxruntime_onnx",
        filename="net.onnx",
        max_batch_size=8,
        inputs=(ConfigTensor("ids", "INT64", (-1,)), ConfigTensor("scale", "FP32", (1,), (), True)),
        outputs=(ConfigTensor("text", "BYTES", (1, 3)),),
        instance_groups=(InstanceGroup(kind="cpu", count=2), InstanceGroup("g", "gpu", 0, (0, 1))),
        dynamic_batching=DynamicBatching(
            preferred_batch_size=(4, 8),
            max_queue_delay=0.0001,
            priority_levels=2,
            default_priority_level=1,
            default_queue_policy=QueuePolicy("delay", 0.005, False, 16),
            priority_queue_policy={2: QueuePolicy(allow_timeout_override=True)},
        ),
        version_policy=VersionPolicy("specific", versions=(1, 3)),
        warmups=(
            Warmup(
                "some",
                2,
                {
                    "ids": WarmupInput("INT64", (7,), "random"),
                    "scale": WarmupInput("FP32", (1,), "file", "scale"),
                },
                3,
            ),
        ),
        response_cache=True,
        accelerators=("tensorrt",),
        parameters={"intra_op_thread_count": "2"},
    )
    assert config.input_specs() == [
        TensorSpec("ids", "INT64", (-1, -1)),
        TensorSpec("scale", "FP32", (-1, 1), optional=True),
    ]
    assert config.inputs[1].native(config.batched) == (-1,)


def test_what_nothing_says_has_tritons_defaults() -> None:
    config, warnings = modelconfig_text.decode(b"", "m")
    assert (config, warnings) == (ModelConfig(), ())
    assert (config.version_policy, config.max_batch_size) == (VersionPolicy("latest", 1), 0)


@pytest.mark.parametrize("name", ["BOOL", "UINT8", "INT16", "FP16", "BF16", "FP64"])
def test_datatypes_have_the_protocols_names(name: str) -> None:
    config = modelconfig_text.decode(f'input {{ name: "x" data_type: TYPE_{name} dims: 1 }}'.encode(), "m").config
    assert config.inputs[0].datatype == name


IGNORED = {
    "a message": (
        b"optimization { graph { level: 1 } cuda { graphs: true } }",
        ["optimization.graph", "optimization.cuda"],
    ),
    "once, however often": (
        b'input [ { name: "a" data_type: TYPE_FP32 dims: 1 is_shape_tensor: true },'
        b' { name: "b" data_type: TYPE_FP32 dims: 1 is_shape_tensor: true format: FORMAT_NHWC } ]',
        ["input.is_shape_tensor", "input.format"],
    ),
    "below a field that is acted on": (
        b'instance_group { count: 1 host_policy: "x" rate_limiter { priority: 2 } }',
        ["instance_group.rate_limiter", "instance_group.host_policy"],
    ),
    "a parameter": (b'parameters { key: "x" value { string_value: "1" } }', ["parameters['x']"]),
    "labels": (
        b'output { name: "y" data_type: TYPE_FP32 dims: 1 label_filename: "labels.txt" }',
        ["output.label_filename"],
    ),
}


@pytest.mark.parametrize(("text", "paths"), IGNORED.values(), ids=IGNORED.keys())
def test_a_field_that_is_not_acted_on_is_named(text: bytes, paths: list[str]) -> None:
    assert list(modelconfig_text.decode(text, "m").warnings) == [f"{path} is not acted on" for path in paths]


_X = 'input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } '
WRONG = {
    "another name": ('name: "other"', ["name"]),
    "a negative batch": ("max_batch_size: -1", ["max_batch_size"]),
    "a tensor of nothing": ("input { }", ["input[0].name", "input[0].data_type", "input[0].dims"]),
    "a size of nothing": ('output { name: "y" data_type: TYPE_FP32 dims: [ 0, -2 ] }', ["output[0].dims"]),
    "two of one name": (_X + 'input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }', ["input[1].name"]),
    "another number of elements": (
        'input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 3 ] } }',
        ["input[0].reshape"],
    ),
    "a reshape that varies otherwise": (
        'input { name: "x" data_type: TYPE_FP32 dims: [ -1, 2 ] reshape { shape: [ 4 ] } }',
        ["input[0].reshape"],
    ),
    "the latest none": ("version_policy { latest { } }", ["version_policy.latest.num_versions"]),
    "versions from 1": ("version_policy { specific { versions: [ 0, 2 ] } }", ["version_policy.specific.versions"]),
    "a batch over the largest": (
        "max_batch_size: 4 dynamic_batching { preferred_batch_size: [ 2, 8 ] }",
        ["dynamic_batching.preferred_batch_size[1]"],
    ),
    "priorities": (
        "dynamic_batching { priority_levels: 2 priority_queue_policy { key: 3 value { } } }",
        ["dynamic_batching.default_priority_level", "dynamic_batching.priority_queue_policy[3]"],
    ),
    "instances": (
        "instance_group [ { count: -1 }, { kind: KIND_CPU gpus: 0 } ]",
        ["instance_group[0].count", "instance_group[1].gpus"],
    ),
    "a warm-up": (
        _X
        + """model_warmup { batch_size: 2 inputs { key: "z" value { dims: [ -1 ] } }
             inputs { key: "x" value { data_type: TYPE_FP32 dims: 4 input_data_file: "../x" } } }""",
        [
            "model_warmup[0].batch_size",
            "model_warmup[0].inputs[x].input_data_file",
            "model_warmup[0].inputs[z]",
            "model_warmup[0].inputs[z].data_type",
            "model_warmup[0].inputs[z].dims",
            "model_warmup[0].inputs[z]",
        ],
    ),
    "an ensemble": ('platform: "ensemble" ensemble_scheduling { }', ["ensemble_scheduling"]),
    "sequences": ("sequence_batching { }", ["sequence_batching"]),
    "several answers": ("model_transaction_policy { decoupled: true }", ["model_transaction_policy.decoupled"]),
}


@pytest.mark.parametrize(("text", "paths"), WRONG.values(), ids=WRONG.keys())
def test_all_mistakes_at_once_by_path(text: str, paths: list[str]) -> None:
    with pytest.raises(BadInput, match=r"config\.pbtxt of model 'm'") as refused:
        modelconfig_text.decode(text.encode(), "m")
    assert [problem.path for problem in refused.value.problems] == paths


def test_mistakes_of_several_fields_come_together() -> None:
    with pytest.raises(BadInput) as refused:
        modelconfig_text.decode(b'name: "n" max_batch_size: -2 output { name: "y" } version_policy { latest { } }', "m")
    paths = ["name", "max_batch_size", "output[0].data_type", "output[0].dims", "version_policy.latest.num_versions"]
    assert [problem.path for problem in refused.value.problems] == paths


UNREADABLE = {
    "an unknown field": (b'name: "m"\n\nmax_batch: 8', "line 3: ModelConfig has no field max_batch"),
    "an unknown field below": (b"input {\n  label: 3\n}", "line 2: ModelInput has no field label"),
    "a number for a text": (b"name: 3", "line 1: .*Expected string"),
    "an unknown datatype": (b"input { data_type: TYPE_FLOAT }", "line 1: .*no value named TYPE_FLOAT"),
    "an open brace": (b"input {\n", "line [12]: "),
    "no text": (b'name: "\xff"', "not UTF-8: .* at byte 7"),
}


@pytest.mark.parametrize(("text", "message"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_cannot_be_read_is_named_by_line(text: bytes, message: str) -> None:
    with pytest.raises(BadInput, match=f"^config.pbtxt of model 'm'.*{message}"):
        modelconfig_text.decode(text, "m")


def test_from_json_and_back() -> None:
    text = modelconfig_text.from_json('{"max_batch_size": 2, "version_policy": {"all": {}}}', "m")
    config = modelconfig_text.decode(text, "m").config
    assert (config.max_batch_size, config.version_policy.kind) == (2, "all")
    with pytest.raises(BadInput, match="the configuration given for model 'm'"):
        modelconfig_text.from_json('{"max_batch": 2}', "m")
    with pytest.raises(BadInput, match="max_batch_size: expected 0 or more"):
        modelconfig_text.from_json('{"max_batch_size": -2}', "m")


def f(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, "FP32", shape)


DERIVED = {
    "a variable first dimension everywhere is the batch": (
        [f("x", -1, 3), f("z", -1, -1)],
        [f("y", -1, 2)],
        4,
        [(3,), (-1,)],
        [(2,)],
    ),
    "one without is no batch": ([f("x", -1, 3), f("z", 1, 3)], [f("y", -1, 2)], 0, [(-1, 3), (1, 3)], [(-1, 2)]),
    "an output without, too": ([f("x", -1, 3)], [f("y", 2)], 0, [(-1, 3)], [(2,)]),
    "a scalar is no batch": ([f("x")], [f("y", -1)], 0, [(1,)], [(-1,)]),
    "the batch alone is one column": ([f("x", -1)], [f("y", -1)], 4, [(1,)], [(1,)]),
}


@pytest.mark.parametrize(("inputs", "outputs", "size", "ins", "outs"), DERIVED.values(), ids=DERIVED.keys())
def test_a_missing_configuration_is_derived_as_triton_does(
    inputs: list[TensorSpec],
    outputs: list[TensorSpec],
    size: int,
    ins: list[tuple[int, ...]],
    outs: list[tuple[int, ...]],
) -> None:
    config = modelconfig.completed(ModelConfig(), inputs, outputs)
    assert config.max_batch_size == size
    assert [tensor.dims for tensor in config.inputs] == ins
    assert [tensor.dims for tensor in config.outputs] == outs
    assert (config.dynamic_batching is not None) == (size > 1)
    assert modelconfig.differences(config, inputs, outputs) == []


def test_what_is_given_is_kept_and_the_rest_is_derived() -> None:
    given = ModelConfig(max_batch_size=1, outputs=(ConfigTensor("y", "FP32", (2,)),))
    config = modelconfig.completed(given, [f("x", -1, 3)], [f("y", -1, 2), f("z", -1)])
    assert (config.max_batch_size, config.outputs) == (1, given.outputs)
    assert config.inputs == (ConfigTensor("x", "FP32", (3,)),)
    assert config.dynamic_batching is None, "a batch of one needs no batching"
    whole = ModelConfig(inputs=config.inputs, outputs=config.outputs)
    assert modelconfig.completed(whole, [f("x", -1, 3)], [f("y", -1, 2)]) is whole, "as in Triton, 0 is 0 then"
    assert modelconfig.completed(ModelConfig(), [f("x", -1)], [f("y", -1)], 16).max_batch_size == 16


_IN, _OUT = [f("x", -1, 3)], [f("y", -1, -1)]
DIFFERENT: dict[str, tuple[ModelConfig, list[str]]] = {
    "none": (ModelConfig(max_batch_size=2, inputs=(ConfigTensor("x", "FP32", (3,)),)), []),
    "a narrower one is none": (
        ModelConfig(inputs=(ConfigTensor("x", "FP32", (7, 3)),), outputs=(ConfigTensor("y", "FP32", (7, 2)),)),
        [],
    ),
    "a reshape is seen through": (
        ModelConfig(max_batch_size=2, inputs=(ConfigTensor("x", "FP32", (1, 3), reshape=(3,)),)),
        [],
    ),
    "names": (
        ModelConfig(inputs=(ConfigTensor("z", "FP32", (-1, 3)),), outputs=(ConfigTensor("z", "FP32", (-1,)),)),
        ["input[0].name", "input", "output[0].name"],
    ),
    "datatype": (ModelConfig(inputs=(ConfigTensor("x", "INT64", (-1, 3)),)), ["input[0].data_type"]),
    "rank": (
        ModelConfig(inputs=(ConfigTensor("x", "FP32", (3,)),), outputs=(ConfigTensor("y", "FP32", (1,)),)),
        ["input[0].dims", "output[0].dims"],
    ),
    "size": (ModelConfig(max_batch_size=2, inputs=(ConfigTensor("x", "FP32", (4,)),)), ["input[0].dims"]),
    "an optional one may be unknown": (
        ModelConfig(
            max_batch_size=1, inputs=(ConfigTensor("x", "FP32", (3,)), ConfigTensor("o", "FP32", (1,), None, True))
        ),
        [],
    ),
}


@pytest.mark.parametrize(("config", "paths"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_where_configuration_and_file_differ(config: ModelConfig, paths: list[str]) -> None:
    outputs = config.outputs or (ConfigTensor("y", "FP32", (-1,) if config.batched else (-1, -1)),)
    config = ModelConfig(max_batch_size=config.max_batch_size, inputs=config.inputs, outputs=outputs)
    assert [problem.path for problem in modelconfig.differences(config, _IN, _OUT)] == paths


def test_a_batch_needs_a_first_dimension_that_varies() -> None:
    config = ModelConfig(
        max_batch_size=2, inputs=(ConfigTensor("x", "FP32", (3,)),), outputs=(ConfigTensor("y", "FP32", (1,)),)
    )
    found = modelconfig.differences(config, [f("x", 1, 3)], [f("y", 1, 1)])
    assert [problem.path for problem in found] == ["input[0].dims", "output[0].dims"]
    assert "no variable first dimension" in found[0].message


PICKED = {
    "the latest": (VersionPolicy(), [3]),
    "the latest two": (VersionPolicy("latest", 2), [2, 3]),
    "more than there are": (VersionPolicy("latest", 9), [1, 2, 3]),
    "all": (VersionPolicy("all"), [1, 2, 3]),
    "those that are there": (VersionPolicy("specific", versions=(3, 1, 7)), [1, 3]),
    "none of them": (VersionPolicy("specific", versions=(7,)), []),
}


@pytest.mark.parametrize(("policy", "want"), PICKED.values(), ids=PICKED.keys())
def test_versions_by_policy(policy: VersionPolicy, want: list[int]) -> None:
    assert policy.pick([2, 3, 1]) == want


def test_json_is_that_of_tritons_endpoint() -> None:
    body = modelconfig.to_json(modelconfig_text.decode(WHOLE, "m").config)
    again = {
        key: body[key] for key in ("name", "max_batch_size", "version_policy", "input", "output", "dynamic_batching")
    }
    assert again["version_policy"] == {"specific": {"versions": [1, 3]}}
    assert again["input"][1] == {
        "name": "scale", "data_type": "TYPE_FP32", "dims": [1], "reshape": {"shape": []}, "optional": True,
    }  # fmt: skip
    assert again["output"] == [{"name": "text", "data_type": "TYPE_STRING", "dims": [1, 3]}]
    assert again["dynamic_batching"]["max_queue_delay_microseconds"] == 100


def test_reading_does_not_bring_grpc_and_fits_the_client_beside_it() -> None:
    # gRPC starts threads when it is imported: none may be there before a fork.
    code = (
        "import sys; from relight.wire import modelconfig_text as t; t.decode(b'name: \"m\"', 'm');"
        " assert not any(name.split('.')[0] == 'grpc' for name in sys.modules);"
        " import warnings; warnings.simplefilter('ignore');"
        " from google.protobuf import text_format; "
        " from tritonclient.grpc import model_config_pb2 as m; text_format.Parse('name: \"x\"', m.ModelConfig());"
        " print(t.decode(b'name: \"m\"', 'm').config.name)"
    )
    pytest.importorskip("grpc")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "m\n"), done.stderr


@pytest.mark.parametrize("name", ["google.protobuf", "google.protobuf.text_format"])
def test_a_missing_library_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    modelconfig_text._schema.cache_clear()
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, modelconfig_text._MODULE, raising=False)
    try:
        with pytest.raises(PlatformError, match=r"protobuf.*install relight\[triton\]"):
            modelconfig_text.decode(b"", "m")
    finally:
        modelconfig_text._schema.cache_clear()
