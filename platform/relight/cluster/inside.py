"""Looking from inside a cluster: a Job with a function's image, settings and credentials tells what it reaches.

Only a pod knows whether the node can pull the image, whether the network policy lets it out, and whether the account
may read the model repository. One Job per image, without GPU and on any node; it is deleted whatever happens, and ends
by itself where this process could not.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from relight.base.errors import Forbidden, NotFound, RelightError
from relight.base.ids import suffix
from relight.cluster.documents import Document
from relight.cluster.image_checks import CANNOT_PULL, PULLING
from relight.cluster.reasons import why_waiting
from relight.cluster.verdicts import Check, images, revision_spec

if TYPE_CHECKING:
    from relight.cluster.client import Client

MODULE = "relight.store.reaching"
LOOK = 1.0
"""Seconds between two looks at the Job's pod."""
_GRACE = 60
"""Seconds that a Job may outlive our patience: then the cluster ends it, and five minutes later forgets it."""
_GPU_HOSTS = ("nvidia.com/", "amd.com/", "gpu.intel.com/")
_POD = ("serviceAccountName", "imagePullSecrets", "securityContext")
_STORAGE = "check RELIGHT_REPOSITORY, the Secret relight-credentials, the account's rights, and network policies"


def look_inside(
    kube: Client,
    documents: Sequence[Document],
    namespace: str,
    *,
    timeout: float = 120.0,
    on_progress: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> list[Check]:
    """What a pod of each image finds; nothing is raised for what it does not reach."""
    found: list[Check] = []
    for image in sorted(images(documents)):
        service = _service(documents, image)
        try:
            job = build_job(service, f"relight-doctor-{suffix()}", timeout, documents)
            job["metadata"]["namespace"] = namespace
            _use_what_is_there(kube, job["spec"]["template"]["spec"], namespace)
            found += _look(kube, job, image, namespace, timeout, on_progress, clock, pause)
        except Forbidden as error:
            found.append(Check("inside", "unknown", f"this user may not start a Job: {error.message}"))
        except RelightError as error:
            found.append(Check("inside", "failed", f"{image}: {error.message}"))
    return found


def build_job(
    service: Mapping[str, Any], name: str, timeout: float, documents: Sequence[Document] = ()
) -> dict[str, Any]:
    """The Job that runs where a Service's pods would, but for its node: no GPU node is woken for this.

    Settings of ConfigMaps among the documents are written into it: they may not have been applied yet.
    """
    spec = revision_spec(service)
    (container, *_) = spec["containers"]
    resources = {
        kind: {key: value for key, value in (given or {}).items() if not str(key).startswith(_GPU_HOSTS)}
        for kind, given in (container.get("resources") or {}).items()
    }
    configs = {one.value["metadata"]["name"]: one.value for one in documents if one.value["kind"] == "ConfigMap"}
    env: dict[str, Any] = {}
    sources = []
    for source in container.get("envFrom") or ():
        config = configs.get((source.get("configMapRef") or {}).get("name"))
        if config is None:
            sources.append(source)
        else:
            env |= {key: {"name": key, "value": value} for key, value in (config.get("data") or {}).items()}
    env |= {one["name"]: one for one in container.get("env") or ()}
    kept = {key: container[key] for key in ("image", "securityContext") if key in container}
    volumes = [dict(one) for one in spec.get("volumes") or () if "image" not in one]
    names = {one["name"] for one in volumes}
    mounts = [one for one in container.get("volumeMounts") or () if one["name"] in names]
    labels = dict(((service["spec"].get("template") or {}).get("metadata") or {}).get("labels") or {})
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "containers": [
            {
                "name": "look",
                "command": ["python", "-m", MODULE],
                **kept,
                "env": list(env.values()),
                "envFrom": sources,
                "resources": resources,
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
        **{key: spec[key] for key in _POD if key in spec},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/part-of": "relight"}},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": round(timeout) + _GRACE,
            "ttlSecondsAfterFinished": 300,
            # Network policies choose the functions' pods by these labels: what they let through is what is looked at.
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _service(documents: Sequence[Document], image: str) -> Mapping[str, Any]:
    """A Service that runs an image; one that serves a model, where there is one: it says most."""
    chosen = [
        document.value
        for document in documents
        if any(str(one.get("image") or "") == image for one in revision_spec(document.value).get("containers") or ())
    ]
    return max(chosen, key=lambda value: "RELIGHT_MODEL" in str(revision_spec(value)))


def _use_what_is_there(kube: Client, pod: dict[str, Any], namespace: str) -> None:
    """Leave out the account and the claims that are still to be applied: no pod would be made for want of them."""
    account = pod.get("serviceAccountName")
    if account and not _exists(kube, "ServiceAccount", account, namespace):
        del pod["serviceAccountName"]
    for volume in pod["volumes"]:
        claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
        if claim and not _exists(kube, "PersistentVolumeClaim", claim, namespace):
            del volume["persistentVolumeClaim"]
            volume["emptyDir"] = {}


def _exists(kube: Client, kind: str, name: str, namespace: str) -> bool:
    try:
        kube.get("v1", kind, name, namespace)
    except NotFound:
        return False
    except Forbidden:
        return True  # who may not look has to believe
    return True


def _look(
    kube: Client,
    job: Mapping[str, Any],
    image: str,
    namespace: str,
    timeout: float,
    on_progress: Callable[[str], None],
    clock: Callable[[], float],
    pause: Callable[[float], None],
) -> list[Check]:
    name = job["metadata"]["name"]
    kube.create(job)
    try:
        ends = clock() + timeout
        said = "no pod was made for it"
        while True:
            pods = kube.list("v1", "Pod", namespace, labels=f"job-name={name}")["items"]
            phase = (pods[0].get("status") or {}).get("phase") if pods else None
            if phase in ("Succeeded", "Failed"):
                return _told(kube, pods[0], image, namespace)
            reason = why_waiting(pods) if pods else None
            if reason is not None and reason.startswith(CANNOT_PULL):
                return [Check("registry", "failed", f"{image}: {reason}", PULLING)]
            said = "it looks around" if phase == "Running" else reason or said
            on_progress(f"{name}: {said}")
            if clock() >= ends:
                why = _event(kube, name, namespace) or said
                return [Check("inside", "failed", f"{image}: nothing was heard after {timeout:g} s: {why}")]
            pause(LOOK)
    finally:
        try:
            kube.delete("batch/v1", "Job", name, namespace)
        except NotFound:
            on_progress(f"{name} is gone already")


def _told(kube: Client, pod: Mapping[str, Any], image: str, namespace: str) -> list[Check]:
    """What the pod printed, as checks."""
    meta = pod["metadata"]
    node = (pod.get("spec") or {}).get("nodeName") or "a node"
    found = [Check("registry", "ok", f"{image} was pulled by {node}")]
    lines = list(kube.logs(meta["name"], namespace, tail=50))
    for line in lines:
        try:
            value = json.loads(line)
            reached, name, finding = bool(value["ok"]), str(value["name"]), str(value["finding"])
        except (ValueError, KeyError, TypeError):
            continue  # a library's word on its way
        verdict, mend = ("ok", "") if reached else ("failed", _STORAGE if name == "repository" else "")
        found.append(Check(f"{name} from inside", verdict, finding, mend))  # type: ignore[arg-type]
    if len(found) == 1:
        last = next((line for line in reversed(lines) if line.strip()), "it printed nothing")
        found.append(Check("inside", "failed", f"{image} does not run python -m {MODULE}: {last}"))
    return found


def _event(kube: Client, name: str, namespace: str) -> str | None:
    """The last Warning about the Job, such as a quota or a pod security level that keeps its pod away."""
    events = kube.list("v1", "Event", namespace)["items"]
    told = [
        str(one.get("message"))
        for one in events
        if one.get("type") == "Warning" and (one.get("involvedObject") or {}).get("name") == name
    ]
    return told[-1] if told else None
