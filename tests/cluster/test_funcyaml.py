"""func.yaml: what is read, and what is refused by which field path."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from relight.base.errors import BadInput, Unprocessable
from relight.wire.funcyaml import Env, Reference, Scale, Subscription, Volume, decode

MINIMAL: dict[str, Any] = {"specVersion": "0.36.0", "name": "embed", "created": "2026-01-31T12:00:00Z"}

WHOLE = """
specVersion: 0.36.0
name: embed
runtime: python
registry: localhost:5000/me
registryInsecure: true
namespace: models
created: 2026-01-31T12:00:00.123456+01:00
invoke: cloudevent
build:
  builder: host
  buildEnvs: [{name: A, value: b}]
  baseImage: python:3.11-slim
  git: {url: "https://example.com/x.git"}
run:
  startTimeout: 90
  envs:
    - {name: PLAIN, value: "1"}
    - {name: EMPTY}
    - {name: HOME_DIR, value: "{{ env:HOME }}"}
    - {name: KEY, value: "{{ secret:store:key }}"}
    - {value: "{{configMap:settings}}"}
  volumes:
    - {secret: store, path: /etc/store}
    - {emptyDir: {medium: Memory, sizeLimit: 64Mi}, path: /scratch}
    - {persistentVolumeClaim: {claimName: cache, readOnly: true}, path: /cache}
deploy:
  annotations: {division: search}
  labels: [{key: team, value: retrieval}, {key: example.com/tier}]
  options:
    scale: {min: 1, max: 4, metric: rps, target: 12.5, utilization: 80}
    resources:
      requests: {cpu: 100m, memory: 128Mi}
      limits: {cpu: "1", memory: 1Gi, concurrency: 8}
  healthEndpoints: {liveness: /alive, readiness: /ready}
  serviceAccountName: runner
  imagePullSecret: pull
  subscriptions:
    - source: default
      filters: {type: document.added, source: /crawler}
"""


def text(**changes: Any) -> str:
    return yaml.safe_dump({**MINIMAL, **changes})


def test_a_whole_file() -> None:
    read = decode(WHOLE)
    assert (read.name, read.namespace, read.invoke, read.runtime) == ("embed", "models", "cloudevent", "python")
    assert read.envs == (
        Env("PLAIN", "1"),
        Env("EMPTY", ""),
        Env("HOME_DIR", None, Reference("env", "HOME")),
        Env("KEY", None, Reference("secret", "store", "key")),
        Env(None, None, Reference("configMap", "settings")),
    )
    assert read.volumes == (
        Volume("/etc/store", {"secret": {"secretName": "store"}}),
        Volume("/scratch", {"emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}}),
        Volume("/cache", {"persistentVolumeClaim": {"claimName": "cache", "readOnly": True}}),
    )
    assert read.start_timeout == 90
    assert read.scale == Scale(min=1, max=4, metric="rps", target=12.5, utilization=80.0)
    assert read.resources.requests == {"cpu": "100m", "memory": "128Mi"}
    assert read.resources.limits == {"cpu": "1", "memory": "1Gi"}
    assert read.resources.concurrency == 8
    assert (read.liveness, read.readiness) == ("/alive", "/ready")
    assert read.annotations == {"division": "search"}
    assert read.labels == {"team": "retrieval", "example.com/tier": ""}
    assert (read.service_account, read.image_pull_secret) == ("runner", "pull")
    assert read.subscriptions == (Subscription("default", {"type": "document.added", "source": "/crawler"}),)
    assert read.warnings == ()


def test_the_least_that_can_be_said() -> None:
    read = decode(text())
    assert read.envs == ()
    assert read.scale == Scale()
    assert (read.liveness, read.readiness) == ("/health/liveness", "/health/readiness")


WRONG: list[tuple[str, dict[str, Any], list[str]]] = [
    ("no name", {"name": None}, ["name"]),
    ("upper case", {"name": "Embed"}, ["name"]),
    ("a digit first", {"name": "2embed"}, ["name"]),
    ("64 characters", {"name": "a" * 64}, ["name"]),
    ("no version", {"specVersion": None}, ["specVersion"]),
    ("a number as version", {"specVersion": 0.36}, ["specVersion"]),
    ("a newer version", {"specVersion": "0.37.0"}, ["specVersion"]),
    ("a very old version", {"specVersion": "0.25.0"}, ["specVersion"]),
    ("not created", {"created": None}, ["created"]),
    ("created, but when", {"created": "yesterday"}, ["created"]),
    ("an unknown key", {"gpu": 1}, ["gpu"]),
    ("how it is invoked", {"invoke": "grpc"}, ["invoke"]),
    ("a list for a mapping", {"run": []}, ["run"]),
    ("a mapping for a list", {"run": {"envs": {"A": "b"}}}, ["run.envs"]),
    ("a number for text", {"run": {"envs": [{"name": "A", "value": 1}]}}, ["run.envs[0].value"]),
    ("a name with a space", {"run": {"envs": [{"name": "A B", "value": "1"}]}}, ["run.envs[0].name"]),
    ("a broken reference", {"run": {"envs": [{"name": "A", "value": "{{ vault:x }}"}]}}, ["run.envs[0].value"]),
    ("a variable without a name", {"run": {"envs": [{"value": "{{ env:X }}"}]}}, ["run.envs[0]"]),
    ("a name for a whole secret", {"run": {"envs": [{"name": "A", "value": "{{ secret:x }}"}]}}, ["run.envs[0]"]),
    (
        "a volume of two kinds",
        {"run": {"volumes": [{"secret": "a", "configMap": "b", "path": "/x"}]}},
        ["run.volumes[0]"],
    ),
    ("a relative mount", {"run": {"volumes": [{"secret": "a", "path": "x"}]}}, ["run.volumes[0].path"]),
    ("half of kafka", {"run": {"kafka": {"topic": "t"}}}, ["run.kafka.brokers", "run.kafka.consumerGroup"]),
    (
        "a gpu",
        {"deploy": {"options": {"resources": {"limits": {"nvidia.com/gpu": "1"}}}}},
        ["deploy.options.resources.limits.nvidia.com/gpu"],
    ),
    (
        "no quantity",
        {"deploy": {"options": {"resources": {"limits": {"memory": "1 gig"}}}}},
        ["deploy.options.resources.limits.memory"],
    ),
    ("min above max", {"deploy": {"options": {"scale": {"min": 3, "max": 2}}}}, ["deploy.options.scale.min"]),
    ("true for a number", {"deploy": {"options": {"scale": {"min": True}}}}, ["deploy.options.scale.min"]),
    ("utilization of 0", {"deploy": {"options": {"scale": {"utilization": 0}}}}, ["deploy.options.scale.utilization"]),
    ("an unknown metric", {"deploy": {"options": {"scale": {"metric": "cpu"}}}}, ["deploy.options.scale.metric"]),
    ("a subscription to nothing", {"deploy": {"subscriptions": [{"filters": {}}]}}, ["deploy.subscriptions[0].source"]),
    (
        "a filter that is no text",
        {"deploy": {"subscriptions": [{"source": "b", "filters": {"type": 1}}]}},
        ["deploy.subscriptions[0].filters.type"],
    ),
    ("a label's key", {"deploy": {"labels": [{"key": "-x"}]}}, ["deploy.labels[0].key"]),
    (
        "a probe that is no path",
        {"deploy": {"healthEndpoints": {"liveness": "alive"}}},
        ["deploy.healthEndpoints.liveness"],
    ),
    ("another builder", {"build": {"builder": "docker"}}, ["build.builder"]),
    (
        "all at once, in the order of the file's parts",
        {"name": "X", "run": {"envs": [{"name": "1"}], "x": 1}, "deploy": {"options": {"scale": {"max": -1}}}},
        ["name", "run.x", "run.envs[0].name", "deploy.options.scale.max"],
    ),
]


@pytest.mark.parametrize(("changes", "paths"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_mistakes_are_named_by_field_path(changes: dict[str, Any], paths: list[str]) -> None:
    with pytest.raises(Unprocessable) as caught:
        decode(text(**changes))
    assert [problem.path for problem in caught.value.problems] == paths


def test_an_older_version_may_have_keys_that_mean_nothing_here() -> None:
    read = decode(text(specVersion="0.35.0", imageDigest="sha256:x", deploy={"remote": True}))
    assert [problem.path for problem in read.warnings] == ["imageDigest", "deploy.remote"]


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ("name: [", "line 1"),
        ("- a\n- b\n", "mapping"),
        ("", "mapping"),
        ("name: a\n\tb: c\n", "line 2"),
    ],
    ids=["unclosed", "a list", "empty", "a tab"],
)
def test_what_is_no_mapping(broken: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        decode(broken)
