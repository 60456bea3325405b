"""PingSources: what they send, and that no tick is sent twice or missed, whatever happens in between."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from events.rig import Machine, Subscriber, broker_program, run

from relight.local.eventing import pinging
from relight.local.kube import kinds
from relight.local.kube.store import ObjectStore

NOON = 1_777_636_800.0  # 2026-05-01T12:00:00Z


class Clock:
    """The wall clock of a machine, which stands still until the test moves it."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks look at the time often, as the time does not pass by itself here."""
    monkeypatch.setattr(pinging, "LONGEST_SLEEP", 0.005)


def source(machine: Machine, url: str, annotations: dict[str, str] | None = None, **spec: Any) -> None:
    machine.store.create(
        kinds.PING_SOURCE,
        {
            "metadata": {"namespace": "default", "name": "p", "annotations": annotations or {}},
            "spec": {"schedule": "0 * * * *", "sink": {"uri": f"{url}/p"}, **spec},
        },
    )


SENT: list[tuple[str, dict[str, Any], bytes, str | None]] = [
    ("json", {"data": '{"a": 1}'}, b'{"a": 1}', "application/json"),
    ("text", {"data": "hello"}, b"hello", "text/plain"),
    ("a type that is given", {"data": "<a/>", "contentType": "text/xml"}, b"<a/>", "text/xml"),
    ("bytes", {"dataBase64": "AP8=", "contentType": "image/x"}, b"\x00\xff", "image/x"),
    ("nothing", {}, b"", None),
]


@pytest.mark.parametrize(("spec", "body", "content_type"), [one[1:] for one in SENT], ids=[one[0] for one in SENT])
@pytest.mark.usefixtures("quick")
def test_what_is_sent(spec: dict[str, Any], body: bytes, content_type: str | None, tmp_path: Path) -> None:
    clock = Clock()

    async def story() -> None:
        async with Machine(tmp_path, now=clock).up() as machine, Subscriber().listening() as subscriber:
            source(machine, subscriber.url, ceOverrides={"extensions": {"team": "x"}}, **spec)
            obj = await machine.status(kinds.PING_SOURCE, "p")
            assert {one["type"]: one["status"] for one in obj["status"]["conditions"]} == dict.fromkeys(
                ("Deployed", "OIDCIdentityCreated", "Ready", "SinkProvided"), "True"
            )
            assert obj["status"]["sinkUri"] == f"{subscriber.url}/p"
            where = "/apis/v1/namespaces/default/pingsources/p"
            assert obj["status"]["ceAttributes"] == [{"type": "dev.knative.sources.ping", "source": where}]
            clock.now += 3600
            (got,) = await subscriber.until(1, "/p")
            event = got.event
            assert (event.type, event.source, event.get("team")) == ("dev.knative.sources.ping", where, "x")
            assert event.get("time") == "2026-05-01T13:00:00Z"
            assert (got.body, got.headers.get("content-type")) == (body, content_type)

    run(story())


@pytest.mark.parametrize(
    ("catch_up", "hours"), [(None, [15]), ("latest", [15]), ("all", [13, 14, 15]), ("none", [])], ids=str
)
@pytest.mark.usefixtures("quick")
def test_what_was_missed_is_made_up_for_as_declared(catch_up: str | None, hours: list[int], tmp_path: Path) -> None:
    clock = Clock()

    async def story() -> None:
        async with Subscriber().listening() as subscriber:
            async with Machine(tmp_path, now=clock).up() as machine:
                annotations = {"relight.dev/catch-up": catch_up} if catch_up else {}
                source(machine, subscriber.url, annotations)
                await machine.status(kinds.PING_SOURCE, "p")
            clock.now = NOON + 3 * 3600 + 60
            async with Machine(tmp_path, now=clock).up() as machine:
                await subscriber.until(len(hours), "/p")
                # A tick on time comes in any case, and is the last for now.
                clock.now = NOON + 4 * 3600
                await subscriber.until(len(hours) + 1, "/p")
                await machine.settled()
            times = [str(one.event.get("time"))[11:13] for one in subscriber.at("/p")]
            assert times == [str(hour) for hour in [*hours, 16]]

    run(story())


@pytest.mark.usefixtures("quick")
def test_a_new_schedule_makes_up_for_nothing(tmp_path: Path) -> None:
    clock = Clock()

    async def story() -> None:
        async with Machine(tmp_path, now=clock).up() as machine, Subscriber().listening() as subscriber:
            source(machine, subscriber.url, {"relight.dev/catch-up": "all"})
            await machine.status(kinds.PING_SOURCE, "p")
            clock.now = NOON + 3600
            await subscriber.until(1, "/p")
            clock.now = NOON + 3600 + 1800
            old = machine.store.get(kinds.PING_SOURCE, "default", "p")
            assert old is not None
            machine.store.update(kinds.PING_SOURCE, {**old, "spec": {**old["spec"], "schedule": "* * * * *"}})
            await machine.status(kinds.PING_SOURCE, "p")
            clock.now += 60
            got = await subscriber.until(2, "/p")
            assert got[1].event.get("time") == "2026-05-01T13:31:00Z"
            await machine.settled()
            assert len(subscriber.at("/p")) == 2

    run(story())


@pytest.mark.usefixtures("quick")
def test_to_a_broker_that_comes_later(tmp_path: Path) -> None:
    clock = Clock()

    async def story() -> None:
        async with Machine(tmp_path, now=clock).up() as machine, Subscriber().listening() as subscriber:
            ref = {"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "later"}
            source(machine, subscriber.url, sink={"ref": ref})
            obj = await machine.status(kinds.PING_SOURCE, "p")
            ready = next(one for one in obj["status"]["conditions"] if one["type"] == "Ready")
            assert (ready["status"], ready["reason"]) == ("False", "NotFound")
            clock.now += 3600
            machine.store.create(kinds.BROKER, {"metadata": {"namespace": "default", "name": "later"}, "spec": {}})
            await machine.trigger("t", "dev.knative.sources.ping", f"{subscriber.url}/t", broker="later")
            clock.now += 3600
            await subscriber.until(1, "/t")

    run(story())


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"schedule": "nonsense here 1 2 3"}, "spec.schedule"),
        ({"timezone": "Mars/Olympus"}, "spec.timezone"),
        ({"data": "{", "contentType": "application/json"}, "spec.data"),
        ({"dataBase64": "!"}, "spec.dataBase64"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(spec: dict[str, Any], named: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine:
            source(machine, "http://127.0.0.1:9", **spec)
            obj = await machine.status(kinds.PING_SOURCE, "p")
            ready = next(one for one in obj["status"]["conditions"] if one["type"] == "Ready")
            assert (ready["status"], ready["reason"]) == ("False", "InvalidSource")
            assert named in ready["message"]

    run(story())


def test_every_second_over_kill_9(tmp_path: Path) -> None:
    """A broker process with a PingSource that ticks every second is killed at random: each second comes once."""

    async def story() -> None:
        async with Subscriber().listening() as subscriber:
            store = ObjectStore.open(tmp_path / "objects.db")
            spec = {"schedule": "* * * * * *", "sink": {"uri": f"{subscriber.url}/p"}}
            metadata = {"namespace": "default", "name": "p", "annotations": {"relight.dev/catch-up": "all"}}
            store.create(kinds.PING_SOURCE, {"metadata": metadata, "spec": spec})
            store.close()
            for _ in range(3):
                async with broker_program(tmp_path, subscriber.url):
                    await subscriber.until(len(subscriber.at("/p")) + 1, "/p")
            # A delivery that the kill cut short is made again, with the same id; the ticks themselves are whole.
            times = {one.event.id: str(one.event.get("time")) for one in subscriber.at("/p")}
            seconds = sorted(datetime.fromisoformat(time).timestamp() for time in times.values())
            assert seconds == [seconds[0] + n for n in range(len(seconds))]

    run(story())
