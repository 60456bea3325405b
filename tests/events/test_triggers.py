"""What a Trigger can ask for beyond Knative's fields: order by a key, a pause, one answer per event; and batches."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from events.rig import FAST, Machine, Received, Subscriber, reply, run

from relight.base.errors import BadInput
from relight.local.eventing.log import Limits
from relight.local.eventing.triggers import Subscription
from relight.local.kube import kinds
from relight.wire import cloudevents
from relight.wire.cloudevents import Event

ORDERED = {"kafka.eventing.knative.dev/delivery.order": "ordered"}
BY_GROUP = ORDERED | {"relight.dev/ordering-key": "group"}
NOISE = "boom é €\n\x1b[31m" + "line\n" * 2000


def test_order_within_a_key_poison_and_all(tmp_path: Path) -> None:
    """20 events in 2 groups: one always fails, one is refused, one fails twice; the sink itself is down at first."""

    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            done: list[int] = []
            tries: dict[int, int] = {}

            other_group = asyncio.Event()

            async def work(got: Received) -> web.Response:
                number = int(got.event.id)
                tries[number] = tries.get(number, 0) + 1
                if number == 5:
                    # The other group does not wait for the poisoned event.
                    await other_group.wait()
                    return web.Response(status=500, text=NOISE)
                if number == 9:
                    return web.Response(status=400)
                if number == 12 and tries[12] < 3:
                    return web.Response(status=503)
                done.append(number)
                if number == 10:
                    other_group.set()
                return web.Response(status=202)

            subscriber.answers["/f"] = work
            subscriber.answers["/dlq"] = lambda got: web.Response(status=503 if len(subscriber.at("/dlq")) < 5 else 202)
            sink = {"deadLetterSink": {"uri": f"{subscriber.url}/dlq"}}
            await machine.trigger("f", "t", f"{subscriber.url}/f", delivery=FAST | sink, annotations=BY_GROUP)
            for number in range(20):
                await machine.post(Event.of("t", "/s", b"x", id=str(number), group="ab"[number % 2]))
            await machine.settled()
            assert sorted(done) == [number for number in range(20) if number not in (5, 9)]
            for parity in (0, 1):
                assert [number for number in done if number % 2 == parity] == sorted(n for n in done if n % 2 == parity)
            assert (tries[5], tries[9], tries[12]) == (4, 1, 3)
            letters = {one.event.id: one.event for one in subscriber.at("/dlq")}
            assert set(letters) == {"5", "9"}
            assert letters["5"].get("knativeerrorcode") == "500"
            data = base64.b64decode(str(letters["5"].get("knativeerrordata")))
            assert NOISE.encode().startswith(data)
            assert len(data) == 1024

    run(story())


def test_without_a_key_attribute_all_events_stand_in_one_line(tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            at_once, most = 0, 0

            async def work(_: Received) -> web.Response:
                nonlocal at_once, most
                at_once += 1
                most = max(most, at_once)
                await asyncio.sleep(0)
                at_once -= 1
                return web.Response(status=202)

            subscriber.answers["/f"] = work
            await machine.trigger("f", "t", f"{subscriber.url}/f", annotations=ORDERED)
            for number in range(10):
                await machine.post(Event.of("t", "/s", b"x", id=str(number)))
            await machine.settled()
            assert [one.event.id for one in subscriber.at("/f")] == [str(number) for number in range(10)]
            assert most == 1

    run(story())


def test_order_survives_a_restart_and_a_change_of_the_trigger(tmp_path: Path) -> None:
    async def story() -> None:
        async with Subscriber().listening() as subscriber:
            async with Machine(tmp_path).up() as machine:
                paused = BY_GROUP | {"relight.dev/paused": "true"}
                await machine.trigger("f", "t", f"{subscriber.url}/f", annotations=paused)
                await machine.trigger("late", "t", f"{subscriber.url}/late", annotations={"relight.dev/paused": "true"})
                for number in range(12):
                    await machine.post(Event.of("t", "/s", b"x", id=str(number), group="abc"[number % 3]))
            assert subscriber.received == []
            async with Machine(tmp_path).up() as machine:
                await machine.annotate("f", **BY_GROUP)
                # Ordered from now on, though the events came before it was.
                await machine.annotate("late", **ORDERED)
                await subscriber.until(12, "/f")
                await subscriber.until(12, "/late")
                await machine.settled()
            for group in range(3):
                ids = [int(one.event.id) for one in subscriber.at("/f") if int(one.event.id) % 3 == group]
                assert ids == sorted(ids)
            assert [int(one.event.id) for one in subscriber.at("/late")] == list(range(12))

    run(story())


def test_pause_and_resume(tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            await machine.trigger("f", "t", f"{subscriber.url}/f", annotations={"relight.dev/paused": "true"})
            await machine.trigger("other", "t", f"{subscriber.url}/other")
            trigger = await machine.status(kinds.TRIGGER, "f")
            paused = next(one for one in trigger["status"]["conditions"] if one["type"] == "Paused")
            assert (paused["status"], paused["severity"]) == ("True", "Info")
            for _ in range(3):
                await machine.post(Event.of("t", "/s", b"x"))
            await subscriber.until(3, "/other")
            assert subscriber.at("/f") == []
            await machine.annotate("f")
            await subscriber.until(3, "/f")
            await machine.settled()

    run(story())


def answering(subscriber: Subscriber) -> None:
    """A function that answers each delivery with another event."""
    subscriber.answers["/f"] = lambda got: reply(Event.of("t.done", "/f", b"x", id=f"r{len(subscriber.at('/f'))}"))


@pytest.mark.parametrize(("dedup", "runs", "answers"), [("on", 3, 1), ("off", 3, 3), ("durable", 1, 1)])
def test_one_committed_answer_per_event(dedup: str, runs: int, answers: int, tmp_path: Path) -> None:
    """The same event is accepted three times, the third after a restart of the broker. This subscriber forgets."""

    async def story() -> None:
        async with Subscriber().listening() as subscriber:
            answering(subscriber)
            event = Event.of("t", "/s", b"x", id="e1")
            async with Machine(tmp_path).up() as machine:
                await machine.trigger("f", "t", f"{subscriber.url}/f", annotations={"relight.dev/dedup": dedup})
                await machine.trigger("end", "t.done", f"{subscriber.url}/end")
                for _ in range(2):
                    assert await machine.post(event) == 202
                    await machine.settled()
            async with Machine(tmp_path).up() as machine:
                assert await machine.post(event) == 202
                await machine.settled()
                # Other data under the same names is another event.
                assert await machine.post(event.replace(data=b"y")) == 202
                await machine.settled()
            assert len(subscriber.at("/f")) == runs + 1
            assert len(subscriber.at("/end")) == answers + 1
            told = {one.headers.get("relight-dedup") for one in subscriber.at("/f")}
            assert told == ({"off"} if dedup == "off" else {None})

    run(story())


def test_a_strict_broker_publishes_every_answer(tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path, strict=True).up() as machine, Subscriber().listening() as subscriber:
            answering(subscriber)
            await machine.trigger("f", "t", f"{subscriber.url}/f")
            await machine.trigger("end", "t.done", f"{subscriber.url}/end")
            for _ in range(2):
                await machine.post(Event.of("t", "/s", b"x", id="e1"))
                await machine.settled()
            assert len(subscriber.at("/end")) == 2

    run(story())


WRONG = [
    ({"relight.dev/concurrency": "0"}, "relight.dev/concurrency"),
    ({"relight.dev/concurrency": "٣"}, "relight.dev/concurrency"),
    ({"relight.dev/paused": "yes"}, "relight.dev/paused"),
    ({"relight.dev/dedup": "maybe"}, "relight.dev/dedup"),
    ({"kafka.eventing.knative.dev/delivery.order": "sorted"}, "delivery.order"),
    ({"relight.dev/ordering-key": "Not A Name"}, "relight.dev/ordering-key"),
]


@pytest.mark.parametrize(("annotations", "named"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_annotations_are_named(annotations: dict[str, str], named: str) -> None:
    trigger = {
        "metadata": {"name": "t", "namespace": "default", "uid": "u", "annotations": annotations},
        "spec": {"broker": "rec", "subscriber": {"uri": "http://x"}},
    }
    with pytest.raises(BadInput, match=named):
        Subscription.of(trigger)


BATCHES: list[tuple[str, int, int, int]] = [
    ("three", 3, 202, 3),
    ("none", 0, 400, 0),
    ("too many", 1001, 413, 0),
]


@pytest.mark.parametrize(
    ("count", "status", "delivered"), [one[1:] for one in BATCHES], ids=[one[0] for one in BATCHES]
)
def test_a_batch_is_accepted_as_a_whole(count: int, status: int, delivered: int, tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            await machine.trigger("f", "t", f"{subscriber.url}/f")
            events = [Event.of("t", "/s", {"n": n}, id=str(n)) for n in range(count)]
            assert await machine.post_batch(events) == status
            await machine.settled()
            assert {one.event.id for one in subscriber.at("/f")} == {str(n) for n in range(delivered)}

    run(story())


def test_one_bad_event_refuses_its_batch(tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            await machine.trigger("f", "t", f"{subscriber.url}/f")
            good = Event.of("t", "/s", b"x")
            assert await machine.post_batch([good, good.replace(knativebrokerttl=1)]) == 400
            _, body = cloudevents.encode_batch([good])
            async with machine.session.post(
                f"{machine.url}/default/rec",
                data=body[:-1] + b', {"id": ""}]',
                headers={"content-type": cloudevents.BATCH},
            ) as answer:
                assert answer.status == 400
                assert "[1]." in await answer.text()
            await machine.settled()
            assert subscriber.received == []

    run(story())


def test_on_knative_a_batch_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path, strict=True).up() as machine:
            assert await machine.post_batch([Event.of("t", "/s", b"x")]) == 400

    run(story())


@pytest.mark.parametrize(("limits", "left"), [(Limits(dead=3), 3), (Limits(dead_age=50.0), 1)], ids=["number", "age"])
def test_dead_letters_are_bounded(limits: Limits, left: int, tmp_path: Path) -> None:
    clock = [1_000_000.0]

    async def story() -> None:
        async with Subscriber().listening() as subscriber:
            subscriber.answers["/f"] = lambda got: web.Response(status=400)
            async with Machine(tmp_path, limits=limits, now=lambda: clock[0]).up() as machine:
                await machine.trigger("f", "t", f"{subscriber.url}/f")
                for number in range(5):
                    await machine.post(Event.of("t", "/s", b"x", id=str(number)))
                    await machine.settled()
                    clock[0] += 40.0
                assert len(await machine.eventing.log.dead()) == 5
            async with Machine(tmp_path, limits=limits, now=lambda: clock[0]).up() as machine:
                dead = await machine.eventing.log.dead()
                assert [one.id for one in dead] == [str(4 - n) for n in range(left)]
                assert dead[0].name == "default/f"

    run(story())


def test_the_first_error_of_many_is_told(tmp_path: Path) -> None:
    """What failed before the last attempt stays readable: when, and why."""

    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            codes = iter([503, 500, 400])
            subscriber.answers["/f"] = lambda got: web.Response(status=next(codes))
            await machine.trigger("f", "t", f"{subscriber.url}/f")
            await machine.post(Event.of("t", "/s", b"x"))
            await machine.settled()
            (dead,) = await machine.eventing.log.dead()
            tries: list[Any] = dead.tries.splitlines()
            assert [one.split(" ", 1)[1][:12] for one in tries[:2]] == ["answered 503", "answered 500"]
            assert "answered 400" in tries[2]
            assert dead.attempt == 3

    run(story())
