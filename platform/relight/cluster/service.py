"""From a function to its objects: a Knative Service, and a Trigger per subscription. Pure.

What is written is what ``func deploy`` writes for the same func.yaml (labels, probes, scale annotations, names of
Triggers), plus relight's own annotations on the template, and the patch of relight.yaml over all of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relight.base.errors import Problem, Unprocessable
from relight.cluster.merge import merge
from relight.cluster.pods import harden, speaking_grpc, speaking_http
from relight.cluster.project import Project
from relight.wire.funcyaml import Env, FuncYaml

SOURCE = "relight.dev/source"
DIGEST = "relight.dev/source-digest"
PRELOAD = "relight.dev/preload"
BACKING = "relight.dev/backing"
MODEL_VERSION = "relight.dev/model-version"
POLICY = "relight.dev/policy"

CONTAINER = "user-container"
"""The name that Knative gives a container without one."""


@dataclass(frozen=True)
class Options:
    """What the folder does not say."""

    namespace: str = "default"
    image: str = "relight"
    """In local mode the name that stands for "run the folder of the source annotation"."""
    folder: bool = True
    """Whether the cluster runs folders, as local mode does; if not, the image is what runs there."""
    function: str | None = None
    """Which function of relight's image runs, where the image is that and func.yaml names none."""
    repository: str | None = None
    """The model repository, for a cluster whose functions are not told of one."""
    digest: str | None = None
    """The folder's digest: with it, an edit makes a new revision."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """What ``{{ env:X }}`` is looked up in."""
    model_version: int | None = None
    """The version that the revision is pinned to, where func.yaml names a model and no version."""


def build_service(project: Project, options: Options) -> dict[str, Any]:
    """The Knative Service. Unprocessable: a reference that cannot be resolved, a patch that breaks the Service."""
    function = project.function
    env, everything, problems = _environment(function, options)
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": options.image,
        "env": env,
        **_serving(function, env),
    }
    resources = {key: dict(getattr(function.resources, key)) for key in ("requests", "limits")}
    container |= (
        {"resources": {key: value for key, value in resources.items() if value}} if any(resources.values()) else {}
    )
    if everything:
        container["envFrom"] = everything
    spec: dict[str, Any] = {"containers": [container]}
    if function.resources.concurrency is not None:
        spec["containerConcurrency"] = function.resources.concurrency
    if function.service_account:
        spec["serviceAccountName"] = function.service_account
    if function.image_pull_secret:
        spec["imagePullSecrets"] = [{"name": function.image_pull_secret}]
    if function.volumes:
        names = [f"volume-{at}" for at in range(len(function.volumes))]
        spec["volumes"] = [
            {"name": name, **volume.source} for name, volume in zip(names, function.volumes, strict=True)
        ]
        container["volumeMounts"] = [
            {"name": name, "mountPath": volume.path} for name, volume in zip(names, function.volumes, strict=True)
        ]
    if not options.folder:
        harden(spec)
    labels = _labels(function)
    metadata: dict[str, Any] = {"name": function.name, "namespace": options.namespace, "labels": labels}
    annotations = dict(function.annotations)
    if project.policy:
        annotations[POLICY] = json.dumps(project.policy, sort_keys=True)
    if annotations:
        metadata["annotations"] = annotations
    service = {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "template": {
                "metadata": {"labels": labels, "annotations": _template_annotations(project, options)},
                "spec": spec,
            }
        },
    }
    if problems:
        raise Unprocessable.of(problems)
    return merge(service, _named(project.patch))


def _serving(function: FuncYaml, env: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """How the container is spoken to: where it speaks gRPC, its one port says so and the probes ask in its way."""
    if {"name": "RELIGHT_PROTOCOL", "value": "grpc"} in env:
        return speaking_grpc()
    return speaking_http(function.liveness, function.readiness)


def build_triggers(project: Project, namespace: str, owner: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """A Trigger per subscription; ``owner`` is the Service as the API has it: the Triggers go when it goes."""
    function = project.function
    triggers: dict[str, dict[str, Any]] = {}
    for subscription in function.subscriptions:
        name = trigger_name(function.name, subscription.source, subscription.filters)
        metadata: dict[str, Any] = {"name": name, "namespace": namespace, "labels": _labels(function)}
        if owner is not None:
            metadata["ownerReferences"] = [
                {
                    "apiVersion": "serving.knative.dev/v1",
                    "kind": "Service",
                    "name": function.name,
                    "uid": owner["metadata"]["uid"],
                }
            ]
        spec: dict[str, Any] = {
            "broker": subscription.source,
            "subscriber": {"ref": {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": function.name}},
        }
        if subscription.filters:
            spec["filter"] = {"attributes": dict(subscription.filters)}
        triggers[name] = {
            "apiVersion": "eventing.knative.dev/v1",
            "kind": "Trigger",
            "metadata": metadata,
            "spec": spec,
        }
    return list(triggers.values())


def build_objects(project: Project, options: Options) -> list[dict[str, Any]]:
    """All objects of a function, in the order in which they are applied."""
    return [build_service(project, options), *build_triggers(project, options.namespace)]


def trigger_name(function: str, broker: str, filters: Mapping[str, str]) -> str:
    """``<function>-trigger-<8 hex digits>``, from what is subscribed to, so that order in the file does not matter."""
    text = "|".join((broker, *(f"{key}={filters[key]}" for key in sorted(filters))))
    return f"{function}-trigger-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def model_of(function: FuncYaml) -> str | None:
    """The model of the repository that a function serves without naming a version.

    None: there is none, it names its version, or there are several.
    """
    values = {env.name: env.value for env in function.envs}
    model = values.get("RELIGHT_MODEL")
    if model is None or "," in model or model == "*" or "RELIGHT_MODEL_VERSION" in values:
        return None
    return model


def _labels(function: FuncYaml) -> dict[str, str]:
    """The user's, those by which ``func list`` finds its functions, and the one that policies and monitors go by."""
    return {"app.kubernetes.io/part-of": "relight", **function.labels} | {
        "function.knative.dev": "true",
        "function.knative.dev/name": function.name,
        "function.knative.dev/runtime": function.runtime,
    }


def _template_annotations(project: Project, options: Options) -> dict[str, str]:
    scale = project.function.scale
    values: dict[str, object | None] = {
        "autoscaling.knative.dev/min-scale": scale.min,
        "autoscaling.knative.dev/max-scale": scale.max,
        "autoscaling.knative.dev/metric": scale.metric,
        "autoscaling.knative.dev/target": None if scale.target is None else f"{scale.target:g}",
        "autoscaling.knative.dev/target-utilization-percentage": None
        if scale.utilization is None
        else f"{scale.utilization:g}",
        "serving.knative.dev/progress-deadline": f"{project.function.start_timeout}s"
        if project.function.start_timeout
        else None,
        SOURCE: project.folder if options.folder else None,
        DIGEST: options.digest if options.folder else None,
        PRELOAD: (",".join(project.preload) or None) if options.folder else None,
        BACKING: (",".join(project.backing) or None) if options.folder else None,
        MODEL_VERSION: options.model_version if model_of(project.function) else None,
    }
    return dict(project.function.annotations) | {key: str(value) for key, value in values.items() if value is not None}


def _environment(function: FuncYaml, options: Options) -> tuple[list[dict[str, Any]], list[Any], list[Problem]]:
    """(env, envFrom, what is wrong) of the container."""
    problems: list[Problem] = []
    values: dict[str, dict[str, Any]] = {}
    everything: list[dict[str, Any]] = []
    for at, env in enumerate(function.envs):
        entry = _entry(env, f"func.yaml: run.envs[{at}].value", options, problems)
        if env.name is None:
            everything += [entry] if entry else []
        elif entry is not None:
            values[env.name] = {"name": env.name, **entry}  # as in Kubernetes, the last of a name holds
    if options.model_version is not None and model_of(function):
        values["RELIGHT_MODEL_VERSION"] = {"name": "RELIGHT_MODEL_VERSION", "value": str(options.model_version)}
    for name, value in (("RELIGHT_FUNCTION", options.function), ("RELIGHT_REPOSITORY", options.repository)):
        if value is not None:
            values.setdefault(name, {"name": name, "value": value})
    return list(values.values()), everything, problems


def _entry(env: Env, path: str, options: Options, problems: list[Problem]) -> dict[str, Any] | None:
    """The value of one variable, or where it is read from; for all keys of a Secret, an entry of envFrom."""
    reference = env.reference
    if reference is None:
        return {"value": env.value}
    if reference.kind != "env":
        kind = "secret" if reference.kind == "secret" else "configMap"
        if reference.key is None:
            if env.name is not None:
                problems.append(Problem(path, f"{reference}: expected a key, as {{{{ {reference.kind}:NAME:KEY }}}}"))
            return {f"{kind}Ref": {"name": reference.name}}
        return {"valueFrom": {f"{kind}KeyRef": {"name": reference.name, "key": reference.key}}}
    if reference.name not in options.environ:
        problems.append(Problem(path, f"{reference}: the variable {reference.name} is not set"))
        return None
    return {"value": options.environ[reference.name]}


def _named(patch: Mapping[str, Any]) -> Mapping[str, Any]:
    """The patch with the container's name filled in, so that a lone nameless container means the function's."""
    spec = patch.get("spec")
    template = spec.get("template") if isinstance(spec, Mapping) else None
    pod = template.get("spec") if isinstance(template, Mapping) else None
    containers = pod.get("containers") if isinstance(pod, Mapping) else None
    if not isinstance(containers, list) or len(containers) != 1 or not isinstance(containers[0], Mapping):
        return patch
    named = [{"name": CONTAINER, **containers[0]}]
    return {**patch, "spec": {**spec, "template": {**template, "spec": {**pod, "containers": named}}}}  # type: ignore[dict-item]
