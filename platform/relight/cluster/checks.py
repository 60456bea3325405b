"""What a cluster must have for relight, each checked through its API, with how to mend what is missing.

``check`` asks and decides nothing by itself: who may not look at something gets that said, and no verdict.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from relight.base.errors import Forbidden, NotFound, RelightError
from relight.cluster.documents import Document
from relight.cluster.gpu_checks import check_gpus
from relight.cluster.image_checks import check_images
from relight.cluster.verdicts import Check, revision_spec
from relight.decide.features import needed

if TYPE_CHECKING:
    from relight.cluster.client import Client

OLDEST = (1, 16)
"""Knative's oldest version whose Services, flags and Triggers are those that the manifests use."""
_VERSION = re.compile(r"v?(\d+)\.(\d+)")
_FEATURES = ("knative-serving", "config-features")
_EVENTING = "eventing.knative.dev/v1"
_RELEASE = "app.kubernetes.io/version"
_CLASS = "eventing.knative.dev/broker.class"
_DEFAULT_CLASS = "MTChannelBasedBroker"
_CONTROLLERS = {
    _DEFAULT_CLASS: "mt-broker-controller",
    "Kafka": "kafka-controller",
    "RabbitMQBroker": "rabbitmq-broker-controller",
}
"""Class of a broker → the Deployment in ``knative-eventing`` that looks after brokers of that class."""
_OPERATORS = {
    "monitoring.coreos.com": "install the Prometheus operator, or leave out the component `monitoring`",
    "eventing.knative.dev": "install Knative's RabbitMQ broker",
    "sources.knative.dev": "install that source from https://knative.dev/docs/eventing/sources/",
}
"""Group of a kind → who brings it."""


def check(kube: Client, documents: Sequence[Document] = (), namespace: str = "default") -> list[Check]:
    """All checks of a cluster; with ``documents``, also what these ask for: kinds, flags, GPUs, images, brokers."""
    steps: tuple[tuple[str, Callable[[], Iterator[Check]]], ...] = (
        ("knative-serving", lambda: _knative(kube, "serving.knative.dev/v1", "Service", "knative-serving")),
        ("knative-eventing", lambda: _knative(kube, "eventing.knative.dev/v1", "Trigger", "knative-eventing")),
        ("kinds", lambda: _kinds(kube, documents)),
        ("features", lambda: _features(kube, documents)),
        ("gpu", lambda: check_gpus(kube, documents)),
        ("registry", lambda: check_images(kube, documents, namespace)),
        ("broker", lambda: _brokers(kube, documents, namespace)),
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
    return {flag for flag, _ in needed(revision_spec(value))}


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


def _kinds(kube: Client, documents: Sequence[Document]) -> Iterator[Check]:
    wanted: dict[tuple[str, str], list[str]] = {}
    for document in documents:
        key = str(document.value["apiVersion"]), str(document.value["kind"])
        wanted.setdefault(key, []).append(str(document.value["metadata"]["name"]))
    missing = [key for key in wanted if not kube.serves(*key)]
    for api_version, kind in missing:
        who = ", ".join(wanted[api_version, kind])
        mend = _OPERATORS.get(api_version.partition("/")[0], "")
        yield Check("kinds", "failed", f"{kind} ({api_version}) is not known here: {who}", mend)
    if wanted and not missing:
        yield Check("kinds", "ok", f"all are known here ({len(wanted)})")


def _features(kube: Client, documents: Sequence[Document]) -> Iterator[Check]:
    wanted: dict[str, list[str]] = {}
    for document in documents:
        for flag, field in needed(revision_spec(document.value)):
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
        yield Check("features", "ok", f"all that are needed are on ({len(wanted)})" if wanted else "no flag is needed")


def _brokers(kube: Client, documents: Sequence[Document], namespace: str) -> Iterator[Check]:
    there = kube.list(_EVENTING, "Broker", namespace)["items"]
    names = {broker["metadata"]["name"] for broker in there}
    if not kube.takes_folders():
        wanted = [one.value for one in documents if one.value["kind"] == "Broker"]
        yield from _classes(kube, [one for one in wanted if one["metadata"]["name"] not in names])
    for broker in there:
        meta = broker["metadata"]
        kind = _class(broker)
        conditions = (broker.get("status") or {}).get("conditions") or ()
        ready: Mapping[str, str] = next((one for one in conditions if one.get("type") == "Ready"), {})
        if ready.get("status") != "True":
            said = ready.get("message") or ready.get("reason") or "no controller has taken it up"
            mend = f"relight describe broker {meta['name']}; is the broker class {kind} installed?"
            yield Check("broker", "failed", f"{meta['name']} ({kind}) is not ready: {said}", mend)
        elif kind == _DEFAULT_CLASS and not kube.takes_folders():
            yield Check(
                "broker",
                "warning",
                f"{meta['name']} keeps events in memory unless its channel is another",
                "manifests/examples/brokers has Kafka and RabbitMQ",
            )
        else:
            yield Check("broker", "ok", f"{meta['name']} ({kind})")


def _classes(kube: Client, brokers: Sequence[Mapping[str, Any]]) -> Iterator[Check]:
    """Whether somebody will look after brokers that are not there yet."""
    if not brokers:
        return
    running = {one["metadata"]["name"] for one in kube.list("apps/v1", "Deployment", "knative-eventing")["items"]}
    for broker in brokers:
        name, kind = broker["metadata"]["name"], _class(broker)
        controller = _CONTROLLERS.get(kind)
        if controller is None or controller in running:
            yield Check("broker", "ok", f"{name} is to be of class {kind}")
        else:
            finding = f"{name} is to be of class {kind}, and there is no Deployment {controller} in knative-eventing"
            mend = f"install that class (https://knative.dev/docs/eventing/brokers/broker-types/), or change {_CLASS}"
            yield Check("broker", "warning", finding, mend)


def _class(broker: Mapping[str, Any]) -> str:
    return str((broker["metadata"].get("annotations") or {}).get(_CLASS, _DEFAULT_CLASS))


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
    for container in revision_spec(document.value).get("containers") or ():
        yield from (one.get("value") for one in container.get("env") or () if one.get("name") == "RELIGHT_REPOSITORY")
        names = {(one.get("configMapRef") or {}).get("name") for one in container.get("envFrom") or ()} - {None}
        for other in documents:
            if other.value["kind"] == "ConfigMap" and other.value["metadata"]["name"] in names:
                yield (other.value.get("data") or {}).get("RELIGHT_REPOSITORY")
