"""Real clients on the real listener: relight's own, the official Python package, and streams."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relight.base.errors import BadInput, Conflict, Forbidden, NotFound, PlatformError, Unauthorized, Unprocessable
from relight.local.kube import kinds
from relight.local.kube.store import HISTORY
from relight.net import kubeconfig, tls
from relight.net.kube import Gone, Kube

SERVING = "serving.knative.dev/v1"


def service(name: str = "a", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": SERVING,
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"template": {"spec": {"containers": [{"image": "relight"}], **spec}}},
    }


# relight's own client


def test_apply_creates_changes_and_removes(kube: Kube) -> None:
    made = kube.apply(service(timeoutSeconds=5))
    assert made["metadata"]["generation"] == 1
    assert kube.apply(service(timeoutSeconds=5)) == made
    changed = kube.apply(service())
    assert changed["metadata"]["generation"] == 2
    assert changed["spec"]["template"]["spec"]["timeoutSeconds"] == 300
    assert kube.get(SERVING, "Service", "a") == changed
    assert [item["metadata"]["name"] for item in kube.list(SERVING, "Service")["items"]] == ["a"]
    kube.delete(SERVING, "Service", "a")
    with pytest.raises(NotFound, match=r'services.serving.knative.dev "a" not found'):
        kube.get(SERVING, "Service", "a")


def test_apply_is_strict_and_conflicts_when_not_forced(kube: Kube) -> None:
    kube.apply(service(timeoutSeconds=5))
    with pytest.raises(Conflict, match=r'conflict with "relight":\n.*\n- \.spec\.template\.spec\.timeoutSeconds'):
        kube.apply(service(timeoutSeconds=6), "someone", force=False)
    with pytest.raises(BadInput, match=r'unknown field "spec.template.spec.frob"'):
        kube.apply(service(frob=1))
    with pytest.raises(Unprocessable, match="RFC 1123"):
        kube.apply(service("Bad_Name"))
    shown = kube.apply(service("b"), dry_run=True)
    assert shown["metadata"]["name"] == "b"
    with pytest.raises(NotFound):
        kube.get(SERVING, "Service", "b")


def test_kinds_and_namespaces_come_from_the_server(kube: Kube) -> None:
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}})
    kube.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "n"}, "data": {"a": "b"}}
    )
    assert kube.get("v1", "ConfigMap", "c", "n")["data"] == {"a": "b"}
    assert kube.list("v1", "ConfigMap")["items"] == []
    assert len(kube.list("v1", "ConfigMap", everywhere=True)["items"]) == 1
    with pytest.raises(NotFound, match=r"does not serve nope\.dev/v1, which Frob belongs to"):
        kube.get("nope.dev/v1", "Frob", "x")
    with pytest.raises(NotFound, match="has no kind Frob in v1"):
        kube.get("v1", "Frob", "x")
    with pytest.raises(BadInput, match="the object has no apiVersion"):
        kube.apply({"kind": "Service"})


def test_create_replace_patch(kube: Kube) -> None:
    made = kube.create(service())
    with pytest.raises(Conflict, match="already exists"):
        kube.create(service())
    patched = kube.patch(SERVING, "Service", "a", {"metadata": {"labels": {"l": "1"}}})
    assert patched["metadata"]["labels"] == {"l": "1"}
    with pytest.raises(Conflict, match="please apply your changes to the latest version"):
        kube.replace(made)


def test_warnings_reach_the_caller(api: Any) -> None:
    heard: list[str] = []
    with Kube.from_kubeconfig(api.kubeconfig, on_warning=heard.append) as client:
        client.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "s"}})
    assert heard == ["ServiceAccount is stored, but not enforced in local mode"]


def test_watch_tells_what_is_and_what_happens(kube: Kube, api: Any) -> None:
    kube.apply(service("a"))
    watch = kube.watch(SERVING, "Service", timeout=10)
    assert next(watch)[1]["metadata"]["name"] == "a"
    other = threading.Thread(target=kube.apply, args=(service("b"),))
    other.start()
    kind, obj = next(watch)
    assert (kind, obj["metadata"]["name"]) == ("ADDED", "b")
    other.join()
    api.call(lambda store: store.set_status(kinds.SERVICE, "default", "b", {"url": "x"}))
    api.call(lambda store: store.delete(kinds.SERVICE, "default", "a"))
    assert [(kind, obj["metadata"]["name"]) for kind, obj in (next(watch), next(watch))] == [
        ("MODIFIED", "b"),
        ("DELETED", "a"),
    ]
    watch.close()  # type: ignore[attr-defined]


def test_watch_resumes_and_ends_in_time(kube: Kube) -> None:
    kube.apply(service("a"))
    version = kube.list(SERVING, "Service")["metadata"]["resourceVersion"]
    kube.apply(service("b"))
    kube.delete(SERVING, "Service", "a")
    events = list(kube.watch(SERVING, "Service", since=version, timeout=1))
    assert [(kind, obj["metadata"]["name"]) for kind, obj in events] == [("ADDED", "b"), ("DELETED", "a")]
    events = list(kube.watch(SERVING, "Service", name="b", timeout=1))
    assert [(kind, obj["metadata"]["name"]) for kind, obj in events] == [("ADDED", "b")]


def test_a_watch_by_label_sees_objects_come_and_go(kube: Kube) -> None:
    kube.apply(service())
    version = kube.list(SERVING, "Service")["metadata"]["resourceVersion"]
    for value in ("1", "2", None):
        kube.patch(SERVING, "Service", "a", {"metadata": {"labels": {"l": value}}})
    kube.delete(SERVING, "Service", "a")
    events = kube.watch(SERVING, "Service", labels="l=1", since=version, timeout=1)
    assert [kind for kind, _ in events] == ["ADDED", "DELETED"]


def test_a_version_of_long_ago_is_gone(kube: Kube, api: Any) -> None:
    def busy(store: Any) -> None:
        store.create(kinds.CONFIG_MAP, {"metadata": {"name": "c", "namespace": "default"}})
        for number in range(HISTORY + 10):
            store.update(
                kinds.CONFIG_MAP, {"metadata": {"name": "c", "namespace": "default"}, "data": {"n": str(number)}}
            )

    api.call(busy)
    with pytest.raises(Gone, match="too old resource version"):
        list(kube.watch(SERVING, "Service", since="1", timeout=1))


def test_bookmarks_end_what_was_there(raw: Any, kube: Kube) -> None:
    kube.apply(service())
    query = "watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=1"
    lines = raw("GET", f"/apis/{SERVING}/services?{query}").content.splitlines()
    added, bookmark = map(json.loads, lines)
    assert (added["type"], bookmark["type"]) == ("ADDED", "BOOKMARK")
    assert bookmark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert int(bookmark["object"]["metadata"]["resourceVersion"]) >= int(added["object"]["metadata"]["resourceVersion"])


def pod(api: Any, name: str) -> None:
    body = {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": [{"name": "user-container"}]}}
    api.call(lambda store: store.create(kinds.POD, body))


def test_logs(kube: Kube, api: Any) -> None:
    pod(api, "web")
    assert list(kube.logs("web")) == ["first", "second", "third"]
    assert list(kube.logs("web", tail=1)) == ["third"]
    assert list(kube.logs("web", tail=0)) == []
    following = kube.logs("web", follow=True)
    assert next(following) == "first"
    following.close()  # type: ignore[attr-defined]
    with pytest.raises(NotFound, match='pods "nope" not found'):
        list(kube.logs("nope"))


def test_streams_end_when_the_server_stops(own: Any) -> None:
    with Kube.from_kubeconfig(own.kubeconfig) as client:
        watch = client.watch("v1", "Namespace")
        there = [next(watch)[1]["metadata"]["name"] for _ in range(3)]
        assert there == ["default", "knative-eventing", "knative-serving"]
        own.run(own.server.stop())
        assert list(watch) == []
        with pytest.raises(PlatformError, match=r"no Kubernetes API answers at https://127\.0\.0\.1"):
            client.list("v1", "Namespace")


def test_strangers_are_refused(api: Any, tmp_path: Path) -> None:
    pki = tls.Pki(api.folder / "pki")
    path = tmp_path / "kubeconfig"
    kubeconfig.write(path, f"https://127.0.0.1:{api.port}", pki.ca, "wrong")
    with Kube.from_kubeconfig(path) as client, pytest.raises(Unauthorized):
        client.list("v1", "Namespace")
    other = tls.ensure(tmp_path / "pki")
    kubeconfig.write(path, f"https://127.0.0.1:{api.port}", other.ca, pki.token())
    with Kube.from_kubeconfig(path) as client, pytest.raises(PlatformError, match="is not who the kubeconfig says"):
        client.list("v1", "Namespace")


def test_protected_namespaces(kube: Kube) -> None:
    with pytest.raises(Forbidden, match="this namespace may not be deleted"):
        kube.delete("v1", "Namespace", "default")


# The official package


@pytest.fixture
def official(api: Any) -> Iterator[Any]:
    from kubernetes import config

    client = config.new_client_from_config(str(api.kubeconfig), persist_config=False)
    yield client
    client.rest_client.pool_manager.clear()


def test_the_official_client_on_custom_and_native_kinds(official: Any) -> None:
    from kubernetes import client, watch

    custom = client.CustomObjectsApi(official)
    where = ("serving.knative.dev", "v1", "default", "services")
    made = custom.create_namespaced_custom_object(*where, service())
    made["spec"]["template"]["spec"]["timeoutSeconds"] = 7
    replaced = custom.replace_namespaced_custom_object(*where, "a", made)
    assert replaced["metadata"]["generation"] == 2
    with pytest.raises(client.ApiException) as stale:
        custom.replace_namespaced_custom_object(*where, "a", made)
    assert stale.value.status == 409
    patched = custom.patch_namespaced_custom_object_status(*where, "a", {"status": {"url": "x"}})
    assert patched["status"] == {"url": "x"}
    events = list(
        watch.Watch().stream(custom.list_namespaced_custom_object, *where, timeout_seconds=1, resource_version="0")
    )
    assert [(event["type"], event["object"]["metadata"]["name"]) for event in events] == [("ADDED", "a")]
    core = client.CoreV1Api(official)
    core.create_namespaced_config_map("default", client.V1ConfigMap(metadata={"name": "c"}, data={"a": "b"}))
    assert core.read_namespaced_config_map("c", "default").data == {"a": "b"}
    core.patch_namespaced_config_map("c", "default", {"data": {"a": None, "c": "d"}})
    assert [found.data for found in core.list_namespaced_config_map("default").items] == [{"c": "d"}]
    core.delete_namespaced_config_map("c", "default")
    assert core.list_namespaced_config_map("default").items == []
    assert custom.delete_namespaced_custom_object(*where, "a")["status"] == "Success"
    assert [found.metadata.name for found in core.list_namespace().items] == ["default"]


def test_the_certificate_is_for_loopback_only(api: Any) -> None:
    context = ssl.create_default_context(cafile=str(tls.Pki(api.folder / "pki").ca))
    with (
        socket.create_connection(("127.0.0.1", api.port), timeout=5) as plain,
        pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for 'example\.com'"),
    ):
        context.wrap_socket(plain, server_hostname="example.com")
