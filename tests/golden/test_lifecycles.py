"""How conditions move on a running platform, against how they moved on a real cluster.

Per object, the states (all conditions with reasons and messages) that were seen here must come in the recording, in the
same order: a subsequence. States are skipped where their cause does not exist here, and only those that are listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from golden.shuffling import recorded, seeded, word
from golden.watching import KINDS, Watched, shown, states, watch
from kit import make_function

from relight.net.kube import Kube
from relight.testing.platform import RunningPlatform, running_platform

SCENARIOS = {one["scenario"]: one for one in recorded("lifecycles.json")["scenarios"]}

SKIPPED = {
    "NotReady: K8s Service is not ready": "a replica that is ready can be reached at once: no endpoints to wait for",
    "NotReady: No Private Service Name": "there is no Service object per revision",
    "NotReady: )": "the same",
    "Uninitialized: Waiting for load balancer to be ready": "the router's table is changed in one step",
    "IngressNotConfigured": "the same; it is told only while there is nothing to route to",
    "Active=Unknown(Deploying: )": "a revision's PodAutoscaler is there as soon as the revision is deployed",
    "ContainerHealthy=True Ready=Unknown(Deploying: )": "the container and the deployment become ready in one step",
    "ContainerHealthy=Unknown Ready=Unknown(Deploying: )": "the same",
    "OutOfDate": "controllers are so near to one another that a state may be gone before it is written",
    "TrafficNotMigrated": "the same",
    "RevisionMissing: Configuration": "the same, of a Service whose Route says it",
    "ConfigurationsReady=Unknown ": "the same",
}
"""What a state that was recorded, and not seen, must hold; and why it may be missing here."""

ECHO = """
from relight.sdk import Step

class Echo(Step):
    def run(self, data, event):
        return {"version": VERSION}

def new():
    return Echo()

VERSION = 1
"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with running_platform(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture
def kube(platform: RunningPlatform) -> Iterator[Kube]:
    with Kube.from_kubeconfig(platform.kubeconfig) as client:
        yield client


@pytest.fixture
def watched(platform: RunningPlatform) -> Watched:
    found = Watched()
    watch(platform.kubeconfig, found)
    found.until(lambda rows: True)
    return found


def service(scenario: str, name: str, folder: Path) -> dict[str, Any]:
    """The Service of the recording under another name, with a folder for its image."""
    spec = SCENARIOS[scenario]["service"]["spec"]
    metadata = {"annotations": spec["template"]["metadata"]["annotations"] | {"relight.dev/source": str(folder)}}
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"template": {**spec["template"], "metadata": metadata}},
    }


def recorded_states(scenario: str, kind: str, suffix: str, name: str) -> list[str]:
    rows = SCENARIOS[scenario]["rows"]
    found = states(one for one in rows if (one["kind"], one["name"]) == (kind, scenario + suffix))
    return [text.replace(scenario, name) for text in found]


def assert_followed(watched: Watched, scenario: str, name: str, *, but: tuple[str, ...] = ()) -> None:
    """Every object of the scenario went through what was recorded. ``but``: states that are seen here beyond that."""
    objects = {(one["kind"], one["name"].removeprefix(scenario)) for one in SCENARIOS[scenario]["rows"]}
    for kind, suffix in sorted(objects):
        wanted = recorded_states(scenario, kind, suffix, name)
        if scenario == "second-revision" and kind == "PodAutoscaler":
            # That recording ends before its replicas do; how an autoscaler gets to zero is in the other one.
            wanted += recorded_states("ready-then-zero", kind, "-00001", name)[-2:]
        seen = [
            text
            for text in states(watched.of(kind, name + suffix))
            if not any(re.search(pattern, text) for pattern in but)
        ]
        assert seen, f"{kind} {name}{suffix} was not seen"
        at, current = 0, ""
        missed = []
        for text in seen:
            assert text in wanted[at:], (
                f"{kind} {name}{suffix} was in a state that was not recorded there:\n  {text}\nrecorded:\n  "
                + "\n  ".join(wanted)
            )
            found = wanted.index(text, at)
            # What lies between may be skipped; then the state before it simply lasts.
            missed += [one for one in wanted[at:found] if one != current]
            at, current = found + 1, text
        for text in missed + [one for one in wanted[at:] if one != current]:
            assert any(part in text for part in SKIPPED), (
                f"{kind} {name}{suffix} never was in a recorded state:\n  {text}"
            )


def ready(watched: Watched, name: str, revision: str) -> None:
    watched.until(
        lambda rows: any(
            one["kind"] == "Service"
            and one["name"] == name
            and one["status"].get("latestReadyRevisionName") == revision
            and "Ready=True" in map(shown, one["conditions"])
            for one in rows
        )
    )


def idle(watched: Watched, revision: str) -> None:
    """Until a PodAutoscaler that was active is at zero."""

    def at_zero(rows: list[dict[str, Any]]) -> bool:
        last = watched.of("PodAutoscaler", revision)
        return bool(last) and last[-1]["status"].get("desiredScale") == 0 and not last[-1]["status"]["actualScale"]

    watched.until(at_zero)


def failed(kube: Kube, watched: Watched, name: str) -> None:
    """Until all say that the first revision failed, and each watch has come as far as the objects have."""
    told = [("Service", name), ("Configuration", name), ("Route", name), ("Revision", f"{name}-00001")]
    watched.until(lambda rows: all(re.search(r"\bReady=False", " ".join(states(watched.of(*one)))) for one in told))
    for kind, full in [*told, ("PodAutoscaler", f"{name}-00001")]:
        status = kube.get(KINDS[kind], kind, full)["status"]
        watched.until(lambda rows, one=(kind, full), now=status: any(r["status"] == now for r in watched.of(*one)))


def test_from_creation_to_ready_to_zero(kube: Kube, watched: Watched, tmp_path: Path) -> None:
    name = word(seeded("ready-then-zero"), "r")
    kube.apply(service("ready-then-zero", name, make_function(tmp_path, name, ECHO)))
    ready(watched, name, f"{name}-00001")
    idle(watched, f"{name}-00001")
    assert_followed(watched, "ready-then-zero", name)
    scales = [
        (one["status"].get("desiredScale"), one["status"].get("actualScale"))
        for one in watched.of("PodAutoscaler", f"{name}-00001")
        if one["status"]
    ]
    order = [pair for at, pair in enumerate(scales) if at == 0 or scales[at - 1] != pair]
    assert order == [(-1, 0), (-1, 1), (1, 1), (0, 1), (0, 0)]
    kube.delete("serving.knative.dev/v1", "Service", name)
    gone = {("Service", ""), ("Configuration", ""), ("Route", ""), ("Revision", "-00001"), ("PodAutoscaler", "-00001")}
    watched.until(
        lambda rows: all(any(one["type"] == "DELETED" for one in watched.of(kind, name + end)) for kind, end in gone)
    )


def test_through_a_second_revision(kube: Kube, watched: Watched, tmp_path: Path) -> None:
    name = word(seeded("second-revision"), "s")
    first = service("second-revision", name, make_function(tmp_path, name, ECHO))
    kube.apply(first)
    ready(watched, name, f"{name}-00001")
    first["spec"]["template"]["metadata"]["annotations"]["x/changed"] = "1"
    kube.apply(first)
    ready(watched, name, f"{name}-00002")
    idle(watched, f"{name}-00002")
    assert_followed(watched, "second-revision", name)
    services = watched.of("Service", name)
    shares = [[line["revisionName"] for line in one["status"].get("traffic") or ()] for one in services]
    order = [share for at, share in enumerate(shares) if at == 0 or shares[at - 1] != share]
    assert order == [[], [f"{name}-00001"], [f"{name}-00002"]], "traffic moved once, and never to nobody"


def test_a_function_that_exits_at_once(kube: Kube, watched: Watched, tmp_path: Path) -> None:
    """A cluster said nothing for 40 s. Here the reason is known at once; up to it, all is as it was there."""
    name = word(seeded("exits-at-once"), "x")
    kube.apply(service("exits-at-once", name, make_function(tmp_path, name, "raise SystemExit(3)\n")))
    failed(kube, watched, name)
    assert_followed(watched, "exits-at-once", name, but=(r"Ready=False", r"ContainerHealthy=False"))
    revision = states(watched.of("Revision", f"{name}-00001"))[-1]
    said = re.search(r"ContainerHealthy=False\(LoadFailed: (Container failed with: .*?)\)", revision)
    assert said, revision
    assert f'Revision "{name}-00001" failed with message: {said[1]}.' in states(watched.of("Configuration", name))[-1]
    assert f'Configuration "{name}" does not have any ready Revision.' in states(watched.of("Route", name))[-1]


def test_a_gpu_that_the_machine_does_not_have(kube: Kube, watched: Watched, tmp_path: Path) -> None:
    """Said at once, in the scheduler's words; then the numbers of this machine, which a cluster does not tell."""
    name = word(seeded("no-gpu-in-cluster"), "g")
    kube.apply(service("no-gpu-in-cluster", name, make_function(tmp_path, name, ECHO)))
    failed(kube, watched, name)
    said = " (1 nvidia.com/gpu asked for, 0 on this machine)"
    for one in watched.rows:
        for condition in one["conditions"]:
            if "nvidia.com/gpu" in condition.get("message", ""):
                assert said in condition["message"]
                condition["message"] = condition["message"].replace(said, "")
    assert_followed(watched, "no-gpu-in-cluster", name)
    kube.delete("serving.knative.dev/v1", "Service", name)


def test_the_comparison_can_fail() -> None:
    watched = Watched()
    scenario = SCENARIOS["ready-then-zero"]
    watched.rows = [{**one, "status": {}} for one in scenario["rows"]]
    assert_followed(watched, "ready-then-zero", "ready-then-zero")
    for at, one in enumerate(scenario["rows"]):
        if one["kind"] == "Route" and "AllTrafficAssigned=True" in states([one])[:1]:
            watched.rows[at] = {**one, "conditions": [{"type": "Ready", "status": "False"}]}
    turned = [one for one in watched.rows if one["kind"] == "Service"]
    watched.rows = [one for one in watched.rows if one["kind"] != "Service"] + turned[::-1]
    with pytest.raises(AssertionError, match="not recorded there"):
        assert_followed(watched, "ready-then-zero", "ready-then-zero")
