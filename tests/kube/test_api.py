"""The API over the wire: who may ask, what is answered, and what is done with bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relight.base.errors import PlatformError, PortTaken
from relight.local.kube import kinds
from relight.local.kube.api import ApiServer
from relight.local.kube.store import ObjectStore
from relight.net import tls
from relight.net.listener import bind

SERVICES = "/apis/serving.knative.dev/v1/namespaces/default/services"
TRIGGERS = "/apis/eventing.knative.dev/v1/namespaces/default/triggers"
JSON = "application/json"


def service(name: str = "a", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"template": {"spec": {"containers": [{"image": "relight"}], **spec}}},
    }


def trigger(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "t"}, "spec": {"broker": "b", "subscriber": {"uri": "http://x"}, **spec}}


# Who may ask


def test_without_the_token_nothing_is_told(raw: Any) -> None:
    for given in ("", "Bearer wrong", "Basic abc", "Bearer"):
        answer = raw("GET", SERVICES, Authorization=given)
        assert answer.status == 401
        assert answer.json["message"] == "Unauthorized"
        assert answer.json["reason"] == "Unauthorized"
    assert raw("GET", "/healthz", Authorization="").content == b"ok"
    assert raw("GET", "/version", Authorization="").json["minor"] == "36"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({"Host": "evil.example:8443"}, 403, id="rebound-host"),
        pytest.param({"Host": "127.0.0.1.evil.example"}, 403, id="host-that-begins-like-ours"),
        pytest.param({"Host": "localhost:1"}, 200, id="localhost"),
        pytest.param({"Host": "[::1]:8443"}, 200, id="ipv6"),
        pytest.param({"Origin": "https://evil.example"}, 403, id="foreign-page"),
        pytest.param({"Origin": "null"}, 403, id="page-of-no-origin"),
        pytest.param({"Origin": "http://127.0.0.1:3000"}, 200, id="own-page"),
    ],
)
def test_only_loopback_names_are_answered(raw: Any, headers: dict[str, str], status: int) -> None:
    assert raw("GET", "/version", **headers).status == status


@pytest.mark.anyio
async def test_a_taken_port_is_one_sentence(tmp_path: Path) -> None:
    taken = bind("127.0.0.1", 0)
    port = taken.getsockname()[1]
    store = ObjectStore.open(tmp_path / "objects.db")
    server = ApiServer(store, tls.ensure(tmp_path / "pki"), pod_logs=lambda *_: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(PortTaken, match=rf"port {port} on 127.0.0.1 is in use .* RELIGHT_API_PORT=PORT, or 0"):
        await server.start("127.0.0.1", port)
    with pytest.raises(PlatformError, match="loopback only"):
        await server.start("0.0.0.0", 0)
    await server.stop()
    assert await server.start("127.0.0.1", 0) > 0
    await server.stop()
    await server.stop()
    store.close()
    taken.close()


# Reading


def test_discovery_names_what_is_served(raw: Any) -> None:
    assert raw("GET", "/api").json["versions"] == ["v1"]
    groups = {group["name"]: group for group in raw("GET", "/apis").json["groups"]}
    assert groups["serving.knative.dev"]["preferredVersion"]["version"] == "v1"
    resources = {entry["name"]: entry for entry in raw("GET", "/apis/serving.knative.dev/v1").json["resources"]}
    assert resources["services"]["shortNames"] == ["kservice", "ksvc"]
    assert resources["services/status"]["verbs"] == ["get", "patch", "update"]
    core = {entry["name"]: entry for entry in raw("GET", "/api/v1").json["resources"]}
    assert core["replicationcontrollers"]["verbs"] == ["get", "list", "watch"]
    assert "pods/log" in core
    for path in ("/apis/nope.dev", "/apis/nope.dev/v1", "/api/v2", "/nope", "/openapi/v3/apis/nope/v1"):
        assert raw("GET", path).status == 404, path


def test_every_kind_can_be_listed_and_those_listed_empty_not_made(raw: Any) -> None:
    for kind in kinds.KINDS:
        root = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.api_version}"
        answer = raw("GET", f"{root}/{kind.plural}")
        assert answer.status == 200, kind
        assert answer.json["kind"] == f"{kind.kind}List"
        if kind.treatment == "empty":
            inside = "/namespaces/default" if kind.namespaced else ""
            assert raw("POST", f"{root}{inside}/{kind.plural}", {"metadata": {"name": "x"}}).status == 405, kind


def test_openapi_documents_cover_the_acted_kinds(raw: Any) -> None:
    paths = raw("GET", "/openapi/v3").json["paths"]
    document = raw("GET", paths["apis/serving.knative.dev/v1"]["serverRelativeURL"]).json
    schema = document["components"]["schemas"]["dev.knative.serving.v1.Service"]
    spec = schema["properties"]["spec"]["properties"]
    assert spec["template"]["properties"]["spec"]["properties"]["timeoutSeconds"]["type"] == "integer"
    patch = document["paths"]["/apis/serving.knative.dev/v1/namespaces/{namespace}/services/{name}"]["patch"]
    assert "fieldValidation" in [parameter["name"] for parameter in patch["parameters"]]


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        pytest.param("labelSelector=l%3D1", ["a"], id="equal"),
        pytest.param("labelSelector=l!%3D1", ["b", "c"], id="unequal-or-absent"),
        pytest.param("labelSelector=l%20in%20(1,2)", ["a", "b"], id="in"),
        pytest.param("labelSelector=l%20notin%20(1)", ["b", "c"], id="notin"),
        pytest.param("labelSelector=l,m", ["b"], id="exist"),
        pytest.param("labelSelector=!l", ["c"], id="absent"),
        pytest.param("labelSelector=l%20in%20(1,2),m%3Dx", ["b"], id="and"),
        pytest.param("fieldSelector=metadata.name%3Db", ["b"], id="name"),
        pytest.param("fieldSelector=metadata.name!%3Db", ["a", "c"], id="other-names"),
        pytest.param("fieldSelector=metadata.namespace%3Dnope", [], id="namespace"),
        pytest.param("", ["a", "b", "c"], id="all"),
    ],
)
def test_selectors(raw: Any, selector: str, names: list[str]) -> None:
    for name, labels in (("a", {"l": "1"}), ("b", {"l": "2", "m": "x"}), ("c", {})):
        raw("POST", SERVICES, {**service(), "metadata": {"name": name, "labels": labels}})
    found = raw("GET", f"{SERVICES}?{selector}").json["items"]
    assert [item["metadata"]["name"] for item in found] == names


@pytest.mark.parametrize("selector", ["labelSelector=a%3Db%3Dc", "labelSelector=%3D", "fieldSelector=spec.x%3D1"])
def test_bad_selectors(raw: Any, selector: str) -> None:
    assert raw("GET", f"{SERVICES}?{selector}").status == 400
    assert raw("DELETE", f"{SERVICES}?{selector}").status == 400


def test_forms_of_an_answer(raw: Any) -> None:
    raw("POST", SERVICES, service())
    metadata = raw("GET", f"{SERVICES}/a", Accept="application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1").json
    assert (metadata["kind"], metadata["metadata"]["name"], "spec" in metadata) == ("PartialObjectMetadata", "a", False)
    table = raw("GET", SERVICES, Accept="application/json;as=Table;v=v1;g=meta.k8s.io,application/json").json
    assert [row["cells"] for row in table["rows"]] == [["a", None, None, None, None, None]]
    assert raw("GET", SERVICES, Accept="application/vnd.kubernetes.protobuf").status == 406
    assert raw("GET", SERVICES, Accept="application/vnd.kubernetes.protobuf,application/json").status == 200


# Writing


def test_an_object_from_birth_to_end(raw: Any) -> None:
    made = raw("POST", SERVICES, service())
    assert made.status == 201
    assert made.json["metadata"]["annotations"]["serving.knative.dev/creator"] == "admin"
    again = raw("POST", SERVICES, service())
    assert (again.status, again.json["reason"]) == (409, "AlreadyExists")
    assert again.json["message"] == 'services.serving.knative.dev "a" already exists'
    changed = {**made.json, "spec": service(timeoutSeconds=5)["spec"]}
    put = raw("PUT", f"{SERVICES}/a", changed)
    assert (put.status, put.json["metadata"]["generation"]) == (200, 2)
    stale = raw("PUT", f"{SERVICES}/a", changed)
    assert (stale.status, stale.json["reason"]) == (409, "Conflict")
    assert stale.json["details"] == {"name": "a", "group": "serving.knative.dev", "kind": "services"}
    status = {**put.json, "status": {"url": "http://x"}, "spec": {}}
    written = raw("PUT", f"{SERVICES}/a/status", status)
    assert written.json["status"] == {"url": "http://x"}
    assert written.json["spec"] == put.json["spec"]
    patched = raw(
        "PATCH", f"{SERVICES}/a/status", {"status": {"url": None, "n": 1}}, Content_Type="application/merge-patch+json"
    )
    assert patched.json["status"] == {"n": 1}
    deleted = raw("DELETE", f"{SERVICES}/a")
    assert (deleted.json["status"], deleted.json["details"]["uid"]) == ("Success", made.json["metadata"]["uid"])
    assert raw("GET", f"{SERVICES}/a").status == 404


def test_status_in_a_plain_write_is_left_alone(raw: Any) -> None:
    made = raw("POST", SERVICES, {**service(), "status": {"url": "x"}}).json
    assert "status" not in made
    assert "status" not in raw("PUT", f"{SERVICES}/a", {**made, "status": {"url": "x"}}).json


def test_dry_runs_change_nothing(raw: Any) -> None:
    raw("POST", SERVICES, service())
    before = raw("GET", f"{SERVICES}/a").json
    merge = "application/merge-patch+json"
    change = {"spec": {"template": {"spec": {"timeoutSeconds": 9}}}}
    shown = raw("PATCH", f"{SERVICES}/a?dryRun=All", change, Content_Type=merge).json
    assert shown["spec"]["template"]["spec"]["timeoutSeconds"] == 9
    assert raw("DELETE", f"{SERVICES}/a?dryRun=All").status == 200
    assert raw("POST", f"{SERVICES}?dryRun=All", service()).status == 409
    assert raw("POST", f"{SERVICES}?dryRun=Some", service("b")).status == 400
    assert raw("GET", f"{SERVICES}/a").json == before
    assert len(raw("GET", SERVICES).json["items"]) == 1


def test_names_are_made_up_on_request(raw: Any) -> None:
    made = raw("POST", SERVICES, {**service(), "metadata": {"generateName": "gen-"}}).json
    assert made["metadata"]["name"].startswith("gen-")
    assert len(made["metadata"]["name"]) == len("gen-") + 5


def test_unknown_fields_are_warned_of_or_refused(raw: Any) -> None:
    body = {**service(), "frob": 1}
    made = raw("POST", SERVICES, body)
    assert made.status == 201
    assert "frob" not in made.json
    assert made.headers.get_all("Warning") == ['299 - "unknown field \\"frob\\""']
    assert (
        raw("POST", f"{SERVICES}?fieldValidation=Ignore", {**body, "metadata": {"name": "b"}}).headers["Warning"]
        is None
    )
    refused = raw("POST", f"{SERVICES}?fieldValidation=Strict", {**body, "metadata": {"name": "c", "colour": "red"}})
    assert refused.status == 400
    assert refused.json["message"].endswith('unknown field "metadata.colour", unknown field "frob"')


def test_inert_kinds_are_stored_with_a_warning(raw: Any) -> None:
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    made = raw("POST", path, {"metadata": {"name": "p"}, "spec": {"minAvailable": 1}})
    assert made.status == 201
    assert made.headers["Warning"] == '299 - "PodDisruptionBudget is stored, but not enforced in local mode"'
    assert raw("GET", f"{path}/p").json["spec"] == {"minAvailable": 1}


def test_pods_come_from_services_only(raw: Any) -> None:
    refused = raw("POST", "/api/v1/namespaces/default/pods", {"metadata": {"name": "p"}, "spec": {}})
    assert refused.status == 403
    assert "create a Knative Service" in refused.json["message"]


def test_namespaces(raw: Any) -> None:
    nowhere = SERVICES.replace("default", "nowhere")
    missing = raw("POST", nowhere, service())
    assert (missing.status, missing.json["message"]) == (404, 'namespaces "nowhere" not found')
    assert raw("POST", "/api/v1/namespaces", {"metadata": {"name": "nowhere"}}).json["status"] == {"phase": "Active"}
    assert raw("POST", nowhere, service()).status == 201
    held = {"metadata": {"name": "c", "finalizers": ["x/y"]}}
    assert raw("POST", "/api/v1/namespaces/nowhere/configmaps", held).status == 201
    assert raw("DELETE", "/api/v1/namespaces/nowhere").json["status"] == {"phase": "Terminating"}
    closing = raw("POST", nowhere, service("late"))
    assert closing.status == 403
    assert "because it is being terminated" in closing.json["message"]
    assert raw("GET", nowhere).json["items"] == []
    released = raw(
        "PATCH",
        "/api/v1/namespaces/nowhere/configmaps/c",
        {"metadata": {"finalizers": None}},
        Content_Type="application/merge-patch+json",
    )
    assert released.status == 200
    assert raw("GET", "/api/v1/namespaces/nowhere").status == 404
    assert raw("DELETE", "/api/v1/namespaces/default").status == 403


def test_secrets_take_plain_strings(raw: Any) -> None:
    path = "/api/v1/namespaces/default/secrets"
    made = raw("POST", path, {"metadata": {"name": "s"}, "stringData": {"a": "b"}}).json
    assert (made["data"], made["type"], "stringData" in made) == ({"a": "Yg=="}, "Opaque", False)
    assert raw("POST", path, {"metadata": {"name": "t"}, "data": {"a": "not base64!"}}).status == 400


def test_collections_are_deleted_by_selector(raw: Any) -> None:
    for name in ("a", "b"):
        raw("POST", SERVICES, {**service(), "metadata": {"name": name, "labels": {"l": name}}})
    gone = raw("DELETE", f"{SERVICES}?labelSelector=l%3Da").json
    assert [item["metadata"]["name"] for item in gone["items"]] == ["a"]
    assert [item["metadata"]["name"] for item in raw("GET", SERVICES).json["items"]] == ["b"]


def test_deletion_can_ask_for_a_version(raw: Any) -> None:
    made = raw("POST", SERVICES, service()).json
    wrong = raw("DELETE", f"{SERVICES}/a", {"preconditions": {"uid": "other"}}, Content_Type=JSON)
    assert wrong.status == 409
    right = {"preconditions": {"uid": made["metadata"]["uid"]}, "propagationPolicy": "Foreground"}
    assert raw("DELETE", f"{SERVICES}/a", right, Content_Type=JSON).status == 200


def test_updates_that_may_not_be(raw: Any) -> None:
    merge = {"Content_Type": "application/merge-patch+json"}
    raw("POST", TRIGGERS, trigger())
    refused = raw("PATCH", f"{TRIGGERS}/t", {"spec": {"broker": "other"}}, **merge)
    assert refused.json["message"] == (
        'admission webhook "validation.webhook.eventing.knative.dev" denied the request: validation failed: '
        'Immutable fields changed (-old +new): broker, spec\n{string}:\n\t-: "b"\n\t+: "other"\n'
    )
    revisions = "/apis/serving.knative.dev/v1/namespaces/default/revisions"
    raw("POST", revisions, {"metadata": {"name": "r"}, "spec": {"containers": [{"image": "relight"}]}})
    assert raw("PATCH", f"{revisions}/r", {"spec": {"timeoutSeconds": 5}}, **merge).status == 400
    annotated = raw("PATCH", f"{revisions}/r", {"metadata": {"annotations": {"a/b": "1"}}}, **merge)
    assert (annotated.status, annotated.json["metadata"]["generation"]) == (200, 1)
    raw("POST", SERVICES, service())
    creator = {"metadata": {"annotations": {"serving.knative.dev/creator": "mallory"}}}
    refused = raw("PATCH", f"{SERVICES}/a", creator, **merge)
    assert "annotation value is immutable: metadata.annotations.serving.knative.dev/creator" in refused.json["message"]
    no_version = raw("PUT", f"{SERVICES}/a", service())
    assert no_version.status == 422
    assert "must be specified for an update" in no_version.json["message"]
    renamed = raw("PATCH", f"{SERVICES}/a", {"metadata": {"name": "b"}}, **merge)
    assert renamed.json["message"] == "the name of the object (b) does not match the name on the URL (a)"


def test_the_template_needs_a_new_name_with_its_new_contents(raw: Any) -> None:
    body = service()
    body["spec"]["template"]["metadata"] = {"name": "a-first"}
    made = raw("POST", SERVICES, body).json
    made["spec"]["template"]["spec"]["timeoutSeconds"] = 7
    assert "without a name change" in raw("PUT", f"{SERVICES}/a", made).json["message"]
    made["spec"]["template"]["metadata"]["name"] = "b-second"
    assert '"b-second" must have prefix "a-"' in raw("PUT", f"{SERVICES}/a", made).json["message"]
    made["spec"]["template"]["metadata"]["name"] = "a-second"
    assert raw("PUT", f"{SERVICES}/a", made).status == 200


def test_features_open_fields(raw: Any) -> None:
    body = service(nodeSelector={"gpu": "true"})
    assert raw("POST", SERVICES, body).status == 400
    raw("POST", "/api/v1/namespaces", {"metadata": {"name": "knative-serving"}})
    features = {"metadata": {"name": "config-features"}, "data": {"kubernetes.podspec-nodeselector": "enabled"}}
    raw("POST", "/api/v1/namespaces/knative-serving/configmaps", features)
    assert raw("POST", SERVICES, body).status == 201


def test_yaml_bodies(raw: Any) -> None:
    text = b"""
    metadata: {name: a, annotations: {when: 2026-01-01}}
    spec: {template: {spec: {containers: [{image: relight, env: [{name: X, value: "1"}]}]}}}
    """
    made = raw("POST", SERVICES, text, Content_Type="application/yaml")
    assert made.status == 201, made.content
    assert made.json["metadata"]["annotations"]["when"] == "2026-01-01"


# Bad input

DEEP = b'{"metadata":{"name":"a"},"spec":' + b'{"a":' * 200 + b"1" + b"}" * 200 + b"}"


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        pytest.param(b"{oops", 400, "couldn't get version/kind; json parse error", id="not-json"),
        pytest.param(b"", 400, "json parse error", id="empty"),
        pytest.param(b"[]", 400, "expected an object, got list", id="list"),
        pytest.param(b"null", 400, "expected an object", id="null"),
        pytest.param(b'{"metadata": "x"}', 400, "metadata is an object", id="metadata-string"),
        pytest.param(b'{"metadata": null}', 422, "name or generateName is required", id="metadata-null"),
        pytest.param(b'{"metadata": {"name": 5}}', 400, "number into field metadata.name", id="name-number"),
        pytest.param(b'{"metadata": {"name": ""}}', 422, "name or generateName is required", id="no-name"),
        pytest.param(b'{"metadata": {"name": "../x"}}', 422, "RFC 1123", id="name-with-slash"),
        pytest.param(
            b'{"metadata": {"name": "a", "namespace": "b"}}', 400, "does not match the namespace", id="namespace"
        ),
        pytest.param(b'{"metadata": {"name": "a", "labels": {"l": 1}}}', 400, "metadata.labels.l", id="label-number"),
        pytest.param(b'{"metadata": {"name": "a", "labels": {"l": "-"}}}', 422, "a valid label must", id="label-value"),
        pytest.param(b'{"metadata": {"name": "a", "labels": {"/l": "x"}}}', 422, "prefix part", id="label-key"),
        pytest.param(b'{"metadata": {"name": "a"}, "spec": null}', 422, "must be of type array", id="spec-null"),
        pytest.param(
            b'{"metadata": {"name": "a"}, "spec": []}', 400, "array into field spec of type object", id="spec-list"
        ),
        pytest.param(
            b'{"apiVersion": "v2", "metadata": {"name": "a"}}', 400, "API version in the data (v2)", id="version"
        ),
        pytest.param(DEEP, 400, "nested more than 100 deep", id="too-deep"),
        pytest.param(b"\xff\xfe", 400, "json parse error", id="not-utf-8"),
        pytest.param(b'{"metadata":{"name":"a"},"x":NaN}', 400, "json parse error", id="not-a-number"),
    ],
)
def test_bad_bodies(raw: Any, body: bytes, status: int, message: str) -> None:
    answer = raw("POST", SERVICES, body, Content_Type=JSON)
    assert answer.status == status, answer.content
    assert message in answer.json["message"]
    assert answer.json["kind"] == "Status"
    assert raw("GET", SERVICES).json["items"] == []


@pytest.mark.parametrize(
    "containers",
    [
        pytest.param([None], id="null"),
        pytest.param(["x"], id="string"),
        pytest.param([[]], id="list"),
        pytest.param([{"image": 5}], id="image-number"),
        pytest.param([{"image": "relight", "env": {"A": "1"}}], id="env-object"),
        pytest.param([{"image": "relight", "env": [None]}], id="env-null"),
        pytest.param([{"image": "relight", "ports": [{"containerPort": "80"}]}], id="port-string"),
        pytest.param([{"image": "relight", "ports": [{"containerPort": True}]}], id="port-boolean"),
        pytest.param([{"image": "relight", "ports": [{"containerPort": 70000}]}], id="port-too-large"),
        pytest.param([{"image": "relight", "readinessProbe": []}], id="probe-list"),
        pytest.param([{"image": "relight", "name": "Bad_Name"}], id="bad-name"),
        pytest.param([{"image": "UPPER/case"}], id="image-upper-case"),
        pytest.param([{"image": "relight", "env": [{"name": "A"}, {"name": "A"}]}], id="env-twice"),
        pytest.param([{"image": "relight", "env": [{"value": "1"}]}], id="env-no-name"),
        pytest.param([], id="none"),
    ],
)
def test_bad_containers(raw: Any, containers: Any) -> None:
    answer = raw("POST", SERVICES, service(containers=containers))
    assert answer.status in (400, 422), answer.content


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param({"filters": "x"}, "cannot unmarshal string into field spec.filters", id="filters-string"),
        pytest.param({"filters": [{"frob": {}}]}, "spec.filters[0]", id="unknown-dialect"),
        pytest.param({"filters": [{"not": {"cesql": "("}}]}, "spec.filters[0].not.cesql", id="nested-cesql"),
        pytest.param({"filters": [{"cesql": "type ="}]}, "at character 7", id="position-in-cesql"),
        pytest.param({"filters": [None]}, "spec.filters[0]", id="null-filter"),
        pytest.param({"filter": {"attributes": {"type": 1}}}, "spec.filter.attributes.type", id="attribute-number"),
        pytest.param({"subscriber": {"uri": "/relative"}}, "Relative URI", id="relative-uri"),
        pytest.param({"subscriber": {"uri": "http://[::1/"}}, "spec.subscriber.uri\nInvalid IPv6", id="half-a-host"),
        pytest.param({"subscriber": {"ref": {"name": "x"}}}, "spec.subscriber.ref.kind", id="half-a-reference"),
        pytest.param({"delivery": {"deadLetterSink": {}}}, "spec.delivery.deadLetterSink.ref", id="empty-sink"),
        pytest.param({"delivery": {"timeout": "PT0S"}}, "spec.delivery.timeout", id="no-time"),
    ],
)
def test_bad_triggers(raw: Any, spec: dict[str, Any], message: str) -> None:
    answer = raw("POST", TRIGGERS, trigger(**spec))
    assert answer.status == 400, answer.content
    assert message in answer.json["message"]


def test_a_slip_in_an_annotation_stops_no_trigger(raw: Any) -> None:
    wrong = {"relight.dev/concurrency": "x", "relight.dev/dedup": "never", "relight.dev/pause": "kept as it is"}
    told = (
        "an integer from 1 to 1000 was expected, got 'x': metadata.annotations[relight.dev/concurrency]",
        "on, off or durable was expected, got 'never': metadata.annotations[relight.dev/dedup]",
    )
    obj = trigger()
    obj["metadata"]["name"] = "annotated"
    assert raw("POST", TRIGGERS, obj).status == 201
    patched = raw(
        "PATCH",
        f"{TRIGGERS}/annotated",
        {"metadata": {"annotations": wrong}},
        Content_Type="application/merge-patch+json",
    )
    on_channel = {"metadata": {"name": "s", "annotations": wrong}, "spec": {"subscriber": {"uri": "http://x"}}}
    created = raw("POST", "/apis/messaging.knative.dev/v1/namespaces/default/subscriptions", on_channel)
    for answer in (patched, created):
        assert answer.status == 400
        assert all(sentence in answer.json["message"] for sentence in told), answer.content


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param({"schedule": "* * *"}, "expected 5 to 6 fields, found 3", id="too-few-fields"),
        pytest.param({"schedule": "61 * * * *"}, "is no cron schedule", id="minute-61"),
        pytest.param({"schedule": "0 0 30 2 *"}, "is no cron schedule", id="30-february"),
        pytest.param({"schedule": "* * * * *", "timezone": "Mars/Olympus"}, "no time zone", id="time-zone"),
    ],
)
def test_bad_schedules(raw: Any, spec: dict[str, Any], message: str) -> None:
    body = {"metadata": {"name": "p"}, "spec": {"sink": {"uri": "http://x"}, **spec}}
    answer = raw("POST", "/apis/sources.knative.dev/v1/namespaces/default/pingsources", body)
    assert answer.status == 400
    assert message in answer.json["message"]


@pytest.mark.parametrize(
    ("media_type", "body", "status"),
    [
        pytest.param("application/json-patch+json", b"{}", 400, id="json-patch-object"),
        pytest.param("application/json-patch+json", b"nope", 400, id="json-patch-not-json"),
        pytest.param("application/json-patch+json", b'[{"op":"remove","path":"/spec/x"}]', 422, id="bad-path"),
        pytest.param("application/json-patch+json", b'[{"op":"replace","path":"","value":1}]', 400, id="to-nothing"),
        pytest.param("application/merge-patch+json", b"[]", 400, id="merge-list"),
        pytest.param("application/merge-patch+json", b'{"metadata":null}', 400, id="no-metadata"),
        pytest.param("application/merge-patch+json", b'{"metadata":{"resourceVersion":"1"}}', 409, id="stale"),
        pytest.param("application/strategic-merge-patch+json", b"{}", 415, id="strategic-on-custom"),
        pytest.param("text/plain", b"x", 415, id="no-patch"),
        pytest.param("application/apply-patch+yaml", b"a: &x [1]\nb: *x", 400, id="apply-alias"),
        pytest.param("application/apply-patch+yaml", b"metadata: {}", 422, id="apply-without-manager"),
    ],
)
def test_bad_patches(raw: Any, media_type: str, body: bytes, status: int) -> None:
    before = raw("POST", SERVICES, service()).json
    answer = raw("PATCH", f"{SERVICES}/a", body, Content_Type=media_type)
    assert answer.status == status, answer.content
    assert raw("GET", f"{SERVICES}/a").json == before


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(b"", 400, id="empty"),
        pytest.param(b"k8s\x00", 400, id="nothing-inside"),
        pytest.param(b"k8s\x00\x0a\xff\xff", 400, id="cut-short"),
        pytest.param(b"k8s\x00" + b"\xff" * 40, 400, id="endless-number"),
        pytest.param(b"k8s\x00\x0a\x05\x0a\x03abc", 415, id="no-kind"),
        pytest.param(b"k8s\x00\x0a\x09\x0a\x02v1\x12\x03Pod\x12\x00", 415, id="another-kind"),
        pytest.param(b"k8s\x00\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x00", 422, id="no-name"),
        pytest.param(b"k8s\x00\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x05\x0a\x03\x0a\x01\xff", 400, id="not-utf-8"),
    ],
)
def test_bad_protobuf(raw: Any, body: bytes, status: int) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    assert raw("POST", path, body, Content_Type="application/vnd.kubernetes.protobuf").status == status


def test_a_body_over_the_limit_is_refused(raw: Any) -> None:
    answer = raw("POST", SERVICES, {**service(), "x": "y" * 4_000_000})
    assert (answer.status, answer.json["reason"]) == (413, "RequestEntityTooLarge")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        pytest.param("PUT", SERVICES, 405, id="put-a-collection"),
        pytest.param("POST", f"{SERVICES}/a", 405, id="post-an-object"),
        pytest.param("POST", "/apis/serving.knative.dev/v1/services", 405, id="post-in-all-namespaces"),
        pytest.param("GET", f"{SERVICES}/a/frob", 404, id="unknown-subresource"),
        pytest.param("GET", f"{SERVICES}/a/b/c", 404, id="too-long"),
        pytest.param("GET", f"{SERVICES}/%2e%2e%2fx", 404, id="encoded-slash"),
        pytest.param("GET", f"{SERVICES}?watch=1&resourceVersion=x", 400, id="version-not-a-number"),
        pytest.param("GET", "/api/v1/namespaces/default/pods/nope/log", 404, id="log-of-nothing"),
    ],
)
def test_paths_and_methods_that_are_not(raw: Any, method: str, path: str, status: int) -> None:
    assert raw(method, path, {} if method != "GET" else None).status == status
