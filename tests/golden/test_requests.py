"""Every request that was seen from ``kn`` and ``kubectl``, made again: it is served, in the form that was asked for.

The recordings hold the requests of commands, not their bodies or answers; bodies are made from the command. A command
that succeeded asked for nothing that a cluster refused, but for what is listed in ``ABSENT``: objects that are looked
for before they are made, or after they were deleted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from golden.shuffling import Renaming, recorded, seeded
from kubekit import Running

from relight.local.kube import kinds
from relight.local.kube.store import ObjectStore

NAMES = ("knc", "knb", "knt", "knp", "kb", "kbt", "nsx", "s1", "nope", "hello", "evlog", "tor", "hello-def")
POD = "-00001-deployment-7c9d6df9f7-x8xlr"
TABLE = "application/json;as=Table"

COMMANDS = [
    pytest.param(tool, one, id=one["command"][:60])
    for tool in ("kn", "kubectl")
    for one in recorded(f"{tool}-requests.json")["commands"]
]

ABSENT = {
    "kn service create": (0,),
    "kn service delete": (),
    "kn service describe nope": (0,),
    "kubectl diff": (1, 3),
    "kubectl apply -f": (4, 6),
    "kubectl delete -f": (3, 4),
    "kubectl delete secret": (2,),
    "kubectl get ksvc nope": (1,),
}
"""Commands whose requests (by place) ask for what is not there."""

EXISTS = {
    "kn": ("knc", "knb", "knt", "knp", "hello", "evlog", "tor", "hello-def"),
    "kubectl": ("kb", "kbt", "s1", "nsx"),
}
"""What is there before a command, where it is not made by that command."""
MAKES = {
    "kn service create": ("knc",),
    "kn broker create": ("knb",),
    "kn trigger create": ("knt",),
    "kn source ping create": ("knp",),
    "kubectl diff": ("kb", "kbt"),
    "kubectl apply -f": ("kb", "kbt"),
    "kubectl create namespace": ("nsx",),
    "kubectl create secret": ("s1",),
}


def service(name: str) -> dict[str, Any]:
    spec = {"template": {"spec": {"containers": [{"image": "dev.local/hello:v2"}]}}}
    return {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def revision(name: str) -> dict[str, Any]:
    made = recorded("object-revision-hello-00002.json")
    labels = {"serving.knative.dev/service": name.rpartition("-")[0]}
    return made | {"metadata": {"name": name, "labels": labels}}


def trigger(name: str) -> dict[str, Any]:
    spec = {"broker": "b", "subscriber": {"uri": "http://x"}}
    return {"apiVersion": "eventing.knative.dev/v1", "kind": "Trigger", "metadata": {"name": name}, "spec": spec}


def objects(tool: str, command: str) -> Iterator[tuple[kinds.Kind, dict[str, Any]]]:
    made = next((names for start, names in MAKES.items() if command.startswith(start)), ())
    for name in EXISTS[tool]:
        if name in made:
            continue
        if name == "knb":
            yield kinds.BROKER, {"metadata": {"name": name}, "spec": {}}
        elif name in ("knt", "kbt"):
            yield kinds.TRIGGER, trigger(name)
        elif name == "knp":
            yield kinds.PING_SOURCE, {"metadata": {"name": name}, "spec": {"schedule": "* * * * *"}}
        elif name == "s1":
            yield kinds.SECRET, {"metadata": {"name": name}, "data": {"a": "Yg=="}}
        elif name == "nsx":
            yield kinds.NAMESPACE, {"metadata": {"name": name}}
        else:
            yield kinds.SERVICE, service(name)
            yield kinds.ROUTE, {"metadata": {"name": name}, "spec": {"traffic": []}}
            for number in ("00001", "00002"):
                yield kinds.REVISION, revision(f"{name}-{number}")
    pod = {"metadata": {"name": "kb" + POD, "labels": {"serving.knative.dev/service": "kb"}}}
    yield kinds.POD, pod | {"spec": {"containers": [{"name": "user-container"}]}}


def proto(*fields: tuple[int, bytes]) -> bytes:
    return b"".join(bytes([number << 3 | 2, len(value)]) + value for number, value in fields)


def protobuf(name: str, kind: str) -> bytes:
    """A native object as kubectl sends it: a type, and the object in Kubernetes' protobuf."""
    raw = proto((1, proto((1, name.encode()))))
    if kind == "Secret":
        raw += proto((2, proto((1, b"a"), (2, b"b"))))
    return b"k8s\0" + proto((1, proto((1, b"v1"), (2, kind.encode()))), (2, raw))


class Replay:
    """One command's requests, in order, on one server."""

    def __init__(self, raw: Any, renamed: Renaming) -> None:
        self._raw = raw
        self._renamed = renamed

    def ask(self, request: dict[str, Any], command: str) -> Any:
        path = self._renamed(request["path"])
        path = self._current(path)
        content_type = request.get("Content-Type", "")
        body = self._body(request["method"], path, content_type, command)
        headers = {"Content_Type": content_type, "Accept": request.get("Accept", "")}
        return self._raw(request["method"], path, body, **headers)

    def _current(self, path: str) -> str:
        """Versions and tokens of now instead of those of then; watches that end."""
        if "continue=" in path:
            before = re.sub(r"continue=[^&]*&?", "", path).replace("limit=500", "limit=1")
            token = self._raw("GET", before).json["metadata"]["continue"]
            path = re.sub(r"continue=[^&]*", f"continue={token}", path)
        if "watch=true" in path:
            listed = path.partition("?")[0]
            version = self._raw("GET", listed).json["metadata"]["resourceVersion"]
            path = re.sub(r"resourceVersion=\d+", f"resourceVersion={version}", path)
            path = re.sub(r"timeoutSeconds=\d+", "timeoutSeconds=1", path)
        return path

    def _body(self, method: str, path: str, content_type: str, command: str) -> Any:
        if method in ("GET", "DELETE"):
            return {"kind": "DeleteOptions", "apiVersion": "v1"} if method == "DELETE" else None
        parts = urlsplit(path).path.split("/")
        plural, name = (parts[-1], "") if method == "POST" else (parts[-2], parts[-1])
        if "protobuf" in content_type:
            kind = "Namespace" if plural == "namespaces" else "Secret"
            return protobuf(self._renamed.names["nsx" if kind == "Namespace" else "s1"], kind)
        made = {
            "services": (service, ("knc", "kb")),
            "triggers": (trigger, ("knt", "kbt")),
            "brokers": (lambda name: {"metadata": {"name": name}}, ("knb",)),
            "pingsources": (
                lambda name: {
                    "metadata": {"name": name},
                    "spec": {"schedule": "* * * * *", "sink": {"uri": "http://x"}},
                },
                ("knp",),
            ),
        }
        make, names = made.get(plural, (None, ()))
        if method == "POST" and make is not None:
            return make(self._renamed.names[names[0] if command.startswith("kn ") else names[-1]])
        if method == "PUT" and make is not None:
            old = self._raw("GET", path).json
            return {**old, "spec": {**old["spec"], **make(name)["spec"]}}
        if "apply-patch" in content_type and make is not None:
            applied = make(name)
            if "kubectl-last-applied" in path:  # moving from client-side to server-side: the annotation alone
                annotations = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
                return {key: applied[key] for key in ("apiVersion", "kind")} | {
                    "metadata": {"name": name, "annotations": annotations}
                }
            return applied
        if "json-patch" in content_type:
            return [{"op": "add", "path": "/metadata/labels", "value": {"x": "y"}}]
        return {"metadata": {"labels": {"x": "y"}}}


def form(answer: Any, request: dict[str, Any]) -> None:
    """An answer is in the first form that was asked for."""
    accept, path = request.get("Accept", ""), request["path"]
    content = answer.headers.get_content_type()
    if "/log?" in path:
        assert content == "text/plain"
        return
    assert content == "application/json"
    if "watch=true" in path:
        for line in answer.content.splitlines():
            assert json.loads(line)["type"] in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK")
        return
    said = answer.json
    if answer.status >= 400:
        assert (said["kind"], said["status"], said["code"]) == ("Status", "Failure", answer.status)
    elif accept.startswith(TABLE):
        assert (said["kind"], said["apiVersion"]) == ("Table", "meta.k8s.io/v1")
        assert said["columnDefinitions"][0]["name"] == "Name"
    elif "apidiscovery" in accept:
        assert (said["kind"], said["apiVersion"]) == ("APIGroupDiscoveryList", "apidiscovery.k8s.io/v2")
    elif path.startswith("/openapi/v3"):
        assert ("openapi" in said) is ("apis" in path.partition("?")[0])
    elif path.startswith("/version"):
        assert said["gitVersion"]
    else:
        parts = urlsplit(path).path.split("/")
        query = parse_qs(urlsplit(path).query)
        single = parts[-2] in {kind.plural for kind in kinds.KINDS}
        if request["method"] == "GET" and not single:
            assert said["kind"].endswith("List")
            assert said["metadata"]["resourceVersion"]
            if "limit" in query:
                assert len(said["items"]) <= int(query["limit"][0])


@pytest.mark.parametrize(("tool", "command"), COMMANDS)
def test_every_request_of_a_command_is_served(raw: Any, api: Running, tool: str, command: dict[str, Any]) -> None:
    renamed = Renaming(NAMES, seeded(command["command"]))

    def make(store: ObjectStore) -> None:
        for kind, obj in objects(tool, command["command"]):
            obj = renamed(obj)
            store.create(kind, {**obj, "metadata": {"namespace": "default", **obj["metadata"]}})
        for at in range(3):
            store.create(kinds.EVENT, {"metadata": {"name": f"e{at}", "namespace": "default"}, "reason": "r"})

    api.call(make)
    absent = next((places for start, places in ABSENT.items() if command["command"].startswith(start)), ())
    replay = Replay(raw, renamed)
    for at, request in enumerate(command["requests"]):
        answer = replay.ask(request, command["command"])
        expected = 404 if at in absent else 200
        if request["path"].partition("?")[0].endswith("/log"):
            # the log itself needs a replica; what is asked of it is in the tests of a running platform
            expected = 404
            assert answer.json["message"] == f'pods "{renamed.names["kb"]}{POD}" not found'
            assert answer.status == expected
            continue
        assert answer.status in ((404,) if expected == 404 else (200, 201)), (request, answer.content)
        form(answer, request)
    assert (command["exit"] != 0) is (
        command["command"].endswith(" nope") or command["command"].startswith("kubectl diff")
    )
