"""Splitting traffic and driving a canary, through a real API; the revisions are played, and so is time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from relight.base.errors import BadInput, Conflict, NotFound
from relight.cluster import traffic
from relight.cluster.apply import apply_object
from relight.cluster.canary import drive, policy_of
from relight.cluster.standing import standing
from relight.decide.canary import Decision, Policy, Sample
from relight.local.kube import kinds

SERVING = "serving.knative.dev/v1"
SERVICE = {
    "apiVersion": SERVING,
    "kind": "Service",
    "metadata": {"name": "hello"},
    "spec": {"template": {"spec": {"containers": [{"image": "relight"}]}}},
}
POLICY = Policy(steps=(10, 50), interval=60, min_requests=10)


def revise(client: Any, api: Any, number: int) -> str:
    """A new revision that is ready; traffic as the Service's spec has it, as its controller would report it."""
    wanted = copy.deepcopy(SERVICE)
    wanted["spec"]["template"]["spec"]["timeoutSeconds"] = number  # type: ignore[index]
    _, service = apply_object(client, wanted, "default")
    name = f"hello-{number:05d}"
    revision = {
        "apiVersion": SERVING,
        "kind": "Revision",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {
                "serving.knative.dev/service": "hello",
                "serving.knative.dev/configurationGeneration": str(number),
            },
        },
        "spec": {"containers": [{"image": "relight"}]},
    }
    api.create(kinds.REVISION, revision)
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    status = {"latestReadyRevisionName": name, "latestCreatedRevisionName": name}

    async def write() -> None:
        api.store.set_status(kinds.REVISION, "default", name, ready)
        api.store.set_status(kinds.SERVICE, "default", "hello", {**service.get("status", {}), **status})

    api.run(write())
    report(client, api)
    return name


def report(client: Any, api: Any) -> None:
    """What the route controller does: status.traffic says which revisions the spec means."""
    service = client.get(SERVING, "Service", "hello")
    newest = service["status"]["latestReadyRevisionName"]
    found = [
        {**one, "revisionName": one.get("revisionName") or newest}
        for one in service["spec"].get("traffic") or [{"latestRevision": True, "percent": 100}]
    ]

    async def write() -> None:
        api.store.set_status(kinds.SERVICE, "default", "hello", {**service["status"], "traffic": found})

    api.run(write())


def split(client: Any) -> list[tuple[str, int, str | None]]:
    return [
        (one.get("revisionName") or "latest", one.get("percent") or 0, one.get("tag"))
        for one in client.get(SERVING, "Service", "hello")["spec"]["traffic"]
    ]


def test_a_canary_from_the_first_share_to_all(client: Any, api: Any) -> None:
    revise(client, api, 1)
    assert traffic.begin(client, "hello", "default") == "hello-00001"
    report(client, api)
    revise(client, api, 2)
    assert split(client) == [("hello-00001", 100, None)], "a deployment does not touch the split"
    pair = traffic.give(client, "hello", "default", None, 10, "next")
    assert (pair.stable, pair.canary) == ("hello-00001", "hello-00002")
    assert split(client) == [("hello-00001", 90, None), ("hello-00002", 10, "next")]
    traffic.give(client, "hello", "default", None, 50, None)
    assert split(client) == [("hello-00001", 50, None), ("hello-00002", 50, "next")], "it keeps its tag"
    assert traffic.promote(client, "hello", "default") == "hello-00002"
    assert split(client) == [("latest", 100, None)]
    assert traffic.pair(client.get(SERVING, "Service", "hello")) is None


def test_rolling_back_leaves_the_canary_to_be_looked_at_by_its_tag(client: Any, api: Any) -> None:
    revise(client, api, 1)
    revise(client, api, 2)
    traffic.give(client, "hello", "default", None, 10, "next")
    report(client, api)
    assert traffic.rollback(client, "hello", "default") == "hello-00001"
    assert split(client) == [("hello-00001", 100, None), ("hello-00002", 0, "next")]
    report(client, api)
    revise(client, api, 3)
    traffic.give(client, "hello", "default", None, 5, "later")
    assert split(client) == [("hello-00001", 95, None), ("hello-00003", 5, "later"), ("hello-00002", 0, "next")]


def test_a_revision_that_already_has_everything_goes_beside_the_one_before(client: Any, api: Any) -> None:
    for number in (1, 2, 3):
        revise(client, api, number)
    pair = traffic.give(client, "hello", "default", None, 10, None)
    assert (pair.stable, pair.canary) == ("hello-00002", "hello-00003")


FAULTS: list[tuple[str, int, Callable[[Any], object], type[Exception], str]] = [
    ("one revision", 1, lambda c: traffic.give(c, "hello", "default", None, 10, None), BadInput, "the only revision"),
    ("nothing to promote", 1, lambda c: traffic.promote(c, "hello", "default"), Conflict, "no canary out"),
    ("nothing to take back", 1, lambda c: traffic.rollback(c, "hello", "default"), Conflict, "no canary out"),
    ("no such function", 1, lambda c: traffic.give(c, "gone", "default", None, 10, None), NotFound, "gone"),
]


@pytest.mark.parametrize(
    ("revisions", "action", "error", "says"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS]
)
def test_what_cannot_be_done(
    client: Any, api: Any, revisions: int, action: Callable[[Any], object], error: type[Exception], says: str
) -> None:
    for number in range(1, revisions + 1):
        revise(client, api, number)
    with pytest.raises(error, match=says):
        action(client)


def test_a_first_deployment_has_nothing_to_hold(client: Any) -> None:
    assert traffic.begin(client, "hello", "default") is None


class Played:
    """Samples as a test writes them, and a clock that only a pause moves."""

    def __init__(self, canary: Sample, during: Callable[[], None] = lambda: None) -> None:
        self.now = 0.0
        self.begun: list[tuple[str, ...]] = []
        self._canary = canary
        self._during = during

    def begin(self, revisions: Any) -> None:
        self.begun.append(tuple(revisions))

    def since(self, revision: str, seconds: float) -> Sample:
        return self._canary if revision == "hello-00002" else Sample(1000, 1)

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self._during()


def go(client: Any, played: Played) -> tuple[Decision, list[str]]:
    verbs: list[str] = []
    last = drive(
        client,
        "hello",
        "default",
        played,
        policy=POLICY,
        on_decision=lambda decision: verbs.append(decision.verb),
        clock=lambda: played.now,
        pause=played.pause,
    )
    return last, verbs


@pytest.fixture
def out(client: Any, api: Any) -> None:
    """A canary that has 10 %."""
    revise(client, api, 1)
    revise(client, api, 2)
    traffic.give(client, "hello", "default", None, 10, "next")


@pytest.mark.usefixtures("out")
def test_one_that_is_well_gets_everything_step_by_step(client: Any) -> None:
    played = Played(Sample(100, 0))
    last, verbs = go(client, played)
    assert (last.verb, [verb for verb in verbs if verb != "wait"]) == ("promote", ["step", "promote"])
    assert played.now == pytest.approx(120)
    assert len(played.begun) == 2, "each step is judged by what came in it"
    assert split(client) == [("latest", 100, None)]


@pytest.mark.usefixtures("out")
def test_one_that_fails_is_taken_back_at_the_first_look(client: Any) -> None:
    played = Played(Sample(20, 12))
    last, verbs = go(client, played)
    assert (last.verb, verbs) == ("rollback", ["rollback"])
    assert played.now == pytest.approx(10)
    assert split(client) == [("hello-00001", 100, None), ("hello-00002", 0, "next")]


@pytest.mark.usefixtures("out")
def test_somebody_who_changes_the_split_meanwhile_has_the_last_word(client: Any) -> None:
    def change() -> None:
        wanted = {"spec": {"traffic": [{"revisionName": "hello-00002", "percent": 100}]}}
        client.patch(SERVING, "Service", "hello", wanted)

    with pytest.raises(Conflict, match="changed by somebody else"):
        go(client, Played(Sample(100, 0), change))
    assert split(client) == [("hello-00002", 100, None)]


def test_the_policy_that_a_function_was_deployed_with() -> None:
    text = '{"canary": {"steps": [5]}, "slo": {"latency": "200ms"}, "idle": "5m"}'
    service = {"metadata": {"name": "hello", "annotations": {"relight.dev/policy": text}}}
    assert policy_of(service) == Policy(steps=(5,), latency=0.2)


@pytest.mark.usefixtures("out")
def test_how_a_function_stands_while_a_canary_is_out(client: Any, api: Any) -> None:
    report(client, api)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "hello-00002-a",
            "namespace": "default",
            "labels": {"serving.knative.dev/service": "hello", "serving.knative.dev/revision": "hello-00002"},
        },
        "spec": {"containers": [{"name": "user-container", "image": "relight"}]},
        "status": {"containerStatuses": [{"name": "user-container", "state": {"waiting": {"reason": "ErrImagePull"}}}]},
    }
    api.create(kinds.POD, pod)
    found = standing(client, "hello", "default")
    assert [(one.name, one.percent, one.tags, one.role, one.replicas) for one in found.revisions] == [
        ("hello-00001", 90, (), "stable", 0),
        ("hello-00002", 10, ("next",), "canary", 1),
    ]
    assert found.revisions[1].reason == "the image cannot be pulled: ErrImagePull"
