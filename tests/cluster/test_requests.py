"""What the command line sends to a cluster: valid by Knative's own schemas; and what a real cluster refused is told."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tables import ROOT

from relight.cluster.deployed import deployed
from relight.cluster.inside import look_inside
from relight.local.kube import kinds
from relight.net.kube import Kube

Run = Callable[..., tuple[int, str, str]]
CHECK = ROOT.parent / "shared" / "tools" / "check-manifests"
RECORDED = json.loads((ROOT / "tests/golden/api.json").read_text())["cases"]
REFUSED = [
    case
    for case in RECORDED
    if case["method"] == "POST"
    and case["status"] >= 400
    and isinstance(case["body"], dict)
    and "metadata" in case["body"]
]
OTHERWISE = {
    "wrong type": "a cluster names its Go structs",
    "bad name": "the name is part of the path of an apply",
    "lifecycle not allowed": "the recording did not ask for strict fields, as relight does: it is refused sooner",
}
"""Refusals whose words are others, and why."""
GPU = """
spec: {template: {spec: {containers: [{resources: {limits: {nvidia.com/gpu: "1"}}}]}}}
policy: {slo: {latency: 1s}}
"""


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in REFUSED])
def test_what_a_real_cluster_refused_is_refused_with_its_words(
    relight: Run, client: Any, tmp_path: Path, case: dict[str, Any]
) -> None:
    (tmp_path / "object.yaml").write_text(yaml.safe_dump(case["body"]))
    code, out, err = relight("apply", "-f", "object.yaml")
    assert (code, out) == (7, ""), err
    assert err.startswith("error: object.yaml: ")
    message = case["answer"]["message"]
    if case["name"] not in OTHERWISE:
        assert " ".join(message.split()) in " ".join(err.split())
    code, _, said = relight("diff", "-f", "object.yaml")
    assert (code, said != "") == (7, True), "a dry run is refused as well"
    assert client.list(case["body"]["apiVersion"], case["body"]["kind"])["items"] == []


@dataclass(frozen=True)
class Sent:
    method: str
    path: str
    query: Mapping[str, str]
    body: Any
    content_type: str


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Sent]:
    """Every request, as it goes out."""
    requests: list[Sent] = []
    send = Kube._request

    def record(
        self: Kube, method: str, path: str, query: Any, body: bytes | None, content_type: str, timeout: Any
    ) -> Any:
        given = {name: value for name, value in query.items() if value}
        requests.append(Sent(method, path, given, None if body is None else json.loads(body), content_type))
        return send(self, method, path, query, body, content_type, timeout)

    monkeypatch.setattr(Kube, "_request", record)
    return requests


@pytest.mark.usefixtures("a_cluster")
def test_every_request_is_valid_by_the_published_schemas(
    relight: Run, client: Any, api: Any, sent: list[Sent], tmp_path: Path
) -> None:
    image = "registry.example.org/relight@sha256:" + "a" * 64
    prod = str(ROOT / "manifests/overlays/prod")
    relight("new", "model", "bert")
    relight("new", "step", "words")
    (tmp_path / "bert" / "relight.yaml").write_text(GPU)
    func = (tmp_path / "words" / "func.yaml").read_text()
    subscribed = func + "  subscriptions:\n  - source: default\n    filters: {type: a.b}\n"
    assert "\ndeploy:" in func
    (tmp_path / "words" / "func.yaml").write_text(subscribed)
    for arguments in (
        ["apply", "-f", str(ROOT / "manifests/knative/prod.yaml")],
        ["diff", "-k", prod, "--image", f"relight={image}"],
        ["apply", "-k", prod, "--image", f"relight={image}"],
        ["apply", "-k", str(ROOT / "manifests/overlays/local")],
        ["apply", "-f", str(ROOT / "manifests/examples/sequence.yaml"), "-f", str(ROOT / "manifests/examples/sources")],
        ["deploy", "bert", "--image", image, "--no-wait"],
        ["deploy", "words", "--image", image, "--no-wait"],
    ):
        code, _, err = relight(*arguments)
        assert code == 0 or "monitoring.coreos.com" in err, "no API here serves the Prometheus operator's kinds"
    for number in (1, 2):
        make_ready(client, api, number)
    for arguments in (["--canary", "10", "--tag", "next"], ["--canary", "50"], ["--rollback"]):
        code, _, err = relight("traffic", "bert", *arguments)
        assert code == 0, err
    look_inside(client, deployed(client, "default")[:1], "default", timeout=0, pause=lambda seconds: None)
    sent = [one for one in sent if one.body is not None]
    applied = [one for one in sent if one.content_type == "application/apply-patch+yaml"]
    assert {one.body["kind"] for one in applied} >= {
        *("Service", "Broker", "Trigger", "Sequence", "PingSource", "KafkaSource", "ConfigMap", "Role"),
        *("NetworkPolicy", "PodDisruptionBudget", "PriorityClass", "ServiceAccount"),
    }
    for one in applied:
        assert one.query["fieldManager"] == "relight", one.path
        assert one.query["fieldValidation"] == "Strict", one.path
        assert "status" not in one.body
        assert one.path.endswith(f"/{one.body['metadata']['name']}")
    assert {one.content_type for one in sent} == {
        *("application/apply-patch+yaml", "application/merge-patch+json", "application/json")
    }
    bodies = [one.body for one in sent if one.content_type != "application/merge-patch+json"]
    # A merge patch is no whole object: what became of it is.
    bodies += [client.get("serving.knative.dev/v1", "Service", "bert")]
    for body in bodies:
        host = body["apiVersion"].partition("/")[0]
        if "." not in host or host.endswith(".k8s.io"):
            kubernetes_validate.validate(body, "1.36.0", strict=True)
    if not CHECK.exists():
        pytest.skip(f"no {CHECK}: the published schemas are not here")
    folder = tmp_path / "sent"
    folder.mkdir()
    for at, body in enumerate(bodies):
        (folder / f"{at}.yaml").write_text(yaml.safe_dump(body))
    done = subprocess.run([sys.executable, str(CHECK), str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert f"{len(bodies)} documents checked" in done.stdout


def make_ready(client: Any, api: Any, number: int) -> None:
    """What the controllers would: the revision of that number is there, ready, and has all of the traffic."""
    name = f"bert-{number:05d}"
    revision = {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Revision",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {
                "serving.knative.dev/service": "bert",
                "serving.knative.dev/configurationGeneration": str(number),
            },
        },
        "spec": {"containers": [{"image": "registry.example.org/relight:1"}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    api.create(kinds.REVISION, revision)
    ready = {
        "observedGeneration": 99,
        "conditions": [{"type": "Ready", "status": "True"}],
        "latestCreatedRevisionName": name,
        "latestReadyRevisionName": name,
        "traffic": [{"revisionName": "bert-00001", "percent": 100, "latestRevision": True}],
    }

    async def write() -> None:
        api.store.set_status(kinds.SERVICE, "default", "bert", ready)

    api.run(write())


def rules(kind: str, name: str) -> list[dict[str, Any]]:
    """The rules of a role of the overlay `prod`, all of that name together."""
    roles = yaml.safe_load_all((ROOT / "manifests/overlays/prod/access.yaml").read_text())
    named = [one for one in roles if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return [rule | {"namespace": one["metadata"].get("namespace", "default")} for one in named for rule in one["rules"]]


def asks_for(one: Sent) -> dict[str, str]:
    """A request as an authorizer sees it."""
    parts = one.path.strip("/").split("/")
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    watched = "watch" in one.query
    verbs = {"GET": "get" if len(rest) > 1 else "watch" if watched else "list"}
    verbs |= {"POST": "create", "PATCH": "patch", "DELETE": "delete"}
    resource = "/".join([rest[0], *rest[2:]])
    return {"group": group, "namespace": namespace, "resource": resource, "verb": verbs[one.method]}


def allowed(asked: dict[str, str], given: list[dict[str, Any]], *, everywhere: bool = False) -> bool:
    return any(
        asked["group"] in rule["apiGroups"]
        and asked["resource"] in rule["resources"]
        and asked["verb"] in rule["verbs"]
        and (everywhere or asked["namespace"] == rule["namespace"])
        for rule in given
    )


@pytest.mark.usefixtures("a_cluster")
def test_the_roles_allow_what_the_commands_ask_for(relight: Run, client: Any, api: Any, sent: list[Sent]) -> None:
    image = "registry.example.org/relight@sha256:" + "a" * 64
    relight("new", "model", "bert")
    for arguments in (["deploy", "bert", "--image", image, "--no-wait"], ["status", "bert"]):
        relight(*arguments)
    for number in (1, 2):
        make_ready(client, api, number)
    for arguments in (
        ["traffic", "bert", "--canary", "10"],
        ["logs", "bert"],
        ["doctor", "--cluster"],
        ["apply", "-f", str(ROOT / "events/flows/documents.yaml"), "-f", str(ROOT / "manifests/examples/sources")],
    ):
        code, _, err = relight(*arguments)
        assert code == 0 or arguments[0] == "doctor", err
    look_inside(client, deployed(client, "default")[:1], "default", timeout=0)
    assert relight("delete", "ksvc", "bert")[0] == 0
    mine = rules("Role", "relight-deployer")
    looking = rules("Role", "relight-viewer")
    everywhere = rules("ClusterRole", "relight-viewer")
    # Whoever may speak to a cluster at all may ask what it serves: /api/v1, /apis/GROUP/VERSION.
    discovery = [one for one in sent if re.fullmatch(r"/api/v1|/apis/[^/]+/[^/]+", one.path)]
    refused = [
        asked
        for asked in map(asks_for, (one for one in sent if one not in discovery))
        if not (allowed(asked, [*mine, *looking]) or allowed(asked, everywhere, everywhere=True))
    ]
    assert refused == []
    verbs = {asks_for(one)["verb"] for one in sent if one not in discovery}
    assert verbs >= {"get", "list", "create", "patch", "delete"}
