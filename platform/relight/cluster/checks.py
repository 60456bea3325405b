"""What a cluster must have for relight, each checked through its API, with how to mend what is missing.

``check`` asks and decides nothing by itself: who may not look at something gets that said, and no verdict.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from relight.base.errors import Forbidden, NotFound, RelightError
from relight.cluster.documents import Document
from relight.decide import gpus
from relight.decide.features import needed

if TYPE_CHECKING:
    from relight.cluster.client import Client

Verdict = Literal["ok", "warning", "failed", "unknown"]
OLDEST = (1, 16)
"""Knative's oldest version whose Services, flags and Triggers are those that the manifests use."""
_VERSION = re.compile(r"v?(\d+)\.(\d+)")
_FEATURES = ("knative-serving", "config-features")
_RELEASE = "app.kubernetes.io/version"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. ``mend`` is a command or a sentence; empty where nothing has to be done."""

    name: str
    verdict: Verdict
    finding: str
    mend: str = ""


def check(kube: Client, documents: Sequence[Document] = (), namespace: str = "default") -> list[Check]:
    """All checks of a cluster; with ``documents``, also what these ask for: flags, GPUs, a broker's class."""
    steps: tuple[tuple[str, Callable[[], Iterator[Check]]], ...] = (
        ("knative-serving", lambda: _knative(kube, "serving.knative.dev/v1", "Service", "knative-serving")),
        ("knative-eventing", lambda: _knative(kube, "eventing.knative.dev/v1", "Trigger", "knative-eventing")),
        ("features", lambda: _features(kube, documents)),
        ("gpu", lambda: _gpus(kube, documents)),
        ("broker", lambda: _brokers(kube, namespace)),
        ("repository", lambda: _repository(kube, documents, namespace)),
    )
    found: list[Check] = []
    for name, step in steps:
        try:
            found += step()
        except Forbidden as error:
            found.append(Check(name, "unknown", f"this user may not look: {error.message}"))
        except RelightError as error:
            found.append(Check(name, "failed", error.message))
    return found


def features_of(value: Mapping[str, Any]) -> set[str]:
    """The flags of Knative that an object needs; none for anything but a Knative Service."""
    return {flag for flag, _ in needed(_revision_spec(value))}


def _knative(kube: Client, api_version: str, kind: str, namespace: str) -> Iterator[Check]:
    install = "https://knative.dev/docs/install/"
    try:
        kube.list(api_version, kind, everywhere=True)
    except NotFound:
        yield Check(namespace, "failed", f"{kube.server} does not serve {api_version}", f"install it: {install}")
        return
    if kube.takes_folders():
        yield Check(namespace, "ok", "local mode")
        return
    text = _installed_version(kube, namespace)
    match = _VERSION.match(text or "")
    if match is None:
        yield Check(namespace, "unknown", "its version is not known")
    elif (int(match[1]), int(match[2])) < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        yield Check(namespace, "failed", f"version {text} is older than {wanted}", f"upgrade it: {install}")
    else:
        yield Check(namespace, "ok", f"version {text}")


def _installed_version(kube: Client, namespace: str) -> str | None:
    """The version in the labels of Knative's own Deployments."""
    for one in kube.list("apps/v1", "Deployment", namespace)["items"]:
        version = (one["metadata"].get("labels") or {}).get(_RELEASE)
        if version:
            return str(version)
    return None


def _features(kube: Client, documents: Sequence[Document]) -> Iterator[Check]:
    wanted: dict[str, list[str]] = {}
    for document in documents:
        for flag, field in needed(_revision_spec(document.value)):
            wanted.setdefault(flag, []).append(f"{document.value['metadata']['name']}: {field}")
    namespace, name = _FEATURES
    try:
        given: Mapping[str, str] = kube.get("v1", "ConfigMap", name, namespace).get("data") or {}
    except NotFound:
        given = {}
    missing = sorted(flag for flag in wanted if given.get(flag, "disabled") == "disabled")
    for flag in missing:
        patch = f'{{"data":{{"{flag}":"enabled"}}}}'
        mend = f"kubectl patch configmap {name} -n {namespace} --type merge -p '{patch}'"
        yield Check("features", "failed", f"{flag} is off, and needed by {', '.join(wanted[flag])}", mend)
    if not missing:
        yield Check("features", "ok", f"{len(wanted)} flags are needed, and on" if wanted else "none is needed")


def _gpus(kube: Client, documents: Sequence[Document]) -> Iterator[Check]:
    asked = {
        found[0]: str(document.value["metadata"]["name"])
        for document in documents
        if (found := gpus.wanted(_revision_spec(document.value))) is not None
    }
    nodes = kube.list("v1", "Node")["items"]
    offered = sorted({name for node in nodes for name in (node.get("status") or {}).get("allocatable") or {}})
    offered = [name for name in offered if "/" in name and gpus.wanted(_asking(name)) is not None]
    for resource, who in sorted(asked.items()):
        there = gpus.gpus(nodes, resource)
        if there:
            yield Check("gpu", "ok", f"{resource}: {', '.join(f'{gpu.product} on {gpu.node}' for gpu in there)}")
        elif offered:
            yield Check(
                "gpu",
                "failed",
                f"{who} asks for {resource}, and the nodes offer {', '.join(offered)}",
                "ask for one of these in relight.yaml, or change the nodes' MIG layout",
            )
        else:
            yield Check(
                "gpu",
                "warning",
                f"{who} asks for {resource}, and no node offers a GPU now",
                "install NVIDIA's device plugin on the GPU nodes, unless they are made when they are asked for",
            )
    if not asked:
        yield Check(
            "gpu", "ok", f"offered: {', '.join(offered)}" if offered else "no node offers one, none is asked for"
        )


def _brokers(kube: Client, namespace: str) -> Iterator[Check]:
    for broker in kube.list("eventing.knative.dev/v1", "Broker", namespace)["items"]:
        meta = broker["metadata"]
        kind = (meta.get("annotations") or {}).get("eventing.knative.dev/broker.class", "MTChannelBasedBroker")
        conditions = (broker.get("status") or {}).get("conditions") or ()
        ready: Mapping[str, str] = next((one for one in conditions if one.get("type") == "Ready"), {})
        if ready.get("status") != "True":
            said = ready.get("message") or ready.get("reason") or "no controller has taken it up"
            mend = f"relight describe broker {meta['name']}; is the broker class {kind} installed?"
            yield Check("broker", "failed", f"{meta['name']} ({kind}) is not ready: {said}", mend)
        elif kind == "MTChannelBasedBroker" and not kube.takes_folders():
            yield Check(
                "broker",
                "warning",
                f"{meta['name']} keeps events in memory unless its channel is another",
                "manifests/examples/brokers has Kafka and RabbitMQ",
            )
        else:
            yield Check("broker", "ok", f"{meta['name']} ({kind})")


def _repository(kube: Client, documents: Sequence[Document], namespace: str) -> Iterator[Check]:
    """Whether the functions are told of a model repository that a cluster can read, and have what it asks for."""
    if kube.takes_folders():
        return
    uris = {
        str(value)
        for document in documents
        for value in _settings(document, documents)
        if value is not None and str(value)
    }
    for uri in sorted(uris):
        if uri.startswith("file:///models"):
            yield Check("repository", "ok", f"{uri}: a volume")
        elif uri.startswith("file:"):
            yield Check(
                "repository", "failed", f"{uri} is a folder of one machine", "set RELIGHT_REPOSITORY to an s3:// URI"
            )
        else:
            yield _credentials(kube, uri, namespace)


def _credentials(kube: Client, uri: str, namespace: str) -> Check:
    try:
        kube.get("v1", "Secret", "relight-credentials", namespace)
    except NotFound:
        make = f"kubectl create secret generic relight-credentials -n {namespace} --from-literal=AWS_ACCESS_KEY_ID=…"
        finding = f"{uri}: there is no Secret relight-credentials, so the pods' own account must be allowed to read it"
        return Check("repository", "warning", finding, make)
    return Check("repository", "ok", f"{uri}, with the Secret relight-credentials")


def _settings(document: Document, documents: Sequence[Document]) -> Iterator[str | None]:
    """RELIGHT_REPOSITORY as a Service has it: in its env, or in a ConfigMap beside it."""
    for container in _revision_spec(document.value).get("containers") or ():
        yield from (one.get("value") for one in container.get("env") or () if one.get("name") == "RELIGHT_REPOSITORY")
        names = {(one.get("configMapRef") or {}).get("name") for one in container.get("envFrom") or ()} - {None}
        for other in documents:
            if other.value["kind"] == "ConfigMap" and other.value["metadata"]["name"] in names:
                yield (other.value.get("data") or {}).get("RELIGHT_REPOSITORY")


def _revision_spec(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """The pod part of a Knative Service; empty for anything else."""
    if value["kind"] != "Service" or not str(value["apiVersion"]).startswith("serving.knative.dev/"):
        return {}
    found: Mapping[str, Any] = ((value.get("spec") or {}).get("template") or {}).get("spec") or {}
    return found


def _asking(resource: str) -> Mapping[str, Any]:
    return {"containers": [{"resources": {"limits": {resource: 1}}}]}
