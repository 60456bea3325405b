"""The broker over real HTTP: the door's status codes, what subscribers get, replies, retries, dead letters."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from events.rig import FAST, Machine, Subscriber, reply, run
from tables import load

from relight.base.errors import PortTaken
from relight.local.eventing.controller import Eventing
from relight.local.kube import kinds
from relight.local.kube.store import ObjectStore
from relight.wire.cloudevents import Event

ROWS = load("filter_cases")["broker_http"]
BINARY = {
    "ce-specversion": "1.0",
    "ce-id": "e",
    "ce-type": "t.ok",
    "ce-source": "/src",
    "content-type": "application/json",
}


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in BINARY.items() if key != name}


INGRESS: dict[str, list[tuple[str, str, dict[str, str], bytes]]] = {
    "OPTIONS": [("OPTIONS", "/default/rec", {}, b"")],
    "GET": [("GET", "/default/rec", {}, b""), ("PUT", "/default/rec", BINARY, b"{}")],
    "POST /": [("POST", "/", BINARY, b"{}")],
    "POST, path not exactly /namespace/broker": [
        ("POST", "/default/rec/x", BINARY, b"{}"),
        ("POST", "/default", BINARY, b"{}"),
        ("POST", "/default/", BINARY, b"{}"),
    ],
    "POST not a CloudEvent, or an invalid one (e.g. source missing)": [
        ("POST", "/default/rec", {"content-type": "application/json"}, b"{}"),
        ("POST", "/default/rec", without("ce-id"), b"{}"),
        ("POST", "/default/rec", without("ce-source"), b"{}"),
        ("POST", "/default/rec", BINARY | {"ce-specversion": "0.9"}, b"{}"),
        ("POST", "/default/rec", {"content-type": "application/cloudevents+avro"}, b"AAAA"),
        ("POST", "/default/rec", {"content-type": "application/cloudevents+json"}, b"{"),
        ("POST", "/default/rec", {"content-type": "application/cloudevents-batch+json"}, b"[]"),
    ],
    "POST to unknown broker": [("POST", "/default/nope", BINARY, b"{}"), ("POST", "/other/rec", BINARY, b"{}")],
    "POST, TTL attribute <= 0": [
        ("POST", "/default/rec", BINARY | {"ce-knativebrokerttl": "0"}, b"{}"),
        ("POST", "/default/rec", BINARY | {"ce-knativebrokerttl": "-3"}, b"{}"),
        # As on a real cluster: the ingress counts down before it looks.
        ("POST", "/default/rec", BINARY | {"ce-knativebrokerttl": "1"}, b"{}"),
    ],
    "POST ok": [
        ("POST", "/default/rec", BINARY, b"{}"),
        ("POST", "/default/rec", BINARY, b"{oops"),
        ("POST", "/default/rec", BINARY | {"ce-knativebrokerttl": "2"}, b"{}"),
    ],
}


@pytest.mark.parametrize("row", ROWS["ingress"], ids=lambda row: row["request"])
def test_ingress(row: dict[str, Any], tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine:
            for method, path, headers, body in INGRESS[row["request"]]:
                async with machine.session.request(method, machine.url + path, headers=headers, data=body) as answer:
                    text = await answer.text()
                    assert (answer.status, answer.headers["Allow"]) == (row["want"], "POST, OPTIONS"), (path, text)
                    assert (text == "") == (row["want"] < 400)
                    if method == "OPTIONS":
                        assert answer.headers["Webhook-Allowed-Origin"] == "*"

    run(story())


@pytest.mark.parametrize(
    ("headers", "size", "want"),
    [
        ({}, 1000, 202),
        ({}, 1001, 413),
        ({"Transfer-Encoding": "chunked"}, 1001, 413),
        ({"Host": "evil.example"}, 10, 403),
        ({"Host": "broker.localhost:1"}, 10, 202),
        ({"Origin": "https://evil.example"}, 10, 403),
        ({"Origin": "http://localhost:3000"}, 10, 202),
    ],
)
def test_limits_of_the_door(headers: dict[str, str], size: int, want: int, tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path, event_limit=1000).up() as machine:
            data: Any = b"x" * size
            if "Transfer-Encoding" in headers:

                async def chunks() -> Any:
                    for start in range(0, size, 300):
                        yield b"x" * min(300, size - start)

                data = chunks()
            fields = BINARY | {name: value for name, value in headers.items() if name != "Transfer-Encoding"}
            async with machine.session.post(machine.url + "/default/rec", headers=fields, data=data) as answer:
                assert answer.status == want

    run(story())


@pytest.mark.parametrize("structured", [False, True])
def test_what_a_subscriber_gets(structured: bool, tmp_path: Path) -> None:
    """As recorded from a real broker: binary mode, tracing and extensions kept, arrival time, no TTL."""

    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            await machine.trigger("ok", "t.ok", f"{subscriber.url}/ok")
            event = Event.of(
                "t.ok", "/src", b'{"a": 1}', id="e-ok", subject="é €", myext="v", datacontenttype="application/json"
            )
            trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
            assert await machine.post(event, structured=structured, traceparent=trace) == 202
            (got,) = await subscriber.until(1, "/ok")
            sent = {name: value for name, value in got.headers if name not in ("host", "accept", "accept-encoding")}
            arrival = sent.pop("ce-knativearrivaltime")
            assert arrival.startswith("20")
            assert arrival.endswith("Z")
            assert sent == {
                "ce-id": "e-ok",
                "ce-myext": "v",
                "ce-source": "/src",
                "ce-specversion": "1.0",
                "ce-subject": "%C3%A9%20%E2%82%AC",
                "ce-type": "t.ok",
                "content-length": "8",
                "content-type": "application/json",
                "kn-namespace": "default",
                "prefer": "reply",
                "traceparent": trace,
            }
            assert got.body == b'{"a": 1}'
            await machine.settled()
            assert await machine.post(event.replace(type="t.none")) == 202
            assert await machine.eventing.log.pending() == []

    run(story())


def test_structured_delivery_where_the_trigger_asks_for_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            await machine.trigger("ok", "t.ok", f"{subscriber.url}/ok", delivery={"format": "json"})
            await machine.post(Event.of("t.ok", "/src", b"\x00\xff", datacontenttype="application/octet-stream"))
            (got,) = await subscriber.until(1, "/ok")
            assert got.headers.get("content-type") == "application/cloudevents+json"
            assert got.event.data == b"\x00\xff"

    run(story())


def test_replies_enter_the_broker(tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            subscriber.answers["/a"] = lambda got: reply(Event.of("t.b", "/me", {"n": 1}, id="r1"))
            await machine.trigger("a", "t.a", f"{subscriber.url}/a")
            await machine.trigger("b", "t.b", f"{subscriber.url}/b")
            await machine.post(Event.of("t.a", "/src", {"n": 0}), traceparent="00-trace")
            (got,) = await subscriber.until(1, "/b")
            assert (got.event.id, got.event.source, got.event.json()) == ("r1", "/me", {"n": 1})
            assert got.headers.get("traceparent") == "00-trace"
            await machine.settled()
            assert len(subscriber.received) == 2

    run(story())


def test_a_loop_ends_when_the_ttl_is_used_up(tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            subscriber.answers["/loop"] = lambda got: reply(Event.of("t.loop", "/me", b"x"))
            await machine.trigger(
                "loop",
                "t.loop",
                f"{subscriber.url}/loop",
                delivery={"deadLetterSink": {"uri": f"{subscriber.url}/dlq"}},
            )
            await machine.post(Event.of("t.loop", "/src", b"x", knativebrokerttl=5))
            (letter,) = await subscriber.until(1, "/dlq")
            await machine.settled()
            # 5 is 4 at the door: delivered with 4, 3, 2 and 1, and the last reply is refused, as on a real broker.
            assert len(subscriber.at("/loop")) == 4
            assert letter.event.get("knativebrokerttl") == "1"
            assert letter.event.get("knativeerrorcode") == "400"
            assert letter.event.get("knativeerrordest") == f"{machine.url}/default/rec"

    run(story())


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", ["empty", "json", "broken event"])
def test_answers_that_are_no_events(kind: str, strict: bool, tmp_path: Path) -> None:
    """A body that is no event is an acknowledgement with a warning here; a failure (502) on Knative, and if strict."""

    def answer(_: Any) -> web.Response:
        if kind == "empty":
            return web.Response(status=200)
        if kind == "json":
            return web.json_response({"ok": True})
        return web.Response(status=200, headers={"ce-specversion": "1.0", "ce-type": "t.x", "ce-source": "/me"})

    async def story() -> None:
        async with Machine(tmp_path, strict=strict).up() as machine, Subscriber().listening() as subscriber:
            subscriber.answers["/f"] = answer
            await machine.trigger("f", "t.f", f"{subscriber.url}/f")
            await machine.post(Event.of("t.f", "/src", b"x"))
            await subscriber.until(1, "/f")
            await machine.settled()
            fails = kind == "broken event" or (kind == "json" and strict)
            assert len(subscriber.at("/f")) == (1 + FAST["retry"] if fails else 1)
            dead = await machine.eventing.log.dead()
            assert [one.status for one in dead] == ([502] if fails else [])
            events = machine.store.list(kinds.EVENT, "default")[0]
            reasons = [event["reason"] for event in events]
            assert reasons == (["DeliveryFailed"] if fails else ["ReplyIsNoEvent"] if kind == "json" else [])

    run(story())


@pytest.mark.parametrize(
    ("status", "attempts"), [(500, 4), (503, 4), (429, 4), (404, 4), (400, 1), (403, 1), (301, 1)], ids=str
)
def test_failures_are_retried_and_dead_lettered(status: int, attempts: int, tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            text = "boom é\nline2"
            subscriber.answers["/f"] = lambda got: web.Response(status=status, text=text)
            sink = {"deadLetterSink": {"uri": f"{subscriber.url}/dlq"}}
            await machine.trigger("f", "t.f", f"{subscriber.url}/f", delivery=FAST | sink)
            await machine.post(Event.of("t.f", "/src", b'{"p":1}', id="e-f"))
            (letter,) = await subscriber.until(1, "/dlq")
            assert len(subscriber.at("/f")) == attempts
            event = letter.event
            assert (event.id, event.type, event.data) == ("e-f", "t.f", b'{"p":1}')
            assert event.get("knativeerrordest") == f"{subscriber.url}/f"
            assert event.get("knativeerrorcode") == str(status)
            assert base64.b64decode(str(event.get("knativeerrordata"))).decode() == text
            assert "prefer" not in letter.headers
            await machine.settled()
            assert await machine.eventing.log.dead() == []

    run(story())


def test_a_sink_that_is_down_gets_the_letter_later(tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            subscriber.answers["/f"] = lambda got: web.Response(status=400)
            # Down for longer than the Trigger's own 3 retries.
            subscriber.answers["/dlq"] = lambda got: web.Response(status=503 if len(subscriber.at("/dlq")) < 7 else 202)
            sink = {"deadLetterSink": {"uri": f"{subscriber.url}/dlq"}}
            await machine.trigger("f", "t.f", f"{subscriber.url}/f", delivery=FAST | sink)
            await machine.post(Event.of("t.f", "/src", b"x"))
            await subscriber.until(7, "/dlq")
            await machine.settled()
            assert len(subscriber.at("/f")) == 1
            assert await machine.eventing.log.dead() == []

    run(story())


def test_without_a_sink_a_dead_event_is_kept_with_its_reason(tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            subscriber.answers["/f"] = lambda got: web.Response(
                status=400, text="no\x00t \x1b[31mgood\n" + "x" * 10_000
            )
            trigger = await machine.trigger("f", "t.f", f"{subscriber.url}/f")
            await machine.post(Event.of("t.f", "/src", b"x", id="e-1"))
            await subscriber.until(1, "/f")
            await machine.settled()
            (dead,) = await machine.eventing.log.dead()
            assert (dead.id, dead.status, dead.trigger) == ("e-1", 400, trigger["metadata"]["uid"])
            assert "answered 400: no t [31mgood" in dead.reason
            assert dead.reason.isprintable()
            assert len(dead.reason) <= 500

    run(story())


def test_nobody_listens_at_first(tmp_path: Path) -> None:
    """No connection is retried like a failure; a subscriber without an address costs no attempt at all."""

    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            late = {"ref": {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "late"}}
            trigger = await machine.trigger("late", "t.late", "", subscriber=late, delivery={"retry": 0})
            conditions = {one["type"]: one for one in trigger["status"]["conditions"]}
            assert conditions["SubscriberResolved"]["status"] == "False"
            assert "not found" in conditions["SubscriberResolved"]["message"]
            assert conditions["Ready"]["status"] == "False"
            await machine.trigger("gone", "t.gone", "http://127.0.0.1:9/", delivery=FAST)
            assert await machine.post(Event.of("t.late", "/src", b"x")) == 202
            assert await machine.post(Event.of("t.gone", "/src", b"x")) == 202
            machine.store.create(kinds.SERVICE, {"metadata": {"namespace": "default", "name": "late"}, "spec": {}})
            machine.store.set_status(kinds.SERVICE, "default", "late", {"url": f"{subscriber.url}/default/late"})
            await subscriber.until(1, "/default/late")
            await machine.settled()
            (dead,) = await machine.eventing.log.dead()
            assert "could not be reached" in dead.reason

    run(story())


def test_at_most_so_many_deliveries_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            now, most, gate = 0, 0, asyncio.Event()

            async def slow(_: Any) -> web.Response:
                nonlocal now, most
                now += 1
                most = max(most, now)
                await gate.wait()
                now -= 1
                return web.Response(status=202)

            subscriber.answers["/f"] = slow
            await machine.trigger("f", "t.f", f"{subscriber.url}/f", annotations={"relight.dev/concurrency": "2"})
            for _ in range(6):
                await machine.post(Event.of("t.f", "/src", b"x"))
            await subscriber.until(2, "/f")
            gate.set()
            await subscriber.until(6, "/f")
            await machine.settled()
            assert most == 2

    run(story())


def test_a_timeout_of_the_trigger_is_a_failure(tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            never = asyncio.Event()

            async def hang(_: Any) -> web.Response:
                await never.wait()
                return web.Response()

            subscriber.answers["/f"] = hang
            await machine.trigger("f", "t.f", f"{subscriber.url}/f", delivery={"retry": 0, "timeout": "PT0.1S"})
            await machine.post(Event.of("t.f", "/src", b"x"))
            await subscriber.until(1, "/f")
            await machine.settled()
            never.set()
            (dead,) = await machine.eventing.log.dead()
            assert "no answer within 0.1 s" in dead.reason

    run(story())


def test_statuses(tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine:
            broker = await machine.status(kinds.BROKER, "rec")
            assert broker["status"]["address"] == {"name": "http", "url": f"{machine.url}/default/rec"}
            assert {one["type"]: one["status"] for one in broker["status"]["conditions"]} == dict.fromkeys(
                (
                    "Addressable",
                    "DeadLetterSinkResolved",
                    "EventPoliciesReady",
                    "FilterReady",
                    "IngressReady",
                    "Ready",
                    "TriggerChannelReady",
                ),
                "True",
            )
            trigger = await machine.trigger("t", "t", "http://127.0.0.1:9/x")
            assert trigger["status"]["subscriberUri"] == "http://127.0.0.1:9/x"
            assert {one["type"]: one["status"] for one in trigger["status"]["conditions"]} == dict.fromkeys(
                (
                    "BrokerReady",
                    "DeadLetterSinkResolved",
                    "DependencyReady",
                    "OIDCIdentityCreated",
                    "Ready",
                    "SubscriberResolved",
                    "SubscriptionReady",
                ),
                "True",
            )
            lost = await machine.trigger("lost", "t", "http://127.0.0.1:9/x", broker="nope")
            ready = next(one for one in lost["status"]["conditions"] if one["type"] == "Ready")
            assert (ready["status"], ready["reason"]) == ("False", "BrokerDoesNotExist")
            wrong = await machine.trigger("wrong", "t", "http://127.0.0.1:9/x", filters=[{"any": []}])
            ready = next(one for one in wrong["status"]["conditions"] if one["type"] == "Ready")
            assert (ready["status"], ready["reason"]) == ("False", "InvalidTrigger")
            assert "spec.filters[0].any" in ready["message"]

    run(story())


def test_objects_come_and_go(tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            await machine.trigger("a", "t", f"{subscriber.url}/a")
            machine.store.delete(kinds.TRIGGER, "default", "a")
            await machine.trigger("b", "t", f"{subscriber.url}/b")
            await machine.post(Event.of("t", "/src", b"x"))
            await subscriber.until(1, "/b")
            await machine.settled()
            assert subscriber.at("/a") == []
            machine.store.delete(kinds.BROKER, "default", "rec")
            await asyncio.sleep(0)  # the broker sees it
            await machine.eventing.idle()
            assert await machine.post(Event.of("t", "/src", b"x")) == 404

    run(story())


def test_names_of_the_cluster_lead_to_the_function(tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            machine.store.create(kinds.SERVICE, {"metadata": {"namespace": "default", "name": "f"}, "spec": {}})
            machine.store.set_status(kinds.SERVICE, "default", "f", {"url": f"{subscriber.url}/default/f"})
            await machine.trigger("f", "t", "http://f.default.svc.cluster.local/path?x=1")
            await machine.post(Event.of("t", "/src", b"x"))
            await subscriber.until(1, "/default/f/path")

    run(story())


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    async def story() -> None:
        async with Subscriber().listening() as subscriber:
            store = ObjectStore.open(tmp_path / "objects.db")
            eventing = Eventing(store, tmp_path / "events.db")
            port = int(subscriber.url.rpartition(":")[2])
            with pytest.raises(PortTaken, match=f"port {port} for the broker is taken"):
                await eventing.start("127.0.0.1", port)
            store.close()

    run(story())


REPLIES: dict[str, tuple[web.Response | None, str]] = {
    "2xx, empty body": (web.Response(status=204), "done"),
    "2xx, valid CloudEvent": (None, "republished"),
    "2xx, non-empty body that is not a CloudEvent": (web.json_response({"ok": True}), "failed"),
    "non-2xx": (web.Response(status=500), "failed"),
}


@pytest.mark.parametrize("row", ROWS["filter_reply"], ids=lambda row: row["subscriber"])
def test_answers_as_knative_takes_them(row: dict[str, Any], tmp_path: Path) -> None:
    answer, result = REPLIES[row["subscriber"]]

    async def story() -> None:
        async with Machine(tmp_path, strict=True).up() as machine, Subscriber().listening() as subscriber:

            def respond(_: Any) -> web.Response:
                if answer is None:
                    return reply(Event.of("t.b", "/me", b"x"))
                return web.Response(status=answer.status, body=answer.body, content_type=answer.content_type)

            subscriber.answers["/a"] = respond
            await machine.trigger("a", "t.a", f"{subscriber.url}/a")
            await machine.trigger("b", "t.b", f"{subscriber.url}/b")
            await machine.post(Event.of("t.a", "/src", b"x"))
            await subscriber.until(1, "/a")
            await machine.settled()
            assert len(subscriber.at("/b")) == (result == "republished")
            assert len(await machine.eventing.log.dead()) == (result == "failed")
            assert len(subscriber.at("/a")) == (1 + FAST["retry"] if result == "failed" else 1)

    run(story())
