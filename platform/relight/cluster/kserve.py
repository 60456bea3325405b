"""From KServe's InferenceService to a Knative Service on relight's image; what is left behind is said. Pure.

Carried over: the model's place in storage, its version of the protocol where relight speaks it, resources (GPUs
included), scaling, timeouts, concurrency, placement, environment, account, labels and annotations of Knative.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from relight.base.errors import BadInput, Problem
from relight.cluster.pods import harden, speaking_grpc, speaking_http

FORMATS = {"onnx": "onnx", "pytorch": "torch", "torch": "torch", "tensorrt": "tensorrt", "triton": "triton"}
"""KServe's model formats that relight's image can serve."""
_POD = (
    *("nodeSelector", "tolerations", "affinity", "serviceAccountName", "imagePullSecrets", "runtimeClassName"),
    *("priorityClassName", "topologySpreadConstraints", "timeoutSeconds"),
)
_SCALE = {
    "minReplicas": "autoscaling.knative.dev/min-scale",
    "maxReplicas": "autoscaling.knative.dev/max-scale",
    "scaleTarget": "autoscaling.knative.dev/target",
    "scaleMetric": "autoscaling.knative.dev/metric",
}
_METRICS = ("concurrency", "rps")
_KNATIVE = ("autoscaling.knative.dev/", "serving.knative.dev/", "queue.sidecar.serving.knative.dev/")


@dataclass
class Converted:
    """A Service, and what of the InferenceService it does not have: field path and why."""

    service: dict[str, Any]
    left: list[Problem] = field(default_factory=list)


def convert(value: Mapping[str, Any], image: str) -> Converted:
    """Convert one InferenceService. BadInput: it is none, or it has no model that relight could serve."""
    if value.get("kind") != "InferenceService" or not str(value.get("apiVersion", "")).startswith("serving.kserve.io/"):
        raise BadInput(f"expected a KServe InferenceService, got {value.get('apiVersion')} {value.get('kind')}")
    return _Conversion(value, image).run()


class _Conversion:
    """One conversion: reads the fields that it knows, and remembers those that it does not."""

    def __init__(self, value: Mapping[str, Any], image: str) -> None:
        self._meta: Mapping[str, Any] = value["metadata"]
        self._spec: Mapping[str, Any] = value.get("spec") or {}
        self._image = image
        self._left: list[Problem] = []
        self._volumes: list[dict[str, Any]] = []

    def run(self) -> Converted:
        predictor = self._spec.get("predictor")
        if not isinstance(predictor, Mapping):
            raise BadInput("spec.predictor: expected a mapping", param="spec.predictor")
        for part, why in (
            (
                "transformer",
                "make it a step of its own (relight new step) and put both in a Sequence, or call one first",
            ),
            ("explainer", "relight explains no predictions"),
        ):
            if self._spec.get(part):
                self._leave(f"spec.{part}", why)
        model, where = self._model(predictor)
        container = self._container(model, where)
        spec: dict[str, Any] = {"containers": [container]}
        spec |= {key: predictor[key] for key in _POD if predictor.get(key) is not None}
        if predictor.get("timeout") is not None:
            spec["timeoutSeconds"] = int(predictor["timeout"])
        if predictor.get("containerConcurrency") is not None:
            spec["containerConcurrency"] = int(predictor["containerConcurrency"])
        spec["volumes"] = [*(predictor.get("volumes") or ()), *self._volumes]
        harden(spec)
        self._rest(predictor)
        template: dict[str, Any] = {"spec": spec}
        annotations = self._annotations(predictor)
        labels = {"app.kubernetes.io/part-of": "relight"}
        template["metadata"] = {"labels": labels} | ({"annotations": annotations} if annotations else {})
        metadata: dict[str, Any] = {"name": self._meta["name"]}
        if self._meta.get("namespace"):
            metadata["namespace"] = self._meta["namespace"]
        metadata["labels"] = {**(self._meta.get("labels") or {}), **labels}
        service = {
            "apiVersion": "serving.knative.dev/v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"template": template},
        }
        return Converted(service, self._left)

    def _model(self, predictor: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
        """The model's part of the predictor: of the new form, or of the old one, where the format is the key."""
        model = predictor.get("model")
        if isinstance(model, Mapping):
            name = str((model.get("modelFormat") or {}).get("name", ""))
            if name not in FORMATS:
                raise BadInput(
                    f"spec.predictor.model.modelFormat.name: {name!r} is not served by relight; expected one of "
                    f"{', '.join(FORMATS)} (sklearn, xgboost and others can be exported to ONNX)"
                )
            return model, "spec.predictor.model"
        for name in FORMATS:
            if isinstance(predictor.get(name), Mapping):
                return predictor[name], f"spec.predictor.{name}"
        if predictor.get("containers"):
            raise BadInput(
                "spec.predictor.containers: a custom container is no model; it is a Knative Service as it is"
            )
        known = ", ".join(FORMATS)
        raise BadInput(f"spec.predictor: expected model, or one of {known}; got {', '.join(predictor) or 'nothing'}")

    def _container(self, model: Mapping[str, Any], where: str) -> dict[str, Any]:
        env = {"RELIGHT_FUNCTION": "model", **self._storage(model, where)}
        protocol = str(model.get("protocolVersion") or "v2")
        if protocol == "grpc-v2":
            env["RELIGHT_PROTOCOL"] = "grpc"
        elif protocol != "v2":
            self._leave(
                f"{where}.protocolVersion", "callers have to speak V2: /v2/models/NAME/infer instead of :predict"
            )
        for key, why in (
            ("runtime", "relight's image is the runtime"),
            ("runtimeVersion", "relight's image is the runtime"),
            ("args", "arguments of another server"),
            ("command", "the command of another server"),
            ("storage", "set RELIGHT_REPOSITORY and the Secret relight-credentials instead"),
            ("ports", "relight listens on $PORT; for gRPC set RELIGHT_PROTOCOL and name the port h2c"),
        ):
            if model.get(key):
                self._leave(f"{where}.{key}", why)
        container: dict[str, Any] = {
            "name": "user-container",
            "image": self._image,
            "env": [{"name": name, "value": text} for name, text in env.items()] + list(model.get("env") or ()),
            **(speaking_grpc() if protocol == "grpc-v2" else speaking_http("/health/liveness", "/health/readiness")),
        }
        if model.get("resources"):
            container["resources"] = model["resources"]
        mounts = [*(model.get("volumeMounts") or ())]
        mounts += [{"name": one["name"], "mountPath": "/models", "readOnly": True} for one in self._volumes]
        if mounts:
            container["volumeMounts"] = mounts
        return container

    def _storage(self, model: Mapping[str, Any], where: str) -> dict[str, str]:
        """Repository and model of a storageUri: the last folder is the model, what is before it the repository."""
        uri = str(model.get("storageUri") or "")
        scheme, _, rest = uri.partition("://")
        parent, _, name = rest.rstrip("/").rpartition("/")
        if not uri:
            self._leave(f"{where}.storageUri", "not given: set RELIGHT_REPOSITORY and RELIGHT_MODEL")
            return {"RELIGHT_MODEL": str(self._meta["name"])}
        if scheme == "pvc":
            claim, _, path = rest.partition("/")
            self._volumes.append({"name": "models", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
            parent, _, name = path.rstrip("/").rpartition("/")
            return {
                "RELIGHT_REPOSITORY": "file:///models" + (f"/{parent}" if parent else ""),
                "RELIGHT_MODEL": name or str(self._meta["name"]),
            }
        if scheme != "s3":
            self._leave(
                f"{where}.storageUri", f"{uri}: relight reads s3:// and volumes; push the model: relight model push"
            )
            return {"RELIGHT_MODEL": name or str(self._meta["name"])}
        return {"RELIGHT_REPOSITORY": f"s3://{parent}", "RELIGHT_MODEL": name}

    def _annotations(self, predictor: Mapping[str, Any]) -> dict[str, str]:
        found = {}
        for key, text in (self._meta.get("annotations") or {}).items():
            if key.startswith(_KNATIVE):
                found[key] = str(text)
            elif key.startswith("serving.kserve.io/"):
                self._leave(f"metadata.annotations.{key}", "an instruction to KServe")
        for key, annotation in _SCALE.items():
            given = predictor.get(key)
            if given is None:
                continue
            if key == "scaleMetric" and given not in _METRICS:
                self._leave(f"spec.predictor.{key}", f"{given}: Knative's autoscaler counts concurrency or rps")
                continue
            found[annotation] = str(given)
        return found

    def _rest(self, predictor: Mapping[str, Any]) -> None:
        """What nobody has read."""
        known = {*_POD, *_SCALE, *FORMATS, "model", "timeout", "containerConcurrency", "volumes"}
        reasons = {
            "canaryTrafficPercent": "relight traffic NAME --canary PERCENT does this after the deployment",
            "batcher": "dynamic_batching in config.pbtxt does this",
            "logger": "relight does not log payloads",
        }
        for key in sorted(predictor.keys() - known):
            self._leave(f"spec.predictor.{key}", reasons.get(key, "not known to relight"))

    def _leave(self, path: str, why: str) -> None:
        self._left.append(Problem(path, why))
