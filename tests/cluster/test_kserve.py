"""InferenceServices as KServe's documents have them, and the Services they become."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from relight.base.errors import BadInput
from relight.cluster.kserve import convert

FULL = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: bert
  namespace: models
  labels: {team: search}
  annotations:
    autoscaling.knative.dev/window: 30s
    serving.kserve.io/enable-prometheus-scraping: "true"
spec:
  predictor:
    minReplicas: 1
    maxReplicas: 4
    scaleTarget: 8
    scaleMetric: concurrency
    timeout: 60
    containerConcurrency: 16
    canaryTrafficPercent: 10
    serviceAccountName: reader
    nodeSelector: {gpu: "yes"}
    tolerations: [{key: nvidia.com/gpu, operator: Exists}]
    logger: {mode: all}
    model:
      modelFormat: {name: onnx, version: "1"}
      runtime: kserve-tritonserver
      protocolVersion: v2
      storageUri: s3://bucket/models/bert
      args: [--strict]
      env: [{name: OMP_NUM_THREADS, value: "2"}]
      resources: {limits: {memory: 4Gi, nvidia.com/gpu: "1"}, requests: {cpu: "1"}}
  transformer:
    containers: [{name: kserve-container, image: tokenizer}]
"""

WANTED = """
apiVersion: serving.knative.dev/v1
kind: Service
metadata:
  name: bert
  namespace: models
  labels: {team: search, app.kubernetes.io/part-of: relight}
spec:
  template:
    metadata:
      labels: {app.kubernetes.io/part-of: relight}
      annotations:
        autoscaling.knative.dev/window: 30s
        autoscaling.knative.dev/min-scale: "1"
        autoscaling.knative.dev/max-scale: "4"
        autoscaling.knative.dev/target: "8"
        autoscaling.knative.dev/metric: concurrency
    spec:
      nodeSelector: {gpu: "yes"}
      tolerations: [{key: nvidia.com/gpu, operator: Exists}]
      serviceAccountName: reader
      timeoutSeconds: 60
      containerConcurrency: 16
      containers:
        - name: user-container
          image: registry.example.com/relight:0.1.0
          env:
            - {name: RELIGHT_FUNCTION, value: model}
            - {name: RELIGHT_REPOSITORY, value: "s3://bucket/models"}
            - {name: RELIGHT_MODEL, value: bert}
            - {name: OMP_NUM_THREADS, value: "2"}
            - {name: RELIGHT_CACHE, value: /cache}
            - {name: HOME, value: /tmp}
          envFrom: [{secretRef: {name: relight-credentials, optional: true}}]
          readinessProbe: {httpGet: {path: /health/readiness, port: 0}}
          livenessProbe: {httpGet: {path: /health/liveness, port: 0}}
          resources: {limits: {memory: 4Gi, nvidia.com/gpu: "1"}, requests: {cpu: "1"}}
          securityContext:
            allowPrivilegeEscalation: false
            capabilities: {drop: [ALL]}
            readOnlyRootFilesystem: true
            runAsNonRoot: true
            seccompProfile: {type: RuntimeDefault}
          volumeMounts: [{name: cache, mountPath: /cache}, {name: tmp, mountPath: /tmp}]
      volumes: [{name: cache, emptyDir: {}}, {name: tmp, emptyDir: {}}]
"""


def test_an_inference_service_with_everything() -> None:
    converted = convert(yaml.safe_load(FULL), "registry.example.com/relight:0.1.0")
    assert converted.service == yaml.safe_load(WANTED)
    assert sorted(problem.path for problem in converted.left) == [
        "metadata.annotations.serving.kserve.io/enable-prometheus-scraping",
        "spec.predictor.canaryTrafficPercent",
        "spec.predictor.logger",
        "spec.predictor.model.args",
        "spec.predictor.model.runtime",
        "spec.transformer",
    ]


def service(predictor: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "m"},
        "spec": {"predictor": predictor},
    }


def model(uri: str | None, **more: Any) -> dict[str, Any]:
    return {"model": {"modelFormat": {"name": "onnx"}, **({"storageUri": uri} if uri else {}), **more}}


STORAGE = [
    ("a bucket's folder", "s3://b/m", {"RELIGHT_REPOSITORY": "s3://b", "RELIGHT_MODEL": "m"}, []),
    ("a slash at the end", "s3://b/x/m/", {"RELIGHT_REPOSITORY": "s3://b/x", "RELIGHT_MODEL": "m"}, []),
    ("a volume", "pvc://claim/x/m", {"RELIGHT_REPOSITORY": "file:///models/x", "RELIGHT_MODEL": "m"}, []),
    ("another cloud", "gs://b/m", {"RELIGHT_MODEL": "m"}, ["spec.predictor.model.storageUri"]),
    ("nothing", None, {"RELIGHT_MODEL": "m"}, ["spec.predictor.model.storageUri"]),
]


@pytest.mark.parametrize(("uri", "env", "left"), [row[1:] for row in STORAGE], ids=[row[0] for row in STORAGE])
def test_where_the_model_is(uri: str | None, env: dict[str, str], left: list[str]) -> None:
    converted = convert(service(model(uri)), "relight")
    spec = converted.service["spec"]["template"]["spec"]
    given = {one["name"]: one["value"] for one in spec["containers"][0]["env"]}
    assert {name: value for name, value in given.items() if name in ("RELIGHT_REPOSITORY", "RELIGHT_MODEL")} == env
    assert [problem.path for problem in converted.left] == left
    if uri and uri.startswith("pvc:"):
        assert {"name": "models", "persistentVolumeClaim": {"claimName": "claim", "readOnly": True}} in spec["volumes"]
        mounts = spec["containers"][0]["volumeMounts"]
        assert {"name": "models", "mountPath": "/models", "readOnly": True} in mounts


def test_the_old_form_of_a_predictor() -> None:
    converted = convert(service({"triton": {"storageUri": "s3://b/m", "runtimeVersion": "23.05"}}), "relight")
    assert [problem.path for problem in converted.left] == ["spec.predictor.triton.runtimeVersion"]


def test_a_metric_that_knatives_autoscaler_does_not_count() -> None:
    converted = convert(service(model("s3://b/m") | {"scaleMetric": "cpu", "scaleTarget": 80}), "relight")
    assert [problem.path for problem in converted.left] == ["spec.predictor.scaleMetric"]


def test_callers_of_the_first_protocol_are_warned() -> None:
    converted = convert(service(model("s3://b/m", protocolVersion="v1")), "relight")
    assert "/v2/models/NAME/infer" in converted.left[0].message


def test_grpc_stays_grpc() -> None:
    converted = convert(service(model("s3://b/m", protocolVersion="grpc-v2")), "relight")
    (container,) = converted.service["spec"]["template"]["spec"]["containers"]
    assert {"name": "RELIGHT_PROTOCOL", "value": "grpc"} in container["env"]
    assert container["ports"] == [{"name": "h2c", "containerPort": 8080}]
    assert container["readinessProbe"] == {"grpc": {"port": 8080, "service": "readiness"}}
    assert converted.left == []


REFUSED = [
    ("another kind", {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "m"}}, "expected a KServe"),
    ("a format that is not served", service({"model": {"modelFormat": {"name": "sklearn"}}}), "exported to ONNX"),
    ("a container of one's own", service({"containers": [{"image": "x"}]}), "a Knative Service as it is"),
    ("nothing", service({}), "expected model, or one of"),
]


@pytest.mark.parametrize(("value", "says"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_cannot_be_converted(value: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        convert(value, "relight")
