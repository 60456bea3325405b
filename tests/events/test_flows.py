"""Channels, Subscriptions, Sequences and Parallels over real HTTP, and the statuses that Knative gives them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from events.rig import FAST, Machine, Received, Subscriber, reply, run

from relight.local.eventing.flows import plan_parallel, plan_sequence
from relight.local.kube import kinds
from relight.local.kube.kinds import Kind
from relight.wire.cloudevents import Event

IN_MEMORY = {"apiVersion": "messaging.knative.dev/v1", "kind": "InMemoryChannel"}


async def make(machine: Machine, kind: Kind, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Create an object and wait until it is Ready."""
    machine.store.create(kind, {"metadata": {"namespace": "default", "name": name}, "spec": spec})
    watch = machine.store.watch(kind, "default")
    async for change in watch:
        obj = change.object
        if obj["metadata"]["name"] == name and conditions(obj).get("Ready") == "True":
            watch.close()
            return obj
    raise AssertionError("the store was closed")


def conditions(obj: dict[str, Any]) -> dict[str, str]:
    return {one["type"]: one["status"] for one in (obj.get("status") or {}).get("conditions") or ()}


async def post(machine: Machine, url: str, event: Event) -> int:
    from relight.wire import cloudevents

    headers, body = cloudevents.encode_binary(event)
    async with machine.session.post(url, data=body, headers=dict(headers)) as answer:
        return answer.status


def adding(letter: str) -> Any:
    """A step that adds a letter to the text, and answers with an event of a type of its own."""

    def step(got: Received) -> web.Response:
        return reply(Event.of(f"t.{letter}", f"/{letter}", {"text": got.event.json()["text"] + letter}))

    return step


@pytest.mark.parametrize("kind", [kinds.CHANNEL, kinds.IN_MEMORY_CHANNEL], ids=lambda kind: kind.kind)
def test_a_channel_gives_every_subscription_every_event(kind: Kind, tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            channel = await make(machine, kind, "pages", {})
            url = channel["status"]["address"]["url"]
            assert url == f"{machine.url}/default/{kind.plural}/pages"
            subscriber.answers["/a"] = adding("a")
            ref = {"apiVersion": kind.api_version, "kind": kind.kind, "name": "pages"}
            uri = {"uri": f"{subscriber.url}/a"}
            made = await make(
                machine,
                kinds.SUBSCRIPTION,
                "a",
                {"channel": ref, "subscriber": uri, "reply": {"uri": f"{subscriber.url}/reply"}},
            )
            await make(machine, kinds.SUBSCRIPTION, "b", {"channel": ref, "subscriber": {"uri": f"{subscriber.url}/b"}})
            assert made["status"]["physicalSubscription"] == {
                "subscriberUri": f"{subscriber.url}/a",
                "replyUri": f"{subscriber.url}/reply",
            }
            assert set(conditions(made)) == {
                "AddedToChannel",
                "ChannelReady",
                "OIDCIdentityCreated",
                "Ready",
                "ReferencesResolved",
            }
            assert await post(machine, url, Event.of("t", "/s", {"text": "x"}, id="e1")) == 202
            (at_a,) = await subscriber.until(1, "/a")
            (at_b,) = await subscriber.until(1, "/b")
            (answer,) = await subscriber.until(1, "/reply")
            assert (at_a.event.id, at_b.event.id) == ("e1", "e1")
            assert "ce-knativearrivaltime" not in at_a.headers
            assert answer.event.json() == {"text": "xa"}
            await machine.settled()
            assert len(subscriber.received) == 3
            assert await post(machine, f"{machine.url}/default/{kind.plural}/none", Event.of("t", "/s")) == 404

    run(story())


def test_a_reply_to_an_address_that_is_down_is_tried_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with Subscriber().listening() as subscriber:
            subscriber.answers["/a"] = adding("a")
            subscriber.answers["/reply"] = lambda got: web.Response(status=503)
            async with Machine(tmp_path).up() as machine:
                channel = await make(machine, kinds.CHANNEL, "c", {})
                spec = {
                    "channel": {"apiVersion": kinds.CHANNEL.api_version, "kind": "Channel", "name": "c"},
                    "subscriber": {"uri": f"{subscriber.url}/a"},
                    "reply": {"uri": f"{subscriber.url}/reply"},
                    "delivery": FAST | {"retry": 1000},
                }
                await make(machine, kinds.SUBSCRIPTION, "s", spec)
                await post(machine, channel["status"]["address"]["url"], Event.of("t", "/s", {"text": "x"}))
                await subscriber.until(2, "/reply")
            # The step is not run again for it, over a restart neither.
            del subscriber.answers["/reply"]
            async with Machine(tmp_path).up() as machine:
                await machine.settled()
            assert len(subscriber.at("/a")) == 1
            assert len({one.event.id for one in subscriber.at("/reply")}) == 1

    run(story())


def test_a_sequence_runs_its_steps_in_turn(tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            for letter in "abc":
                subscriber.answers[f"/{letter}"] = adding(letter)
            steps = [{"uri": f"{subscriber.url}/{letter}"} for letter in "abc"]
            broker = {"ref": {"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "rec"}}
            flow = await make(
                machine, kinds.SEQUENCE, "seq", {"channelTemplate": IN_MEMORY, "steps": steps, "reply": broker}
            )
            assert conditions(flow) == dict.fromkeys(
                ("Addressable", "ChannelsReady", "Ready", "SubscriptionsReady"), "True"
            )
            names = [f"seq-kn-sequence-{n}" for n in range(3)]
            assert [one["channel"] for one in flow["status"]["channelStatuses"]] == [
                {**IN_MEMORY, "name": name, "namespace": "default"} for name in names
            ]
            assert [one["subscription"]["name"] for one in flow["status"]["subscriptionStatuses"]] == names
            assert all(one["ready"]["status"] == "True" for one in flow["status"]["subscriptionStatuses"])
            await machine.trigger("end", "t.c", f"{subscriber.url}/end")
            assert await post(machine, flow["status"]["address"]["url"], Event.of("t", "/s", {"text": ""})) == 202
            (got,) = await subscriber.until(1, "/end")
            assert got.event.json() == {"text": "abc"}
            await machine.settled()

            # A step less: what belonged to it goes; events take the shorter way.
            machine.store.update(kinds.SEQUENCE, {**flow, "spec": {**flow["spec"], "steps": [steps[0], steps[2]]}})
            await asyncio.sleep(0)
            await machine.eventing.idle()
            assert len(machine.store.list(kinds.SUBSCRIPTION, "default")[0]) == 2
            assert len(machine.store.list(kinds.IN_MEMORY_CHANNEL, "default")[0]) == 2
            await post(machine, flow["status"]["address"]["url"], Event.of("t", "/s", {"text": ""}))
            got = (await subscriber.until(2, "/end"))[1]
            assert got.event.json() == {"text": "ac"}

            machine.store.delete(kinds.SEQUENCE, "default", "seq")
            await asyncio.sleep(0)
            await machine.eventing.idle()
            assert machine.store.list(kinds.SUBSCRIPTION, "default")[0] == []
            assert await post(machine, flow["status"]["address"]["url"], Event.of("t", "/s", b"x")) == 404

    run(story())


def test_a_trigger_may_lead_into_a_sequence(tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            subscriber.answers["/a"] = adding("a")
            spec = {"steps": [{"uri": f"{subscriber.url}/a"}], "reply": {"uri": f"{subscriber.url}/end"}}
            await make(machine, kinds.SEQUENCE, "seq", spec)
            ref = {"apiVersion": "flows.knative.dev/v1", "kind": "Sequence", "name": "seq"}
            await machine.trigger("in", "t", "", subscriber={"ref": ref})
            await machine.post(Event.of("t", "/s", {"text": "x"}))
            (got,) = await subscriber.until(1, "/end")
            assert got.event.json() == {"text": "xa"}

    run(story())


def test_a_parallel_runs_the_branches_whose_filter_answers(tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:

            def only_even(got: Received) -> web.Response:
                return reply(got.event) if got.event.json()["n"] % 2 == 0 else web.Response(status=204)

            def number(name: str) -> Any:
                return lambda got: reply(Event.of("t.done", f"/{name}", {"n": got.event.json()["n"], "by": name}))

            subscriber.answers["/even"] = only_even
            subscriber.answers["/first"], subscriber.answers["/second"] = number("first"), number("second")

            def to(path: str) -> dict[str, str]:
                return {"uri": f"{subscriber.url}{path}"}

            branches = [
                {"filter": to("/even"), "subscriber": to("/first"), "reply": to("/evens")},
                {"subscriber": to("/second")},
            ]
            flow = await make(machine, kinds.PARALLEL, "par", {"branches": branches, "reply": to("/all")})
            status = flow["status"]
            assert conditions(flow) == dict.fromkeys(
                ("Addressable", "ChannelsReady", "Ready", "SubscriptionsReady"), "True"
            )
            assert status["ingressChannelStatus"]["channel"]["name"] == "par-kn-parallel"
            assert [
                (
                    one["filterSubscriptionStatus"]["subscription"]["name"],
                    one["filterChannelStatus"]["channel"]["name"],
                    one["subscriptionStatus"]["subscription"]["name"],
                )
                for one in status["branchStatuses"]
            ] == [(f"par-kn-parallel-filter-{n}", f"par-kn-parallel-{n}", f"par-kn-parallel-{n}") for n in range(2)]
            for n in range(4):
                assert await post(machine, status["address"]["url"], Event.of("t", "/s", {"n": n}, id=str(n))) == 202
            await subscriber.until(2, "/evens")
            await subscriber.until(4, "/all")
            await machine.settled()
            assert sorted(one.event.json()["n"] for one in subscriber.at("/evens")) == [0, 2]
            assert sorted(one.event.json()["n"] for one in subscriber.at("/all")) == [0, 1, 2, 3]

    run(story())


def test_a_failing_step_goes_to_its_own_dead_letter_sink(tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            subscriber.answers["/a"] = adding("a")
            subscriber.answers["/b"] = lambda got: web.Response(status=400, text="no")
            delivery = {"deadLetterSink": {"uri": f"{subscriber.url}/dlq"}}
            steps = [{"uri": f"{subscriber.url}/a"}, {"uri": f"{subscriber.url}/b", "delivery": delivery}]
            flow = await make(machine, kinds.SEQUENCE, "seq", {"steps": steps})
            await post(machine, flow["status"]["address"]["url"], Event.of("t", "/s", {"text": "x"}))
            (letter,) = await subscriber.until(1, "/dlq")
            assert (letter.event.type, letter.event.get("knativeerrorcode")) == ("t.a", "400")

    run(story())


@pytest.mark.parametrize(
    ("kind", "name", "spec", "ready", "reason"),
    [
        (
            kinds.SUBSCRIPTION,
            "lost",
            {"channel": {**IN_MEMORY, "name": "none"}, "subscriber": {"uri": "http://127.0.0.1:9/"}},
            "False",
            "ChannelDoesNotExist",
        ),
        (
            kinds.SUBSCRIPTION,
            "odd",
            {
                "channel": {"apiVersion": "v1", "kind": "Secret", "name": "x"},
                "subscriber": {"uri": "http://127.0.0.1:9/"},
            },
            "False",
            "InvalidSubscription",
        ),
        (
            kinds.SEQUENCE,
            "odd",
            {"steps": [{"uri": "http://127.0.0.1:9/"}], "channelTemplate": {"apiVersion": "v1", "kind": "Secret"}},
            "False",
            "InvalidChannelTemplate",
        ),
    ],
    ids=["no channel", "no such kind", "template"],
)
def test_what_cannot_work_says_why(
    kind: Kind, name: str, spec: dict[str, Any], ready: str, reason: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine:
            machine.store.create(kind, {"metadata": {"namespace": "default", "name": name}, "spec": spec})
            obj = await machine.status(kind, name)
            row = next(one for one in obj["status"]["conditions"] if one["type"] == "Ready")
            assert (row["status"], row["reason"]) == (ready, reason)

    run(story())


def test_plans_are_pure() -> None:
    flow = {
        "apiVersion": "flows.knative.dev/v1",
        "kind": "Sequence",
        "metadata": {"name": "s", "namespace": "n", "uid": "u"},
        "spec": {"steps": [{"uri": "http://a"}, {"ref": {"name": "b"}, "delivery": {"retry": 1}}]},
    }
    plan = plan_sequence(flow)
    first, second = (one["spec"] for one in plan.subscriptions)
    assert first["reply"] == {"ref": {**IN_MEMORY, "name": "s-kn-sequence-1", "namespace": "n"}}
    assert second == {
        "channel": {**IN_MEMORY, "name": "s-kn-sequence-1"},
        "subscriber": {"ref": {"name": "b"}},
        "delivery": {"retry": 1},
    }
    assert plan_sequence({**flow, "spec": {}}).channels == ()
    assert len(plan_parallel({**flow, "spec": {}}).channels) == 1
