"""Objects of a function, whole, and the patch of relight.yaml over them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from relight.base.errors import Unprocessable
from relight.cluster.merge import merge
from relight.cluster.project import Project
from relight.cluster.service import Options, build_objects, build_service, build_triggers, trigger_name
from relight.wire.funcyaml import decode

FUNC = """
specVersion: 0.36.0
name: embed
created: 2026-01-31T12:00:00Z
run:
  startTimeout: 90
  envs:
    - {name: RELIGHT_MODEL, value: minilm}
    - {name: WHO, value: "{{ env:USER }}"}
deploy:
  annotations: {division: search}
  labels: [{key: team, value: retrieval}]
  options:
    scale: {min: 0, max: 4, metric: concurrency, target: 8, utilization: 70.5}
    resources:
      requests: {cpu: 100m}
      limits: {memory: 1Gi, concurrency: 16}
  subscriptions:
    - {source: default, filters: {type: text.split, source: /functions/split}}
    - {source: default, filters: {source: /functions/split, type: text.split}}
    - {source: audit}
"""

WANTED = """
- apiVersion: serving.knative.dev/v1
  kind: Service
  metadata:
    name: embed
    namespace: models
    labels: &labels
      app.kubernetes.io/part-of: relight
      team: retrieval
      function.knative.dev: "true"
      function.knative.dev/name: embed
      function.knative.dev/runtime: python
    annotations:
      division: search
      relight.dev/policy: '{"keep": "5m"}'
  spec:
    template:
      metadata:
        labels: *labels
        annotations:
          division: search
          autoscaling.knative.dev/min-scale: "0"
          autoscaling.knative.dev/max-scale: "4"
          autoscaling.knative.dev/metric: concurrency
          autoscaling.knative.dev/target: "8"
          autoscaling.knative.dev/target-utilization-percentage: "70.5"
          serving.knative.dev/progress-deadline: 90s
          relight.dev/source: /srv/embed
          relight.dev/source-digest: sha256:abc
          relight.dev/preload: numpy,onnxruntime
          relight.dev/backing: milvus
          relight.dev/model-version: "3"
      spec:
        containerConcurrency: 16
        containers:
          - name: user-container
            image: relight
            env:
              - {name: RELIGHT_MODEL, value: minilm}
              - {name: WHO, value: ada}
              - {name: RELIGHT_MODEL_VERSION, value: "3"}
            livenessProbe: {httpGet: {path: /health/liveness, port: 0}}
            readinessProbe: {httpGet: {path: /health/readiness, port: 0}}
            resources: {requests: {cpu: 100m}, limits: {memory: 1Gi, nvidia.com/gpu: "1"}}
        nodeSelector: {gpu: "yes"}
- apiVersion: eventing.knative.dev/v1
  kind: Trigger
  metadata: {name: embed-trigger-9d26d69a, namespace: models, labels: *labels}
  spec:
    broker: default
    filter: {attributes: {type: text.split, source: /functions/split}}
    subscriber: {ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: embed}}
- apiVersion: eventing.knative.dev/v1
  kind: Trigger
  metadata: {name: embed-trigger-b81f37a0, namespace: models, labels: *labels}
  spec:
    broker: audit
    subscriber: {ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: embed}}
"""

PATCH = """
spec:
  template:
    spec:
      nodeSelector: {gpu: "yes"}
      containers:
        - resources: {limits: {nvidia.com/gpu: "1"}}
"""

OPTIONS = Options(namespace="models", digest="sha256:abc", environ={"USER": "ada"}, model_version=3)


def project(text: str = FUNC, **more: Any) -> Project:
    return Project(Path("/srv/embed"), decode(text), **more)


def test_objects_of_a_function() -> None:
    embed = project(
        patch=yaml.safe_load(PATCH), policy={"keep": "5m"}, preload=("numpy", "onnxruntime"), backing=("milvus",)
    )
    assert build_objects(embed, OPTIONS) == yaml.safe_load(WANTED)


def test_a_function_that_speaks_grpc_says_so() -> None:
    text = FUNC.replace("  envs:\n", "  envs:\n    - {name: RELIGHT_PROTOCOL, value: grpc}\n")
    assert text != FUNC
    (container,) = build_objects(project(text), OPTIONS)[0]["spec"]["template"]["spec"]["containers"]
    assert container["ports"] == [{"name": "h2c", "containerPort": 8080}]
    assert container["livenessProbe"] == {"grpc": {"port": 8080, "service": "liveness"}}
    assert container["readinessProbe"] == {"grpc": {"port": 8080, "service": "readiness"}}


def test_a_trigger_is_named_by_what_it_subscribes_to() -> None:
    # sha256("default|type=a")[:8], as func computes it
    assert trigger_name("f", "default", {"type": "a"}) == "f-trigger-eefaf830"
    assert trigger_name("f", "default", {"a": "1", "b": "2"}) == trigger_name("f", "default", {"b": "2", "a": "1"})


def test_triggers_go_when_their_service_goes() -> None:
    owned = build_triggers(project(), "models", {"metadata": {"uid": "u1"}})
    references = [trigger["metadata"]["ownerReferences"] for trigger in owned]
    assert references == [
        [{"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "embed", "uid": "u1"}]
    ] * len(owned)


def test_a_version_that_the_function_names_stays() -> None:
    text = FUNC.replace("value: minilm}", "value: minilm}\n    - {name: RELIGHT_MODEL_VERSION, value: '1'}")
    service = build_service(project(text), OPTIONS)
    template = service["spec"]["template"]
    assert {"name": "RELIGHT_MODEL_VERSION", "value": "1"} in template["spec"]["containers"][0]["env"]
    assert "relight.dev/model-version" not in template["metadata"]["annotations"]


def test_references_that_cannot_be_resolved_are_named() -> None:
    text = FUNC.replace("{{ env:USER }}", "{{ env:NOBODY }}").replace("value: minilm}", "value: '{{ env:NOWHERE }}'}")
    with pytest.raises(Unprocessable) as caught:
        build_service(project(text), OPTIONS)
    assert [problem.path for problem in caught.value.problems] == [
        "func.yaml: run.envs[0].value",
        "func.yaml: run.envs[1].value",
    ]


MERGES: list[tuple[str, str, str, str]] = [
    ("adds and keeps", "{a: 1}", "{b: 2}", "{a: 1, b: 2}"),
    ("null removes", "{a: 1, b: {c: 1, d: 2}}", "{a: null, b: {c: null}}", "{b: {d: 2}}"),
    ("null removes nothing that is not there", "{a: 1}", "{b: null}", "{a: 1}"),
    ("a plain list is replaced", "{tolerations: [1, 2]}", "{tolerations: [3]}", "{tolerations: [3]}"),
    (
        "a keyed list is merged by its key",
        "{env: [{name: A, value: a}, {name: B, value: b}]}",
        "{env: [{name: B, value: c}, {name: C, value: d}]}",
        "{env: [{name: A, value: a}, {name: B, value: c}, {name: C, value: d}]}",
    ),
    ("an item is removed", "{env: [{name: A}, {name: B}]}", "{env: [{name: A, $patch: delete}]}", "{env: [{name: B}]}"),
    (
        "what is not there is not removed",
        "{env: [{name: B}]}",
        "{env: [{name: A, $patch: delete}]}",
        "{env: [{name: B}]}",
    ),
    (
        "a keyed list is replaced on demand",
        "{env: [{name: A}]}",
        "{env: [{$patch: replace}, {name: B}]}",
        "{env: [{name: B}]}",
    ),
    ("a mapping is replaced on demand", "{a: {b: 1}}", "{a: {$patch: replace, c: 2}}", "{a: {c: 2}}"),
    (
        "mounts are keyed by path",
        "{volumeMounts: [{mountPath: /a, name: x}]}",
        "{volumeMounts: [{mountPath: /a, readOnly: true}]}",
        "{volumeMounts: [{mountPath: /a, name: x, readOnly: true}]}",
    ),
    ("nulls within new values leave nothing", "{}", "{a: {b: null, c: 1}}", "{a: {c: 1}}"),
]


@pytest.mark.parametrize(("base", "patch", "wanted"), [row[1:] for row in MERGES], ids=[row[0] for row in MERGES])
def test_strategic_merge(base: str, patch: str, wanted: str) -> None:
    before = yaml.safe_load(base)
    assert merge(before, yaml.safe_load(patch)) == yaml.safe_load(wanted)
    assert before == yaml.safe_load(base), "the base is a value of somebody else"


def test_values_from_secrets_and_config_maps_stay_where_they_are() -> None:
    text = FUNC.replace("{{ env:USER }}", "{{ secret:a:b }}").replace(
        "value: minilm}",
        'value: "{{ configMap:models:encoder }}"}\n    - {value: "{{ secret:all }}"}',
    )
    container = build_service(project(text), OPTIONS)["spec"]["template"]["spec"]["containers"][0]
    assert container["env"][:2] == [
        {"name": "RELIGHT_MODEL", "valueFrom": {"configMapKeyRef": {"name": "models", "key": "encoder"}}},
        {"name": "WHO", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}},
    ]
    assert container["envFrom"] == [{"secretRef": {"name": "all"}}]


def test_on_a_cluster_the_image_is_what_runs() -> None:
    options = Options(
        image="registry.example.com/relight:1",
        folder=False,
        digest="sha256:abc",
        environ={"USER": "ada"},
        function="embed",
        repository="s3://b/models",
    )
    service = build_service(project(preload=("numpy",), backing=("milvus",)), options)
    annotations = service["spec"]["template"]["metadata"]["annotations"]
    assert not [name for name in annotations if name.startswith("relight.dev/")]
    (container,) = service["spec"]["template"]["spec"]["containers"]
    env = {one["name"]: one["value"] for one in container["env"]}
    assert (env["RELIGHT_FUNCTION"], env["RELIGHT_REPOSITORY"], env["RELIGHT_CACHE"]) == (
        "embed",
        "s3://b/models",
        "/cache",
    )
    assert container["image"] == "registry.example.com/relight:1"
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert [volume["name"] for volume in service["spec"]["template"]["spec"]["volumes"]] == ["cache", "tmp"]
