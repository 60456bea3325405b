"""Revisions and traffic on a running platform, through the real kubectl: split, tags, rollback, rollout, retention."""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kit import http, kubectl, make_function, manifest, post

from relight.net.kube import Kube
from relight.testing.platform import RunningPlatform

STEP = """
import os
import time

from relight.sdk import Step


class Versioned(Step):
    def run(self, data, event):
        os.write(1, b"asked\\n")
        while "until" in data and not os.path.exists(data["until"]):
            time.sleep(0.02)
        return {{"version": "{version}", "pid": os.getpid(), "environ": {{k: os.environ.get(k) for k in {names!r}}}}}


def new():
    return Versioned()
"""


def versioned(folder: Path, name: str, version: str, names: tuple[str, ...] = ("K_SERVICE", "K_CONFIGURATION")) -> Path:
    return make_function(folder, name, STEP.format(version=version, names=names))


def ready(stack: RunningPlatform, name: str, revision: str | None = None) -> dict[str, Any]:
    """The Service once it is ready; with ``revision``, once that is its latest ready one."""
    if revision is not None:
        latest = f"--for=jsonpath={{.status.latestReadyRevisionName}}={revision}"
        kubectl(stack, "wait", f"ksvc/{name}", latest, "--timeout=60s")
    kubectl(stack, "wait", f"ksvc/{name}", "--for=condition=Ready", "--timeout=60s")
    return json.loads(kubectl(stack, "get", "ksvc", name, "-o", "json"))  # type: ignore[no-any-return]


def two_revisions(stack: RunningPlatform, tmp_path: Path, name: str) -> str:
    """A Service with a first and a second revision, the second taking all traffic; its URL."""
    folder = versioned(tmp_path, name, "one")
    kubectl(stack, "apply", "-f", "-", stdin=manifest(name, folder))
    ready(stack, name, f"{name}-00001")
    versioned(tmp_path, name, "two")
    kubectl(stack, "apply", "-f", "-", stdin=manifest(name, folder, 'x/change: "2"'))
    return str(ready(stack, name, f"{name}-00002")["status"]["url"])


def asked(url: str, times: int = 1) -> Counter[str]:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: post(url, {}), range(times)))
    assert [answer.data for answer in answers if answer.status != 200] == []
    return Counter(answer.json()["version"] for answer in answers)


def set_traffic(stack: RunningPlatform, name: str, *lines: dict[str, Any]) -> dict[str, Any]:
    kubectl(stack, "patch", "ksvc", name, "--type=merge", "-p", json.dumps({"spec": {"traffic": lines}}))
    return ready(stack, name)["status"]  # type: ignore[no-any-return]


def test_split_tags_and_rollback(stack: RunningPlatform, tmp_path: Path) -> None:
    url = two_revisions(stack, tmp_path, "halves")
    assert asked(url, 10) == {"two": 10}
    status = set_traffic(
        stack,
        "halves",
        {"revisionName": "halves-00001", "latestRevision": False, "percent": 50, "tag": "old"},
        {"latestRevision": True, "percent": 50},
    )
    shares = asked(url, 200)
    # Of 200 fair draws fewer than 60 of a kind come once in 10^8 runs.
    assert set(shares) == {"one", "two"}
    assert min(shares.values()) >= 60
    old = next(line for line in status["traffic"] if line.get("tag") == "old")
    assert old["url"] == url.replace("/halves", "/old-halves")
    assert asked(old["url"], 10) == {"one": 10}

    # A tag without a share has its own URL and nothing else; back to the first revision by its name.
    status = set_traffic(
        stack,
        "halves",
        {"revisionName": "halves-00001", "latestRevision": False, "percent": 100},
        {"latestRevision": True, "percent": 0, "tag": "next"},
    )
    assert asked(url, 20) == {"one": 20}
    preview = next(line["url"] for line in status["traffic"] if line.get("tag") == "next")
    assert asked(preview, 10) == {"two": 10}
    assert http.request("POST", old["url"], json={}).status == 404

    # By its header, once the cluster's flag is on: the same URL for both versions.
    by_header = {"Knative-Serving-Tag": "next"}
    assert http.request("POST", url, json={}, headers=by_header).json()["version"] == "one"
    flag = {"data": {"tag-header-based-routing": "enabled"}}
    kubectl(stack, "patch", "cm", "config-features", "-n", "knative-serving", "--type=merge", "-p", json.dumps(flag))
    assert http.request("POST", url, json={}, headers=by_header).json()["version"] == "two"
    assert http.request("POST", url, json={}, headers={"Knative-Serving-Tag": "no"}).json()["version"] == "one"

    # What is deployed now takes no traffic but through its tag, and old code is still what the old revision runs.
    folder = versioned(tmp_path, "halves", "three")
    change = {"spec": {"template": {"metadata": {"annotations": {"x/change": "3"}}}}}
    kubectl(stack, "patch", "ksvc", "halves", "--type=merge", "-p", json.dumps(change))
    ready(stack, "halves", "halves-00003")
    assert folder.exists()
    assert asked(url, 10) == {"one": 10}
    assert asked(preview, 10) == {"three": 10}
    labels = {
        one["metadata"]["name"]: one["metadata"]["labels"]["serving.knative.dev/routingState"]
        for one in json.loads(
            kubectl(stack, "get", "revisions", "-l", "serving.knative.dev/service=halves", "-o", "json")
        )["items"]
    }
    assert labels == {"halves-00001": "active", "halves-00002": "reserve", "halves-00003": "active"}


def test_a_revision_that_is_not_there(stack: RunningPlatform, tmp_path: Path) -> None:
    url = two_revisions(stack, tmp_path, "absent")
    lines = [{"revisionName": "absent-00009", "latestRevision": False, "percent": 100}]
    kubectl(stack, "patch", "ksvc", "absent", "--type=merge", "-p", json.dumps({"spec": {"traffic": lines}}))
    kubectl(stack, "wait", "ksvc/absent", "--for=condition=Ready=False", "--timeout=20s")
    said = kubectl(stack, "get", "ksvc", "absent", "-o", "jsonpath={.status.conditions[?(@.type=='Ready')]}")
    assert json.loads(said)["reason"] == "RevisionMissing"
    assert json.loads(said)["message"] == 'Revision "absent-00009" referenced in traffic not found.'
    assert asked(url, 5) == {"two": 5}, "what was assigned before stays"


def test_a_gradual_rollout(stack: RunningPlatform, tmp_path: Path) -> None:
    folder = versioned(tmp_path, "gradual", "one")
    made = manifest("gradual", folder).replace(
        "metadata: {name: gradual}",
        "metadata: {name: gradual, annotations: {serving.knative.dev/rollout-duration: 4s}}",
    )
    kubectl(stack, "apply", "-f", "-", stdin=made)
    url = ready(stack, "gradual", "gradual-00001")["status"]["url"]
    shares: list[dict[str, int]] = []
    reasons = set()
    with Kube.from_kubeconfig(stack.kubeconfig) as kube:
        changes = kube.watch("serving.knative.dev/v1", "Route", "default", name="gradual", timeout=60)
        versioned(tmp_path, "gradual", "two")
        kubectl(stack, "apply", "-f", "-", stdin=made.replace("relight.dev/source", 'x/c: "2", relight.dev/source'))
        for _, route in changes:
            share = {line["revisionName"]: line["percent"] for line in route.get("status", {}).get("traffic", ())}
            if share and (not shares or shares[-1] != share):
                shares.append(share)
            reasons |= {one.get("reason") for one in route["status"]["conditions"] if one["type"] == "IngressReady"}
            if share == {"gradual-00002": 100}:
                break
    assert shares[0] == {"gradual-00001": 100}
    assert shares[1] == {"gradual-00001": 99, "gradual-00002": 1}
    assert len(shares) >= 5
    assert all(sum(share.values()) == 100 for share in shares)
    grown = [share.get("gradual-00002", 0) for share in shares]
    assert grown == sorted(grown)
    assert "RolloutInProgress" in reasons
    assert asked(url, 10) == {"two": 10}
    ready(stack, "gradual")


def test_old_revisions_are_collected_with_their_code(stack: RunningPlatform, tmp_path: Path) -> None:
    given = {"retain-since-create-time": "disabled", "retain-since-last-active-time": "disabled"}
    given |= {"min-non-active-revisions": "1", "max-non-active-revisions": "1"}
    patch = ("patch", "cm", "config-gc", "-n", "knative-serving", "--type=merge", "-p")
    kubectl(stack, *patch, json.dumps({"data": given}))
    try:
        folder = versioned(tmp_path, "many", "0")
        for number in range(1, 5):
            versioned(tmp_path, "many", str(number))
            kubectl(stack, "apply", "-f", "-", stdin=manifest("many", folder, f'x/change: "{number}"'))
            url = ready(stack, "many", f"many-0000{number}")["status"]["url"]
        kubectl(stack, "wait", "revision/many-00002", "--for=delete", "--timeout=20s")
        left = kubectl(stack, "get", "revisions", "-l", "serving.knative.dev/service=many", "-o", "name").split()
        assert [name.rpartition("-")[2] for name in left] == ["00003", "00004"]
        assert asked(url, 3) == {"4": 3}
    finally:
        kubectl(stack, *patch, json.dumps({"data": dict.fromkeys(given)}))
    used = {
        one["metadata"]["annotations"]["relight.dev/snapshot"].replace(":", "-")
        for one in json.loads(kubectl(stack, "get", "revisions", "-A", "-o", "json"))["items"]
    }
    until(lambda: {path.name for path in (stack.home / "sources").iterdir()} == used)


def test_a_config_counts_at_once(stack: RunningPlatform, tmp_path: Path) -> None:
    kubectl(stack, "apply", "-f", "-", stdin=manifest("tuned", versioned(tmp_path, "tuned", "one")))
    ready(stack, "tuned")
    patch = ("patch", "cm", "config-autoscaler", "-n", "knative-serving", "--type=merge", "-p")
    refused = kubectl(stack, *patch, '{"data":{"stable-window":"1s"}}', code=1)
    assert "expected 6s to 1h0m0s" in refused
    kubectl(stack, *patch, '{"data":{"min-scale":"2"}}')
    try:
        kubectl(stack, "wait", "revision/tuned-00001", "--for=jsonpath={.status.actualReplicas}=2", "--timeout=30s")
    finally:
        kubectl(stack, *patch, '{"data":{"min-scale":null}}')
    kubectl(stack, "delete", "ksvc", "tuned")


def test_a_deleted_pod_drains_and_is_replaced(stack: RunningPlatform, tmp_path: Path) -> None:
    kept = 'autoscaling.knative.dev/min-scale: "1"'
    kubectl(stack, "apply", "-f", "-", stdin=manifest("replaced", versioned(tmp_path, "replaced", "one"), kept))
    url = ready(stack, "replaced")["status"]["url"]
    of = ("-l", "serving.knative.dev/service=replaced")
    (first,) = kubectl(stack, "get", "pods", *of, "-o", "name").split()
    before = post(url, {}).json()["pid"]
    released = tmp_path / "released"
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(post, url, {"until": str(released)})
        until(lambda: "asked\nasked\n" in kubectl(stack, "logs", first))
        gone = pool.submit(kubectl, stack, "delete", first)
        until(lambda: first not in ready_pods(stack, of) and ready_pods(stack, of))
        assert "Terminating" in kubectl(stack, "get", first)
        assert post(url, {}).json()["pid"] != before
        released.touch()
        assert slow.result().json()["pid"] == before, "what was in flight was finished"
        assert "deleted" in gone.result()
    (second,) = ready_pods(stack, of)
    kubectl(stack, "delete", second, "--force", "--grace-period=0")
    until(lambda: (found := ready_pods(stack, of)) and second not in found)
    assert post(url, {}).status == 200
    begun = time.monotonic()
    kubectl(stack, "delete", "ksvc", "replaced")
    kubectl(stack, "wait", "pod", *of, "--for=delete", "--timeout=30s")
    assert time.monotonic() - begun < 30
    assert kubectl(stack, "get", "pods", *of, "-o", "name") == ""


def ready_pods(stack: RunningPlatform, of: tuple[str, ...]) -> list[str]:
    items = json.loads(kubectl(stack, "get", "pods", *of, "-o", "json"))["items"]
    return [
        f"pod/{one['metadata']['name']}"
        for one in items
        if "deletionTimestamp" not in one["metadata"] and one["status"]["containerStatuses"][0]["ready"]
    ]


def until(what: Any, seconds: float = 30.0) -> None:
    """Until something is true of what kubectl shows: there is nothing to wait on but asking again."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)


def test_logs_with_every_option(stack: RunningPlatform, tmp_path: Path) -> None:
    kept = 'autoscaling.knative.dev/min-scale: "1"'
    kubectl(stack, "apply", "-f", "-", stdin=manifest("talks", versioned(tmp_path, "talks", "one"), kept))
    url = ready(stack, "talks")["status"]["url"]
    asked(url, 3)
    (pod,) = kubectl(stack, "get", "pods", "-l", "serving.knative.dev/service=talks", "-o", "name").split()
    until(lambda: kubectl(stack, "logs", pod).count("asked") == 3)
    assert kubectl(stack, "logs", pod, "--tail=1") == "asked\n"
    assert kubectl(stack, "logs", pod, "--limit-bytes=3") == kubectl(stack, "logs", pod)[:3]
    stamped = kubectl(stack, "logs", pod, "--timestamps", "--tail=2").splitlines()
    assert len(stamped) == 2
    assert all(line[:4].isdecimal() and line[10] == "T" and line.endswith("Z asked") for line in stamped)
    assert kubectl(stack, "logs", pod, "--since=1h") == kubectl(stack, "logs", pod)
    assert kubectl(stack, "logs", pod, "--since-time=2100-01-01T00:00:00Z") == ""
    until(lambda: kubectl(stack, "logs", pod, "--since=1s") == "")
    missing = kubectl(stack, "logs", pod, "--previous", code=1)
    assert f'previous terminated container "user-container" in pod "{pod[4:]}" not found' in missing
    assert "container nope is not valid" in kubectl(stack, "logs", pod, "-c", "nope", code=1)
    assert 'pods "nope" not found' in kubectl(stack, "logs", "nope", code=1)
    with (
        Kube.from_kubeconfig(stack.kubeconfig) as kube,
        pytest.raises(Exception, match='pods "nope" not found'),
    ):
        list(kube.logs("nope", "default"))


def test_a_configuration_and_a_route_of_their_own(stack: RunningPlatform, tmp_path: Path) -> None:
    folder = versioned(tmp_path, "alone", "one")
    kubectl(stack, "apply", "-f", "-", stdin=manifest("alone", folder, kind="Configuration"))
    route = """
apiVersion: serving.knative.dev/v1
kind: Route
metadata: {name: way}
spec:
  traffic: [{configurationName: alone, percent: 100, tag: now}]
"""
    kubectl(stack, "apply", "-f", "-", stdin=route)
    kubectl(stack, "wait", "route/way", "--for=condition=Ready", "--timeout=60s")
    answer = post(f"{stack.functions}/default/way", {}).json()
    assert answer["version"] == "one"
    assert answer["environ"] == {"K_SERVICE": "alone", "K_CONFIGURATION": "alone"}
    assert asked(f"{stack.functions}/default/now-way", 2) == {"one": 2}
    routed = kubectl(stack, "get", "cfg", "alone", "-o", "jsonpath={.metadata.annotations}")
    assert json.loads(routed)["serving.knative.dev/routes"] == "way"
    kubectl(stack, "delete", "cfg", "alone")
    kubectl(stack, "wait", "route/way", "--for=condition=Ready=False", "--timeout=20s")
    said = kubectl(stack, "get", "route", "way", "-o", "jsonpath={.status.conditions[?(@.type=='Ready')].message}")
    assert said == 'Configuration "alone" referenced in traffic not found.'
    kubectl(stack, "delete", "route", "way")


def test_the_same_name_right_after_its_deletion(stack: RunningPlatform, tmp_path: Path) -> None:
    folder = versioned(tmp_path, "again", "one")
    kubectl(stack, "apply", "-f", "-", stdin=manifest("again", folder))
    url = ready(stack, "again")["status"]["url"]
    assert asked(url) == {"one": 1}
    versioned(tmp_path, "again", "two")
    with Kube.from_kubeconfig(stack.kubeconfig) as kube:
        old = kube.get("serving.knative.dev/v1", "Service", "again", "default")
        kube.delete("serving.knative.dev/v1", "Service", "again", "default")
        fresh = {key: old[key] for key in ("apiVersion", "kind")} | {"metadata": {"name": "again"}}
        kube.create(fresh | {"spec": {"template": old["spec"]["template"]}})
    made = ready(stack, "again", "again-00001")
    assert made["metadata"]["uid"] != old["metadata"]["uid"]
    assert asked(url, 5) == {"two": 5}


def test_what_the_command_line_shows(stack: RunningPlatform, tmp_path: Path) -> None:
    quick = "autoscaling.knative.dev/window: 6s"
    kubectl(stack, "apply", "-f", "-", stdin=manifest("shown", versioned(tmp_path, "shown", "one"), quick))
    url = ready(stack, "shown")["status"]["url"]
    kubectl(stack, "wait", "revision/shown-00001", "--for=jsonpath={.status.actualReplicas}=0", "--timeout=40s")
    assert asked(url) == {"one": 1}
    everything = stack.relight("get", "all").stdout
    for name in ("service.serving.knative.dev/shown", "revision.serving.knative.dev/shown-00001", "pod/shown-00001-"):
        assert name in everything
    names = stack.relight("get", "all", "-o", "name").stdout.split()
    assert "route.serving.knative.dev/shown" in names
    assert "no resources found" in stack.relight("get", "all", "-n", "knative-eventing").stderr
    told = stack.relight("describe", "revision", "shown-00001").stdout
    heading, columns, row = told[told.index("cold starts (ms):") :].splitlines()[:3]
    assert columns.split() == ["AT", "TOTAL", "HOLD", "FORK", "IMPORT", "FETCH", "LOAD", "WARMUP", "FIRST_ANSWER"]
    total, *phases = map(int, row.split()[1:])
    assert abs(total - sum(phases)) <= len(phases), "they add up, but for rounding"
    assert heading == "cold starts (ms):"
    assert max(map(len, (columns, row))) <= 100
