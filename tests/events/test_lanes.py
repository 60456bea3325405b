"""What must hold whatever happens between the log and the lanes: nothing that is on disk waits for a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from events.rig import Machine, Subscriber, run

from relight.base.tasks import Tasks
from relight.decide.filters import Filter
from relight.local.eventing.addressing import Addresses
from relight.local.eventing.lanes import Item, Lane
from relight.local.eventing.triggers import Subscription
from relight.local.kube import kinds
from relight.local.kube.store import ObjectStore
from relight.wire.cloudevents import Event


def test_what_was_accepted_is_delivered_though_its_sender_was_cancelled(tmp_path: Path) -> None:
    """A source that is changed while it writes is such a sender."""

    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            await machine.trigger("f", "t.f", f"{subscriber.url}/f")
            events = [Event.of("t.f", "/s", {}, id="e1")]
            publishing = machine.eventing.dispatcher.publish_all(("default", "rec"), events, cursor=("source/u", "1"))
            sender = asyncio.create_task(publishing)
            await asyncio.sleep(0)
            sender.cancel()
            await asyncio.wait([sender])
            assert sender.cancelled()
            (got,) = await subscriber.until(1, "/f")
            assert got.event.id == "e1"
            assert await machine.eventing.log.cursor("source/u") == "1"

    run(story())


def test_what_comes_while_the_order_changes_keeps_its_key() -> None:
    async def story() -> None:
        began: list[int] = []
        let_go = asyncio.Event()

        async def deliver(lane: Lane, item: Item) -> None:
            began.append(item.seq)
            await let_go.wait()

        tasks = Tasks("lanes")
        subscription = Subscription("u", "default", "f", "rec", Filter(()), ordering_key="patient")
        lane = Lane(subscription, lambda _: True, deliver, tasks)
        # 1 and 2 were there when the keys were read; 3 and 4 came after that.
        for seq, key in ((1, None), (2, None), (3, "a"), (4, "b")):
            lane.add(Item(0.0, seq, key=key))
        lane.reorder({1: "a", 2: "a"})
        tasks.spawn(lane.run(), "run")
        for _ in range(10):
            await asyncio.sleep(0)
        assert began == [1, 4], "2 and 3 have the key of 1, which is under way"
        let_go.set()
        await tasks.stop()

    asyncio.run(story())


@pytest.mark.parametrize("uri", ["http://[::1/", "http://[x]/", "not a url", "ftp://host/"])
def test_a_destination_that_is_no_url_has_no_address(tmp_path: Path, uri: str) -> None:
    store = ObjectStore.open(tmp_path / "objects.db")
    found = Addresses(store, lambda namespace, name: "").find("default", {"uri": uri})
    store.close()
    assert found.url is None
    assert uri in found.reason


def test_events_wait_for_an_address_that_is_mended(tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path, token="secret").up() as machine, Subscriber().listening() as subscriber:
            channel: dict[str, Any] = {"metadata": {"namespace": "default", "name": "c"}, "spec": {}}
            machine.store.create(kinds.CHANNEL, channel)
            spec = {
                "channel": {"apiVersion": "messaging.knative.dev/v1", "kind": "Channel", "name": "c"},
                "subscriber": {"uri": "http://[::1/"},
            }
            machine.store.create(kinds.SUBSCRIPTION, {"metadata": {"namespace": "default", "name": "s"}, "spec": spec})
            told = await machine.status(kinds.SUBSCRIPTION, "s")
            assert "is not a URL" in str(told["status"]["conditions"])
            assert await machine.post(Event.of("t", "/s", {}, id="e1"), broker="channels/c") == 202
            asked = machine.session.get(f"{machine.url}/-/deliveries", headers={"Authorization": "Bearer secret"})
            async with asked as answer:
                (waiting,) = (await answer.json())["deliveries"]
            assert (waiting["attempts"], waiting["reason"]) == (0, "the subscriber has no address yet")
            stored = machine.store.get(kinds.SUBSCRIPTION, "default", "s")
            assert stored is not None
            stored["spec"]["subscriber"]["uri"] = f"{subscriber.url}/f"
            machine.store.update(kinds.SUBSCRIPTION, stored)
            (got,) = await subscriber.until(1, "/f")
            assert got.event.id == "e1"

    run(story())
