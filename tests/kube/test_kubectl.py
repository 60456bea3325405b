"""The real kubectl, on the commands that people use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from relight.local.kube import kinds

MANIFEST = """
apiVersion: serving.knative.dev/v1
kind: Service
metadata:
  name: kb
spec:
  template:
    metadata:
      annotations:
        autoscaling.knative.dev/window: 6s
    spec:
      containers:
        - image: relight
          env: [{name: A, value: "1"}]
---
apiVersion: eventing.knative.dev/v1
kind: Broker
metadata: {name: default}
---
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata: {name: kbt}
spec:
  broker: default
  subscriber: {ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: kb}}
"""


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    path = tmp_path / "manifest.yaml"
    path.write_text(MANIFEST)
    return str(path)


def test_apply_get_delete(kubectl: Any, manifest: str) -> None:
    assert kubectl("apply", "-f", manifest).stdout.count("created") == 3
    again = kubectl("apply", "-f", manifest).stdout
    assert again.count("unchanged") == 2  # containers get defaults, so kubectl always sends the Service again
    made = json.loads(kubectl("get", "ksvc", "kb", "-o", "json").stdout)
    assert made["metadata"]["generation"] == 1
    assert kubectl("diff", "-f", manifest).stdout == ""
    changed = MANIFEST.replace('"1"', '"2"').replace("window: 6s", "window: 9s")
    kubectl("apply", "-f", "-", stdin=changed)
    made = json.loads(kubectl("get", "ksvc", "kb", "-o", "json").stdout)
    assert made["metadata"]["generation"] == 2
    assert made["spec"]["template"]["metadata"]["annotations"] == {"autoscaling.knative.dev/window": "9s"}
    assert kubectl("delete", "-f", manifest).stdout.count("deleted") == 3
    assert 'services.serving.knative.dev "kb" not found' in kubectl("get", "ksvc", "kb", code=1).stderr


def test_server_side_apply(kubectl: Any, manifest: str) -> None:
    assert kubectl("apply", "--server-side", "-f", manifest).stdout.count("serverside-applied") == 3
    kubectl("apply", "--server-side", "-f", manifest)
    changed = MANIFEST.replace("window: 6s", "window: 9s")
    refused = kubectl("apply", "--server-side", "--field-manager=me", "-f", "-", stdin=changed, code=1)
    assert 'conflict with "kubectl"' in refused.stderr
    kubectl("apply", "--server-side", "--field-manager=me", "--force-conflicts", "-f", "-", stdin=changed)
    without = MANIFEST.replace("        autoscaling.knative.dev/window: 6s\n", "        x/y: z\n")
    kubectl("apply", "--server-side", "--field-manager=me", "-f", "-", stdin=without)
    made = json.loads(kubectl("get", "ksvc", "kb", "-o", "json").stdout)
    assert made["spec"]["template"]["metadata"]["annotations"] == {"x/y": "z"}


def test_from_client_side_to_server_side(kubectl: Any, manifest: str) -> None:
    kubectl("apply", "-f", manifest)
    kubectl("apply", "--server-side", "--force-conflicts", "-f", manifest)
    without = MANIFEST.replace("        autoscaling.knative.dev/window: 6s\n", "        x/y: z\n")
    kubectl("apply", "--server-side", "-f", "-", stdin=without)
    made = json.loads(kubectl("get", "ksvc", "kb", "-o", "json").stdout)
    assert made["spec"]["template"]["metadata"]["annotations"] == {"x/y": "z"}


def test_tables(kubectl: Any, api: Any, manifest: str) -> None:
    kubectl("apply", "-f", manifest)
    ready = {
        "url": "http://kb",
        "latestReadyRevisionName": "kb-00001",
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    api.call(lambda store: store.set_status(kinds.SERVICE, "default", "kb", ready))
    heading, row = kubectl("get", "ksvc").stdout.splitlines()
    assert heading.split() == ["NAME", "URL", "LATESTCREATED", "LATESTREADY", "READY", "REASON"]
    assert row.split() == ["kb", "http://kb", "kb-00001", "True"]
    heading, row = kubectl("get", "triggers", "-A").stdout.splitlines()
    assert heading.split() == ["NAMESPACE", "NAME", "BROKER", "SUBSCRIBER_URI", "AGE", "READY", "REASON"]
    assert row.split()[:3] == ["default", "kbt", "default"]
    assert "service.serving.knative.dev/kb" in kubectl("get", "all").stdout
    assert kubectl("get", "broker", "-o", "name").stdout == "broker.eventing.knative.dev/default\n"


def test_describe_and_events(kubectl: Any, api: Any, manifest: str) -> None:
    kubectl("apply", "-f", manifest)
    uid = json.loads(kubectl("get", "ksvc", "kb", "-o", "json").stdout)["metadata"]["uid"]
    event = {
        "metadata": {"name": "kb.1", "namespace": "default"},
        "involvedObject": {"kind": "Service", "name": "kb", "namespace": "default", "uid": uid},
        "reason": "Created",
        "type": "Normal",
        "message": "Created Configuration",
        "source": {"component": "service-controller"},
    }
    api.call(lambda store: store.create(kinds.EVENT, event))
    text = kubectl("describe", "ksvc", "kb").stdout
    assert "Timeout Seconds:       300" in text
    assert "Created Configuration" in text
    assert "service/kb" in kubectl("get", "events").stdout


def test_patch_label_annotate_replace(kubectl: Any, tmp_path: Path, manifest: str) -> None:
    kubectl("apply", "-f", manifest)
    kubectl("patch", "ksvc", "kb", "--type", "merge", "-p", '{"spec":{"template":{"spec":{"timeoutSeconds":60}}}}')
    operation = '[{"op":"replace","path":"/spec/template/spec/containerConcurrency","value":3}]'
    kubectl("patch", "ksvc", "kb", "--type", "json", "-p", operation)
    kubectl("label", "ksvc", "kb", "x=y")
    kubectl("annotate", "ksvc", "kb", "a/b=c")
    made = json.loads(kubectl("get", "ksvc", "kb", "-o", "json").stdout)
    spec = made["spec"]["template"]["spec"]
    assert (spec["timeoutSeconds"], spec["containerConcurrency"]) == (60, 3)
    assert made["metadata"]["labels"] == {"x": "y"}
    assert made["metadata"]["annotations"]["a/b"] == "c"
    assert "replaced" in kubectl("replace", "-f", manifest).stdout
    bad = kubectl("patch", "ksvc", "kb", "--type", "json", "-p", '[{"op":"remove","path":"/spec/nope"}]', code=1)
    assert "the server rejected our request due to an error in our request" in bad.stderr


def test_wait(kubectl: Any, api: Any, manifest: str) -> None:
    kubectl("apply", "-f", manifest)
    ready = '{"status":{"conditions":[{"type":"Ready","status":"True"}]}}'
    kubectl("patch", "ksvc", "kb", "--subresource=status", "--type=merge", "-p", ready)
    assert "condition met" in kubectl("wait", "ksvc/kb", "--for=condition=Ready", "--timeout=20s").stdout
    late = kubectl("wait", "trigger/kbt", "--for=condition=Ready", "--timeout=1s", code=1)
    assert "timed out" in late.stderr


def test_validation_reaches_the_user(kubectl: Any) -> None:
    typo = MANIFEST.replace("containers:", "contaners:")
    assert 'unknown field "spec.template.spec.contaners"' in kubectl("apply", "-f", "-", stdin=typo, code=1).stderr
    negative = MANIFEST.replace(
        "    spec:\n      containers", "    spec:\n      timeoutSeconds: 9999\n      containers"
    )
    assert "expected 0 <= 9999 <= 600" in kubectl("apply", "-f", "-", stdin=negative, code=1).stderr


def test_inert_kinds_apply_with_a_warning(kubectl: Any) -> None:
    deployment = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec:
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec: {containers: [{name: one, image: first}, {name: two, image: second}]}
"""
    made = kubectl("apply", "-f", "-", stdin=deployment)
    assert "Warning: Deployment is stored, but not enforced in local mode" in made.stderr
    kubectl("apply", "-f", "-", stdin=deployment.replace("image: second", "image: third"))
    found = json.loads(kubectl("get", "deploy", "d", "-o", "json").stdout)
    images = [container["image"] for container in found["spec"]["template"]["spec"]["containers"]]
    assert images == ["first", "third"]


def test_create_with_a_command(kubectl: Any) -> None:
    kubectl("create", "namespace", "n")
    kubectl("create", "secret", "generic", "s", "-n", "n", "--from-literal=a=b")
    kubectl("create", "configmap", "c", "-n", "n", "--from-literal=x=y")
    assert kubectl("get", "secret", "s", "-n", "n", "-o", "jsonpath={.data.a}").stdout == "Yg=="
    assert kubectl("get", "cm", "c", "-n", "n", "-o", "jsonpath={.data.x}").stdout == "y"
    kubectl("delete", "namespace", "n")
    assert kubectl("get", "cm", "-A", "-o", "name").stdout == ""


def test_logs_and_pods(kubectl: Any, api: Any) -> None:
    status = {"phase": "Running", "containerStatuses": [{"name": "user-container", "ready": True, "restartCount": 0}]}
    body = {
        "metadata": {"name": "web", "namespace": "default", "labels": {"serving.knative.dev/service": "kb"}},
        "spec": {"containers": [{"name": "user-container", "image": "relight"}]},
        "status": status,
    }
    api.call(lambda store: store.create(kinds.POD, body))
    _, row = kubectl("get", "pods", "-l", "serving.knative.dev/service=kb").stdout.splitlines()
    assert row.split()[:4] == ["web", "1/1", "Running", "0"]
    assert kubectl("logs", "web", "--tail=2").stdout == "second\nthird\n"
    assert kubectl("logs", "-l", "serving.knative.dev/service=kb", "-c", "user-container").stdout.startswith("first")


def test_explain_and_resources(kubectl: Any) -> None:
    assert "containerConcurrency" in kubectl("explain", "ksvc.spec.template.spec").stdout
    assert "ksvc" in kubectl("api-resources", "--api-group=serving.knative.dev").stdout
    assert "v1.36" in kubectl("version").stdout


def test_a_kind_that_is_not_there(kubectl: Any) -> None:
    unknown = "apiVersion: nobody.dev/v1\nkind: Gadget\nmetadata: {name: x}\n"
    refused = kubectl("apply", "-f", "-", stdin=unknown, code=1).stderr
    assert 'no matches for kind "Gadget" in version "nobody.dev/v1"' in refused
