"""The policy at work on a running platform: through its API, with traffic and a clock that the test makes."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from relight.decide.annotations import DOMAIN
from relight.net.kube import Kube
from relight.testing.platform import RunningPlatform, running_platform
from relight.warm.acting import USER, change, restore
from relight.warm.costs import cost_rows
from relight.warm.functions import Bill, Function
from relight.warm.keeper import Keeper
from relight.warm.leading import Leadership, expired
from relight.warm.pods import replicas
from relight.warm.settings import WarmSettings
from relight.warm.shelf import Shelf
from relight.warm.sources import Reading, RouterSource
from relight.wire import cloudevents, prewarm
from relight.wire.cloudevents import Event

SERVING = "serving.knative.dev/v1"
KEY = ("default", "bell")
MODEL = """
import numpy as np
from relight.sdk import Model, TensorSpec

class Bell(Model):
    inputs = [TensorSpec("x", "FP32", [-1, 1])]
    outputs = [TensorSpec("y", "FP32", [-1, 1])]

    def infer(self, inputs):
        return {"y": np.asarray(inputs["x"]) * 2}

def new():
    return Bell()
"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    folder = tmp_path_factory.mktemp("warm")
    with running_platform(folder / "home") as running:
        running.relight("new", "step", "bell", str(folder / "bell"))
        (folder / "bell" / "function" / "func.py").write_text(MODEL)
        running.relight("deploy", str(folder / "bell"))
        yield running


@pytest.fixture
def kube(platform: RunningPlatform) -> Iterator[Kube]:
    with Kube.from_kubeconfig(platform.kubeconfig) as client:
        yield client
        restore(client, "the test is over")
        client.patch(SERVING, "Service", "bell", {"metadata": {"annotations": OFF}}, "default")
        for one in client.list("v1", "ConfigMap", "default", labels="relight.dev/warm-state=true")["items"]:
            client.delete("v1", "ConfigMap", one["metadata"]["name"], "default")
        for one in client.list("coordination.k8s.io/v1", "Lease", "default")["items"]:
            client.delete("coordination.k8s.io/v1", "Lease", one["metadata"]["name"], "default")


OFF = {"relight.dev/warm": None, "relight.dev/warm-rules": None}


def latest(kube: Kube) -> str:
    name: str = kube.get(SERVING, "Service", "bell", "default")["status"]["latestReadyRevisionName"]
    return name


@dataclass
class Scripted:
    """Traffic as the test makes it."""

    revision: str
    requests: float = 0.0
    present: float = 0.0
    cold: tuple[float, float] = (0.0, 0.0)
    phases: dict[str, float] = field(default_factory=dict)

    def read(self) -> dict[tuple[str, str], Reading]:
        return {("default", self.revision): Reading(self.requests, self.present, *self.cold, self.phases)}


@dataclass
class Rig:
    """A keeper with a clock of the test's."""

    kube: Kube
    mode: str = "on"
    source: Scripted = field(init=False)
    pings: list[tuple[str, Event]] = field(default_factory=list)
    now: float = 1_700_000_000.0
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.source = Scripted(latest(self.kube))
        given = {"cold": 10.0, "objects": 0.0, "lease": 1e9, **self.settings}
        settings = WarmSettings(mode=self.mode, **given)  # type: ignore[arg-type]
        self.keeper = Keeper(self.kube, self.source, settings, lambda url, event: self.pings.append((url, event)))

    def step(self, seconds: float = 1.0) -> bool:
        self.now += seconds
        return self.keeper.step(self.now)

    def call(self, seconds: float = 1.0) -> None:
        self.source.requests += 1
        self.step(seconds)

    def ring(self, period: float, times: int) -> None:
        """Calls that come as a timer's do."""
        self.call()
        for _ in range(times):
            self.call(period)

    def annotations(self, name: str | None = None) -> dict[str, str]:
        found = (
            self.kube.get(SERVING, "Revision", name or self.source.revision, "default")["metadata"].get("annotations")
            or {}
        )
        return {
            key.removeprefix(f"{DOMAIN}/"): value
            for key, value in found.items()
            if key in (f"{DOMAIN}/min-scale", f"{DOMAIN}/scale-down-delay", USER)
        }

    def events(self) -> list[str]:
        found = self.kube.list("v1", "Event", "default")["items"]
        return [one["reason"] for one in found if one["source"]["component"] == "relight-warm"]


def test_a_timer_is_met_with_a_pre_warmed_replica(kube: Kube) -> None:
    rig = Rig(kube)
    before = rig.annotations()
    generation = kube.get(SERVING, "Service", "bell", "default")["status"]["latestCreatedRevisionName"]
    rig.ring(1800.0, 12)
    rig.step(30.0)
    assert rig.annotations() == before, "let go at once, and the user's values stand"
    rig.step(1700.0)
    assert rig.pings == []
    rig.step(62.0)  # 1792 s after the last call; a start takes 10
    assert rig.annotations()["min-scale"] == "1"
    ((url, event),) = rig.pings
    assert url.endswith("/default/bell")
    assert (event.type, event.json()["function"]) == (prewarm.TYPE, "default/bell")
    # The pre-warm event is counted by the router, and not by the policy: it is nobody's call.
    rig.source.requests += 1
    rig.step(1.0)
    assert rig.keeper.functions[KEY].idle_since is not None
    assert len(rig.pings) == 1
    rig.step(120.0)
    assert rig.annotations() == before, "nobody called: it is let go"
    assert {"WarmPrewarm"} <= set(rig.events())
    assert kube.get(SERVING, "Service", "bell", "default")["status"]["latestCreatedRevisionName"] == generation


def test_what_pays_is_kept_and_goes_back_to_the_users_values_at_the_end(kube: Kube) -> None:
    rig = Rig(kube, settings={"cold": 60.0})
    before = rig.annotations()
    for seconds in (200.0, 260.0, 2.0, 230.0, 3.0, 280.0) * 4:
        rig.call(seconds)
    keep = rig.keeper.functions[KEY].keep
    assert 280.0 <= keep < 500.0
    found = rig.annotations()
    assert float(found["scale-down-delay"].rstrip("s")) == pytest.approx(keep - 60.0, rel=0.25)
    assert json.loads(found[USER]) == {"min-scale": before.get("min-scale"), "scale-down-delay": None}
    assert rig.keeper.end()
    assert rig.annotations() == before


def test_dry_run_tells_and_changes_nothing(kube: Kube) -> None:
    rig = Rig(kube, mode="dry-run")
    before = rig.annotations()
    rig.ring(1800.0, 10)
    rig.step(1795.0)
    assert (rig.annotations(), rig.pings) == (before, [])
    assert "WarmPrewarmDryRun" in rig.events()


def test_owners_ban_pin_and_rule(kube: Kube) -> None:
    def say(**annotations: str | None) -> None:
        change = {f"relight.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
        kube.patch(SERVING, "Service", "bell", {"metadata": {"annotations": change}}, "default")

    rig = Rig(kube, settings={"cold": 60.0})
    before = rig.annotations()
    say(warm="pin:2")
    rig.step(61.0)
    assert rig.annotations()["min-scale"] == "2"
    say(warm="off")
    rig.step(61.0)
    assert rig.annotations() == before
    say(warm=None, warm_rules="between 00:00 and 24:00: min 1")
    rig.step(61.0)
    assert rig.annotations()["min-scale"] == "1"
    assert "WarmRule" in rig.events()
    say(warm_rules="whenever: min 1")
    rig.step(61.0)
    assert rig.annotations().get("min-scale") == before.get("min-scale")


def test_a_hot_model_has_the_replicas_of_the_hour_that_comes_before_it_comes(kube: Kube) -> None:
    monday = 4 * 86400.0 + 2800 * 7 * 86400.0
    rig = Rig(kube, settings={"cold": 60.0}, now=monday + 8 * 3600.0 + 1500.0)
    rig.source.present = 300.0

    def minutes(count: int) -> int:
        for _ in range(count):
            rig.call(60.0)
        return int(rig.annotations()["min-scale"])

    few = minutes(15)
    assert few > 1
    row = rig.keeper.functions[KEY].row
    rig.keeper.times.week[row, 8], rig.keeper.times.week[row, 9] = 100.0, 200.0
    assert minutes(5) in (2 * few - 1, 2 * few)
    assert "WarmHot" in rig.events()


def test_what_was_learned_outlives_a_restart(kube: Kube) -> None:
    first = Rig(kube)
    first.source.cold = (0.0, 0.0)
    first.ring(1800.0, 10)
    first.source.cold, first.source.phases = (14.0, 2.0), {"load": 12.0, "import": 2.0}
    first.call()
    first.keeper.end()
    functions, times = Shelf(kube, "default").load()
    assert (functions[KEY].cold, functions[KEY].phases) == (7.0, {"load": 6.0, "import": 1.0})
    learned = first.keeper.functions[KEY].row
    assert times.recent[functions[KEY].row].tolist()[-5:] == first.keeper.times.recent[learned].tolist()[-5:]
    second = Rig(kube, now=first.now)
    second.source.requests = 1
    second.step(1.0)
    assert second.keeper.functions[KEY].ready == pytest.approx(first.keeper.functions[KEY].ready, rel=0.01)


def test_starts_of_before_it_was_watched_tell_how_long_one_takes(kube: Kube) -> None:
    rig = Rig(kube)
    rig.source.cold, rig.source.phases = (9.0, 3.0), {"load": 6.0}
    rig.step()
    function = rig.keeper.functions[KEY]
    assert (function.cold, function.phases, function.bill.starts) == (3.0, {"load": 2.0}, 0)
    assert function.keep == pytest.approx(function.cold * (0.004 + 0.0001) / 0.0001 / 2), "half of the break-even"
    rig.source.cold, rig.source.phases = (14.0, 4.0), {"load": 10.0}
    rig.step()
    assert (function.cold, function.phases) == (pytest.approx(3.6), {"load": pytest.approx(2.6)})
    assert (function.bill.starts, function.bill.cold) == (1, 5.0)


def test_a_function_that_is_called_twice_a_day_is_met_both_times(kube: Kube) -> None:
    rig = Rig(kube, now=1_700_006_400.0 - 60.0)  # a minute before midnight UTC
    day, other = 5 * 3600.0, 19 * 3600.0

    def pass_time(seconds: float) -> None:
        """A look each half hour, as hours count that were watched as a whole."""
        while seconds > 1800.0:
            rig.step(1800.0)
            seconds -= 1800.0
        rig.call(seconds)

    rig.call()
    for _ in range(5):
        pass_time(day)
        pass_time(other)
    function = rig.keeper.functions[KEY]
    assert function.ready < day < function.until < day + 60.0
    assert function.reason.endswith("as at this time of day before")
    watched = rig.keeper.times.week[function.row]
    assert np.nansum(watched) in (8, 9, 10, 11)
    assert (np.nan_to_num(watched) == 0).sum() > 150
    pass_time(day)
    assert function.ready < other < function.until < other + 60.0
    assert rig.keeper.end()
    functions, times = Shelf(kube, "default").load()
    assert np.array_equal(times.week[functions[KEY].row], watched, equal_nan=True)
    again = Rig(kube, now=rig.now)
    again.source.requests = rig.source.requests
    again.step()
    again.call(other - 1.0)
    assert again.keeper.functions[KEY].ready < day < again.keeper.functions[KEY].until


def test_a_new_revision_gets_the_policys_values_and_the_old_one_the_users(
    kube: Kube, platform: RunningPlatform, tmp_path: Path
) -> None:
    rig = Rig(kube, settings={"cold": 60.0})
    before, old = rig.annotations(), rig.source.revision
    kube.patch(SERVING, "Service", "bell", {"metadata": {"annotations": {"relight.dev/warm": "pin"}}}, "default")
    for seconds in (200.0, 260.0, 2.0, 230.0, 3.0, 280.0) * 3:
        rig.call(seconds)
    acted = rig.annotations()
    assert acted["min-scale"] == "1"
    assert "scale-down-delay" in acted
    platform.relight("new", "step", "bell", str(tmp_path / "bell"))
    (tmp_path / "bell" / "function" / "func.py").write_text(MODEL.replace("* 2", "* 3"))
    platform.relight("deploy", str(tmp_path / "bell"))
    new = latest(kube)
    assert new != old
    assert USER not in rig.annotations(new)
    kube.patch(SERVING, "Service", "bell", {"metadata": {"annotations": {"relight.dev/warm": "pin"}}}, "default")
    rig.source.revision = new
    rig.step()
    assert rig.annotations(new) == acted
    assert rig.annotations(old) == before
    assert rig.keeper.end()
    assert rig.annotations(new) == before


def test_one_of_two_acts_until_its_lease_runs_out(kube: Kube) -> None:
    one, other = (Leadership(kube, "default", name, 15.0) for name in ("one", "other"))
    assert [one.hold(1000.0), other.hold(1001.0), one.hold(1010.0), other.hold(1020.0)] == [True, False, True, False]
    assert [other.hold(1030.0), one.hold(1031.0)] == [True, False], "one was not heard of for 15 s"
    other.give_up()
    assert one.hold(1032.0)
    lease = kube.get("coordination.k8s.io/v1", "Lease", "relight-warm", "default")["spec"]
    assert (lease["holderIdentity"], lease["leaseTransitions"]) == ("one", 2)
    assert [expired(lease, 1040.0), expired(lease, 1050.0)] == [False, True]


def test_what_one_that_died_has_left_is_taken_back(kube: Kube, platform: RunningPlatform) -> None:
    rig = Rig(kube, settings={"lease": 15.0})
    before = rig.annotations()
    kube.patch(SERVING, "Service", "bell", {"metadata": {"annotations": {"relight.dev/warm": "pin"}}}, "default")
    rig.step(61.0)
    assert rig.annotations()["min-scale"] == "1"
    told = platform.relight("warm", "off", "--if-expired")
    assert f"default/{rig.source.revision}" in told.stdout, "its clock is not today's: its lease ran out"
    assert rig.annotations() == before


def test_what_the_commands_show(kube: Kube, platform: RunningPlatform) -> None:
    rig = Rig(kube)
    rig.ring(1800.0, 8)
    rig.step(15.0)
    rig.keeper.end()
    (row,) = json.loads(platform.relight("warm", "status", "-o", "json").stdout)["functions"]
    assert row["plan"].startswith("ready 30m")
    said = platform.relight("warm", "explain", "bell").stdout
    assert "a cold start of 10.0 s" not in said, "the default of the command, 5 s, since none was seen"
    assert "a cold start of 5.0 s costs" in said
    (cost,) = json.loads(platform.relight("cost", "-o", "json").stdout)
    assert cost["name"] == "default/bell"
    assert cost["busy"] + cost["idle"] > 0


def test_a_function_takes_the_event_and_runs_nothing(platform: RunningPlatform, kube: Kube) -> None:
    event = prewarm.event("1", "default/bell", "a test", "2030-01-01T00:00:00Z")
    headers, body = cloudevents.encode_binary(event)
    request = urllib.request.Request(f"{platform.functions}/default/bell", body, dict(headers), method="POST")
    with urllib.request.urlopen(request, timeout=30) as response:
        assert (response.status, response.read()) == (204, b"")
    # So does an event of another type that says so, whatever its data.
    event = Event.of(
        "dev.knative.sources.ping", "/p", b"\xff", id="2", datacontenttype="text/plain", relightprewarm="true"
    )
    headers, body = cloudevents.encode_binary(event)
    request = urllib.request.Request(f"{platform.functions}/default/bell", body, dict(headers), method="POST")
    with urllib.request.urlopen(request, timeout=30) as response:
        assert response.status == 204
    reading = RouterSource(platform.functions, _get).read()["default", latest(kube)]
    assert reading.requests >= 1


def _get(url: str, query: object) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as response:
        body: bytes = response.read()
        return body


ACCESS = Path(__file__).parents[2] / "manifests" / "components" / "warm" / "access.yaml"
PATH = re.compile(r"/(?:api/v1|apis/([^/]+)/[^/]+)(?:/namespaces/[^/]+)?/([a-z]+)(/[^/]+)?")
VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}


def test_its_roles_are_what_it_uses_and_no_more(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[tuple[str, str, str]] = set()
    request = kube._request

    def watched(method: str, path: str, *rest: Any) -> Any:
        found = PATH.fullmatch(path)
        if found:  # else it asks which kinds there are, as everybody may
            group, resource, name = found.groups()
            used.add((group or "", resource, VERBS.get(method) or ("get" if name else "list")))
        return request(method, path, *rest)

    rig = Rig(kube)
    monkeypatch.setattr(kube, "_request", watched)
    replicas(kube)()
    rig.ring(1800.0, 12)
    rig.step(1792.0)
    assert rig.pings
    rig.keeper.end()
    rules = [rule for one in yaml.safe_load_all(ACCESS.read_text()) for rule in one.get("rules", ())]
    given = {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert used == given


CHANGES: list[tuple[str, dict[str, str], int | None, int | None, dict[str, str | None] | None]] = [
    ("nothing is asked for", {}, None, None, None),
    ("a replica", {}, 1, None, {"min-scale": "1", USER: '{"min-scale": null, "scale-down-delay": null}'}),
    ("never less than the user has", {"min-scale": "3"}, 1, None, None),
    ("more than the user has", {"minScale": "1"}, 2, None,
     {"min-scale": "2", USER: '{"min-scale": "1", "scale-down-delay": null}'}),
    ("an old spelling is as good", {"minScale": "1"}, None, None, None),
    ("back to the old spelling",
     {"minScale": "1", "min-scale": "2", USER: '{"min-scale": "1", "scale-down-delay": null}'}, None, None,
     {"min-scale": None, USER: None}),
    ("the user's own delay stands", {"scale-down-delay": "10m"}, None, 30, None),
    ("back", {"min-scale": "2", USER: '{"min-scale": "1", "scale-down-delay": null}'}, None, None,
     {"min-scale": "1", USER: None}),
    ("back to nothing", {"min-scale": "2", USER: '{"min-scale": null, "scale-down-delay": null}'}, None, None,
     {"min-scale": None, USER: None}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("has", "least", "delay", "want"), [row[1:] for row in CHANGES], ids=[row[0] for row in CHANGES]
)
def test_changes_of_annotations(
    has: dict[str, str], least: int | None, delay: int | None, want: dict[str, str | None] | None
) -> None:
    def full(values: dict[str, Any]) -> dict[str, Any]:
        return {key if key == USER else f"{DOMAIN}/{key}": value for key, value in values.items()}

    assert change(full(has), least, delay) == (None if want is None else full(want))


def test_the_dearest_idle_functions_come_first() -> None:
    functions = {
        ("a", "cheap"): Function(0, share=0.125, bill=Bill(watched=1000.0, busy=10.0, idle=100.0)),
        ("a", "dear"): Function(1, share=1.0, gpu=True, bill=Bill(watched=1000.0, idle=1000.0)),
        ("b", "cold"): Function(2, share=0.5, gpu=True, bill=Bill(watched=1000.0, idle=10.0, cold=50.0, starts=5)),
    }
    rows = cost_rows(functions, WarmSettings(), by_tenant=False)
    assert [(row.name, row.on) for row in rows] == [("a/dear", "GPU"), ("a/cheap", "CPU"), ("b/cold", "GPU")]
    # Of 990 idle seconds of one that is always on, 890 were saved, at an eighth of 0.0008 each; none of the dear one.
    assert [round(row.saved_money, 4) for row in rows] == [0.0, 0.089, 0.196]
    (a, b) = cost_rows(functions, WarmSettings(), by_tenant=True)
    assert (a.name, a.on, a.idle, b.name, b.starts) == ("a", "CPU+GPU", 1100.0, "b", 5)
