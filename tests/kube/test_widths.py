"""Lists in pages, keys given twice, status applied by several managers, and the ConfigMaps that steer a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from relight.local.kube import kinds
from relight.local.kube.store import HISTORY

SERVICES = "/apis/serving.knative.dev/v1/namespaces/default/services"
CONFIGS = "/api/v1/namespaces/knative-serving/configmaps"
EVENTS = "/api/v1/namespaces/default/events"
JSON, MERGE, APPLY = "application/json", "application/merge-patch+json", "application/apply-patch+yaml"


def service(name: str = "a", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"template": {"spec": {"containers": [{"image": "relight"}], **spec}}},
    }


def events(api: Any, count: int) -> None:
    def make(store: Any) -> None:
        for at in range(count):
            store.create(kinds.EVENT, {"metadata": {"name": f"e{at:04}", "namespace": "default"}, "reason": "r"})

    api.call(make)


def names(answer: Any) -> list[str]:
    return [item["metadata"]["name"] for item in answer["items"]]


# Pages


def test_all_pages_together_are_the_list(raw: Any, api: Any) -> None:
    events(api, 25)
    seen, token, left = [], "", []
    while True:
        answer = raw("GET", f"{EVENTS}?limit=10&continue={token}").json
        seen += names(answer)
        left.append(answer["metadata"].get("remainingItemCount"))
        token = answer["metadata"].get("continue", "")
        if not token:
            break
    assert seen == [f"e{at:04}" for at in range(25)]
    assert left == [15, 5, None]


def test_what_changes_between_two_pages_comes_in_the_watch(raw: Any, api: Any) -> None:
    events(api, 4)
    first = raw("GET", f"{EVENTS}?limit=2").json
    api.call(lambda store: store.delete(kinds.EVENT, "default", "e0000"))
    second = raw("GET", f"{EVENTS}?limit=2&continue={first['metadata']['continue']}").json
    assert names(first) + names(second) == ["e0000", "e0001", "e0002", "e0003"]
    version = second["metadata"]["resourceVersion"]
    assert version == first["metadata"]["resourceVersion"]
    seen = raw("GET", f"{EVENTS}?watch=1&resourceVersion={version}&timeoutSeconds=1").content
    assert b'"DELETED"' in seen
    assert b"e0000" in seen


def test_pages_go_over_namespaces_and_selections(raw: Any, api: Any) -> None:
    raw("POST", "/api/v1/namespaces", {"metadata": {"name": "zz"}})
    for namespace in ("default", "zz"):
        for name in ("a", "b"):
            body = service(name) | {"metadata": {"name": name, "labels": {"l": name}}}
            raw("POST", f"/apis/serving.knative.dev/v1/namespaces/{namespace}/services", body)
    everywhere = "/apis/serving.knative.dev/v1/services"
    first = raw("GET", f"{everywhere}?limit=3").json
    second = raw("GET", f"{everywhere}?limit=3&continue={first['metadata']['continue']}").json
    assert [(one["metadata"]["namespace"], one["metadata"]["name"]) for one in second["items"]] == [("zz", "b")]
    selected = raw("GET", f"{everywhere}?limit=1&labelSelector=l%3Da").json
    assert selected["metadata"]["continue"]
    assert "remainingItemCount" not in selected["metadata"]


@pytest.mark.parametrize("token", ["x", "e30", "bnVsbA", "eyJ2IjoidjIiLCJydiI6MSwic3RhcnQiOiJhIn0"])
def test_a_bad_continue_is_refused(raw: Any, token: str) -> None:
    answer = raw("GET", f"{EVENTS}?limit=1&continue={token}")
    assert (answer.status, answer.json["reason"]) == (400, "BadRequest")


def test_an_old_continue_is_gone(raw: Any, api: Any) -> None:
    events(api, 2)
    token = raw("GET", f"{EVENTS}?limit=1").json["metadata"]["continue"]

    def much(store: Any) -> None:
        for at in range(HISTORY + 1):
            store.set_status(kinds.NAMESPACE, None, "default", {"phase": "Active", "at": at})

    api.call(much)
    answer = raw("GET", f"{EVENTS}?limit=1&continue={token}")
    assert (answer.status, answer.json["reason"]) == (410, "Expired")


# Keys given twice


TWICE = b'{"metadata":{"name":"a"},"spec":{"template":{"spec":{"timeoutSeconds":1,"timeoutSeconds":2,"containers":[{"image":"relight","image":"relight"}]}}}}'  # noqa: E501
TWICE_YAML = b"metadata: {name: a}\nspec:\n  template:\n    spec:\n      timeoutSeconds: 1\n      timeoutSeconds: 2\n      containers: [{image: relight}]\n"  # noqa: E501


@pytest.mark.parametrize(
    ("body", "media_type", "complaints"),
    [
        pytest.param(
            TWICE,
            JSON,
            [
                'duplicate field "spec.template.spec.timeoutSeconds"',
                'duplicate field "spec.template.spec.containers[0].image"',
            ],
            id="json",
        ),
        pytest.param(TWICE_YAML, "application/yaml", ['line 6: key "timeoutSeconds" already set in map'], id="yaml"),
    ],
)
def test_keys_given_twice(raw: Any, body: bytes, media_type: str, complaints: list[str]) -> None:
    refused = raw("POST", f"{SERVICES}?fieldValidation=Strict", body, Content_Type=media_type)
    assert refused.status == 400
    assert refused.json["message"] == (
        f'Service in version "v1" cannot be handled as a Service: strict decoding error: {", ".join(complaints)}'
    )
    warned = raw("POST", f"{SERVICES}?fieldValidation=Warn", body, Content_Type=media_type)
    assert warned.status == 201
    assert warned.json["spec"]["template"]["spec"]["timeoutSeconds"] == 2
    said = [value.replace("\\", "") for value in warned.headers.get_all("Warning")]
    assert said == [f'299 - "{one}"' for one in complaints]
    raw("DELETE", f"{SERVICES}/a")
    ignored = raw("POST", f"{SERVICES}?fieldValidation=Ignore", body, Content_Type=media_type)
    assert (ignored.status, ignored.headers.get_all("Warning")) == (201, None)


# Status by server-side apply


def test_a_status_is_applied_by_several(raw: Any) -> None:
    raw("POST", SERVICES, service())

    def apply(manager: str, status: dict[str, Any], **options: str) -> Any:
        query = "&".join(f"{key}={value}" for key, value in options.items())
        body = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "a"}, "status": status}
        return raw("PATCH", f"{SERVICES}/a/status?fieldManager={manager}&{query}", body, Content_Type=APPLY)

    assert apply("one", {"url": "http://one", "x": {"a": 1}}).json["status"] == {"url": "http://one", "x": {"a": 1}}
    assert apply("two", {"x": {"b": 2}}).json["status"] == {"url": "http://one", "x": {"a": 1, "b": 2}}
    refused = apply("two", {"url": "http://two", "x": {"b": 2}})
    assert (refused.status, refused.json["details"]["causes"][0]["field"]) == (409, ".status.url")
    assert apply("two", {"url": "http://two"}, force="true").json["status"] == {"url": "http://two", "x": {"a": 1}}
    # what the first one no longer applies goes, and what it never owned stays; spec and generation are untouched
    last = apply("one", {}).json
    assert last["status"] == {"url": "http://two"}
    assert last["metadata"]["generation"] == 1
    entries = [(e["manager"], e["operation"], e.get("subresource")) for e in last["metadata"]["managedFields"]]
    assert ("two", "Apply", "status") in entries
    assert apply("one", {"z": 1}, dryRun="All").json["status"] == {"url": "http://two", "z": 1}
    assert raw("GET", f"{SERVICES}/a").json["status"] == {"url": "http://two"}
    missing = raw("PATCH", f"{SERVICES}/b/status?fieldManager=me", {"metadata": {}}, Content_Type=APPLY)
    assert missing.status == 404


# What steers a cluster


def config(raw: Any, name: str, data: dict[str, str]) -> Any:
    return raw("PATCH", f"{CONFIGS}/{name}", {"data": data}, Content_Type=MERGE)


def test_the_configmaps_are_there_from_the_start(own: Any) -> None:
    found = own.call(lambda store: [one["metadata"]["name"] for one in store.list(kinds.CONFIG_MAP)[0]])
    assert {"config-autoscaler", "config-defaults", "config-features", "config-gc"} <= set(found)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("config-autoscaler", {"stable-window": "1s"}, "data.stable-window"),
        ("config-autoscaler", {"initial-scale": "x"}, "data.initial-scale"),
        ("config-defaults", {"revision-timeout-seconds": "601"}, "max-revision-timeout-seconds (600)"),
        ("config-defaults", {"container-concurrency": "1001"}, "container-concurrency-max-limit (1000)"),
        ("config-gc", {"min-non-active-revisions": "-1"}, "data.min-non-active-revisions"),
        ("config-network", {"rollout-duration": "soon"}, "data.rollout-duration"),
    ],
)
def test_a_config_that_is_wrong_is_refused(raw: Any, own_configs: None, name: str, data: Any, words: str) -> None:
    answer = config(raw, name, data)
    assert answer.status == 400
    assert 'admission webhook "config.webhook.serving.knative.dev" denied the request' in answer.json["message"]
    assert words in answer.json["message"]


@pytest.fixture
def own_configs(raw: Any) -> None:
    raw("POST", "/api/v1/namespaces", {"metadata": {"name": "knative-serving"}})
    for name in ("autoscaler", "defaults", "features", "gc", "network"):
        assert raw("POST", CONFIGS, {"metadata": {"name": f"config-{name}"}}).status == 201


def test_defaults_follow_the_config(raw: Any, own_configs: None) -> None:
    given = {
        "revision-timeout-seconds": "100",
        "revision-idle-timeout-seconds": "7",
        "container-concurrency": "3",
        "container-concurrency-max-limit": "5",
        "allow-container-concurrency-zero": "false",
        "container-name-template": "main",
    }
    assert config(raw, "config-defaults", given).status == 200
    spec = raw("POST", SERVICES, service()).json["spec"]["template"]["spec"]
    assert (spec["timeoutSeconds"], spec["idleTimeoutSeconds"], spec["containerConcurrency"]) == (100, 7, 3)
    assert spec["containers"][0]["name"] == "main"
    for concurrency, bounds in ((0, "expected 1 <= 0 <= 5"), (6, "expected 1 <= 6 <= 5")):
        assert bounds in raw("POST", SERVICES, service("b", containerConcurrency=concurrency)).json["message"]


def test_what_the_autoscaler_allows_follows_the_config(raw: Any, own_configs: None) -> None:
    zero = service()
    zero["spec"]["template"]["metadata"] = {"annotations": {"autoscaling.knative.dev/initial-scale": "0"}}
    assert raw("POST", SERVICES, zero).status == 400
    assert config(raw, "config-autoscaler", {"allow-zero-initial-scale": "true"}).status == 200
    assert raw("POST", SERVICES, zero).status == 201
