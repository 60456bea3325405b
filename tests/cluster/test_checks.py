"""What a cluster lacks for some manifests, and how that is mended."""

from __future__ import annotations

from typing import Any

import pytest
from tables import ROOT

from relight.cluster.checks import check
from relight.cluster.documents import read_documents
from relight.cluster.images import rename_images
from relight.cluster.verdicts import Check
from relight.local.kube import discovery, kinds

pytestmark = pytest.mark.usefixtures("a_cluster")
GPU = [str(ROOT / "manifests/overlays/gpu")]


def put_knative(client: Any, version: str) -> None:
    for name in ("knative-serving", "knative-eventing"):
        put_deployment(client, "controller", name, {"app.kubernetes.io/version": version})


def put_deployment(client: Any, name: str, namespace: str, labels: dict[str, str]) -> None:
    client.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {
                "selector": {"matchLabels": {"a": "b"}},
                "template": {
                    "metadata": {"labels": {"a": "b"}},
                    "spec": {"containers": [{"name": "c", "image": "controller"}]},
                },
            },
        }
    )


def put_node(api: Any, allocatable: dict[str, str], labels: dict[str, str] | None = None) -> None:
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n", "labels": labels or {}},
        "status": {"allocatable": allocatable},
    }
    kind = kinds.by_kind("v1", "Node")
    assert kind is not None
    api.create(kind, node)


def by_name(found: list[Check], name: str) -> list[Check]:
    return [one for one in found if one.name == name]


VERSIONS = [("1.20.1", "ok"), ("v1.16.0", "ok"), ("1.9.2", "failed"), ("main", "unknown")]


@pytest.mark.parametrize(("version", "verdict"), VERSIONS, ids=[row[0] for row in VERSIONS])
def test_versions_of_knative(client: Any, version: str, verdict: str) -> None:
    put_knative(client, version)
    found = check(client)
    assert [one.verdict for name in ("knative-serving", "knative-eventing") for one in by_name(found, name)] == [
        verdict,
        verdict,
    ]


def test_flags_that_are_off_are_named_with_who_needs_them_and_the_command(client: Any) -> None:
    documents = read_documents(GPU)
    found = by_name(check(client, documents), "features")
    assert [one.verdict for one in found] == ["failed", "failed"]
    assert "kubernetes.podspec-nodeselector is off, and needed by embed: nodeSelector, model: nodeSelector" in {
        one.finding for one in found
    }
    assert found[0].mend.startswith("kubectl patch configmap config-features -n knative-serving --type merge -p")
    (config,) = read_documents([str(ROOT / "manifests/knative/gpu.yaml")])
    client.apply(dict(config.value))
    assert [one.verdict for one in by_name(check(client, documents), "features")] == ["ok"]


NODES: list[tuple[str, dict[str, str], str, str]] = [
    ("none", {}, "warning", "device plugin"),
    ("what is asked for", {"nvidia.com/gpu": "2"}, "ok", ""),
    ("another MIG layout", {"nvidia.com/mig-3g.40gb": "2"}, "failed", "MIG layout"),
]


@pytest.mark.parametrize(("node", "verdict", "mend"), [row[1:] for row in NODES], ids=[row[0] for row in NODES])
def test_gpus(client: Any, api: Any, node: dict[str, str], verdict: str, mend: str) -> None:
    if node:
        put_node(api, node)
    (found,) = by_name(check(client, read_documents(GPU)), "gpu")
    assert (found.verdict, mend in found.mend) == (verdict, True), found


LABELS = [
    ("a card, and no plugin", {"nvidia.com/gpu.present": "true"}, {}, ["failed"], "offers none to pods"),
    (
        "the same, seen by its maker's number",
        {"feature.node.kubernetes.io/pci-10de.present": "true"},
        {},
        ["failed"],
        "",
    ),
    ("a card, and the plugin", {"nvidia.com/gpu.present": "true"}, {"nvidia.com/gpu": "1"}, [], ""),
    (
        "a layout that failed",
        {"nvidia.com/mig.config": "all-1g.10gb", "nvidia.com/mig.config.state": "failed"},
        {"nvidia.com/gpu": "1"},
        ["failed"],
        "its MIG layout all-1g.10gb is failed",
    ),
    ("a layout under way", {"nvidia.com/mig.config.state": "pending"}, {"nvidia.com/gpu": "1"}, ["warning"], "pending"),
]


@pytest.mark.parametrize(
    ("labels", "offers", "verdicts", "says"), [row[1:] for row in LABELS], ids=[row[0] for row in LABELS]
)
def test_what_nodes_say_of_themselves(
    client: Any, api: Any, labels: dict[str, str], offers: dict[str, str], verdicts: list[str], says: str
) -> None:
    put_node(api, offers, labels)
    found = [one for one in by_name(check(client), "gpu") if one.verdict != "ok"]
    assert [one.verdict for one in found] == verdicts
    assert all(says in one.finding and one.mend for one in found)


IMAGES = [
    ("relight", "failed", "names no registry"),
    ("relight/relight:1", "failed", "names no registry"),
    ("registry.example.com/relight:0.1.0", "failed", "the example's"),
    ("localhost:5000/relight", "ok", "its name is one of a registry"),
    ("europe-docker.pkg.dev/p/r/relight@sha256:" + "a" * 64, "ok", "its name is one of a registry"),
]


@pytest.mark.parametrize(("image", "verdict", "says"), IMAGES, ids=[row[0] for row in IMAGES])
def test_names_of_images(client: Any, image: str, verdict: str, says: str) -> None:
    documents = rename_images(read_documents([str(ROOT / "manifests/base/split.yaml")]), {"relight": image})
    (found,) = by_name(check(client, documents), "registry")
    assert (found.verdict, says in found.finding) == (verdict, True), found


def test_images_that_the_cluster_could_not_have(client: Any, api: Any) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "bert-00001-a",
            "namespace": "default",
            "labels": {"serving.knative.dev/revision": "bert-00001"},
        },
        "spec": {"containers": [{"name": "user-container", "image": "r.example/x"}]},
        "status": {
            "containerStatuses": [
                {"name": "user-container", "state": {"waiting": {"reason": "ErrImagePull", "message": "unauthorized"}}}
            ]
        },
    }
    api.create(kinds.POD, pod)
    (found,) = by_name(check(client), "registry")
    assert (found.verdict, found.finding) == ("failed", "revision bert-00001: the image cannot be pulled: unauthorized")
    assert "imagePullSecrets" in found.mend


def test_kinds_that_nobody_serves_are_named_with_who_brings_them(client: Any) -> None:
    found = by_name(check(client, read_documents([str(ROOT / "manifests/overlays/prod")])), "kinds")
    assert sorted(one.finding.partition(" ")[0] for one in found) == ["PodMonitor", "PrometheusRule"]
    assert {one.verdict for one in found} == {"failed"}
    assert all("Prometheus operator" in one.mend for one in found)


def test_the_class_of_a_broker_that_is_to_be_made(client: Any) -> None:
    documents = read_documents([str(ROOT / "manifests/examples/brokers/kafka.yaml")])
    (found,) = by_name(check(client, documents), "broker")
    assert (found.verdict, "no Deployment kafka-controller" in found.finding) == ("warning", True)
    put_deployment(client, "kafka-controller", "knative-eventing", {})
    assert [one.verdict for one in by_name(check(client, documents), "broker")] == ["ok"]


def test_a_broker_that_nobody_has_taken_up(client: Any) -> None:
    client.apply({"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "metadata": {"name": "default"}})
    (found,) = by_name(check(client), "broker")
    assert found.verdict == "failed"
    assert "no controller has taken it up" in found.finding


def test_a_repository_and_what_it_asks_for(client: Any) -> None:
    documents = read_documents(GPU)
    (found,) = by_name(check(client, documents), "repository")
    assert (found.verdict, "relight-credentials" in found.mend) == ("warning", True)
    client.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "relight-credentials"}, "stringData": {}})
    assert [one.verdict for one in by_name(check(client, documents), "repository")] == ["ok"]


def test_local_mode_has_all_that_it_needs(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(discovery.VERSION, "gitVersion", "v1.36.2+relight")
    documents = read_documents([str(ROOT / "manifests/overlays/local")])
    assert {one.verdict for one in check(client, documents)} == {"ok"}
