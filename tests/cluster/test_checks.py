"""What a cluster lacks for some manifests, and how that is mended."""

from __future__ import annotations

from typing import Any

import pytest
from tables import ROOT

from relight.cluster.checks import Check, check
from relight.cluster.documents import read_documents
from relight.local.kube import discovery, kinds

GPU = [str(ROOT / "manifests/overlays/gpu")]


@pytest.fixture(autouse=True)
def a_cluster(monkeypatch: pytest.MonkeyPatch, client: Any) -> None:
    """An API whose version is not local mode's, with the namespaces that Knative makes."""
    monkeypatch.setitem(discovery.VERSION, "gitVersion", "v1.36.2")
    for name in ("knative-serving", "knative-eventing"):
        client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


def put_knative(client: Any, version: str) -> None:
    for name in ("knative-serving", "knative-eventing"):
        client.apply(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "controller", "namespace": name, "labels": {"app.kubernetes.io/version": version}},
                "spec": {
                    "selector": {"matchLabels": {"a": "b"}},
                    "template": {
                        "metadata": {"labels": {"a": "b"}},
                        "spec": {"containers": [{"name": "c", "image": "controller"}]},
                    },
                },
            }
        )


def put_node(api: Any, allocatable: dict[str, str]) -> None:
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n"},
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
