"""What a real broker answered and delivered, against what this one does, in its strict mode ("as on Knative").

Waits are shortened (the recording backed off from 0.2 s on), names and types are others each time.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from aiohttp import web
from events.rig import Machine, Received, Subscriber, run
from golden.shuffling import Renaming, recorded, seeded

from relight.local.kube import kinds

RECORDING = recorded("eventing.json")
TYPES = ("t.ok", "t.reply", "t.json", "t.fail500", "t.fail400", "t.fail429", "t.none")
LOOP = "a reply of the same type as the trigger filters on"
DELIVERY = {"retry": 3, "backoffPolicy": "exponential", "backoffDelay": "PT0.01S"}

SAME_BUT = {
    "percent-encoding": (
        "attributes beyond ASCII, and the percent sign, are percent-encoded in headers, as the HTTP binding says; the "
        "recorded broker sends raw UTF-8 bytes, and takes a percent-encoded attribute as it stands",
        ("ok structured", "ok binary"),
    ),
    "leading space": (
        "data of a structured event is delivered from its first byte on, without the space before it",
        ("ok structured",),
    ),
    "why": (
        "what is dead-lettered for a reply that is no event says so; the recorded broker tells no reason there",
        ("json answer that is no event",),
    ),
}
"""What differs deliberately, why, and in which cases."""


def names(case: dict[str, Any]) -> Renaming:
    return Renaming((*TYPES, "rec"), seeded(case["name"]))


def answers(subscriber: Subscriber, renamed: Renaming) -> None:
    """The recorded subscribers."""

    def reply(received: Received) -> web.Response:
        own = {"ce-specversion": "1.0", "ce-id": "r1", "ce-source": "/me", "ce-type": renamed.names["t.reply"]}
        return web.Response(headers=own | {"content-type": "application/json"}, body=b'{"r":1}')

    subscriber.answers = {
        "/reply": reply,
        "/json": lambda received: web.json_response({"ok": True}),
        "/fail500": lambda received: web.Response(status=500, body="boom é line1\nline2".encode()),
        "/fail400": lambda received: web.Response(status=400, body=b"bad"),
        "/fail429": lambda received: web.Response(status=429, headers={"Retry-After": "0"}),
    }


def headers(given: dict[str, str] | Received) -> dict[str, str]:
    """Headers of a delivery by lower-case name, without what belongs to the connection, to time and to place."""
    rows = given.items() if isinstance(given, dict) else given.headers
    left_out = ("content-length", "accept-encoding", "accept", "user-agent", "host", "connection", "transfer-encoding")
    found = {name.lower(): value for name, value in rows if name.lower() not in left_out}
    if "ce-knativearrivaltime" in found:
        assert found["ce-knativearrivaltime"].endswith("Z")
        found["ce-knativearrivaltime"] = "NOW"
    if "ce-knativeerrordest" in found:
        found["ce-knativeerrordest"] = "/" + found["ce-knativeerrordest"].rpartition("/")[2]
    return found


def differs(case: dict[str, Any], what: str) -> bool:
    return case["name"] in SAME_BUT[what][1]


def compare(case: dict[str, Any], wanted: dict[str, Any], got: Received) -> None:
    expected, said = headers(wanted["headers"]), headers(got)
    body, content = wanted["body"], got.body.decode("utf-8", "replace")
    if differs(case, "percent-encoding"):
        subject = expected.pop("ce-subject").encode("latin-1").decode()
        assert unquote(said.pop("ce-subject")) in (subject, unquote(subject))
    if differs(case, "leading space"):
        assert not content.startswith(" ")
        body = body.lstrip()
    if differs(case, "why") and got.path == "/dlq":
        told = {name: said.pop(f"ce-knativeerror{name}") for name in ("code", "data", "dest")}
        assert (told["code"], told["dest"]) == ("502", "/json")
        assert "no valid event" in base64.b64decode(told["data"]).decode()
    # Each broker writes its own traceparent where the event has none.
    if "traceparent" not in expected:
        said.pop("traceparent", None)
    assert said == expected
    assert content == body


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case["name"][:50]) for case in RECORDING["cases"] if not case["name"].startswith(LOOP)],
)
def test_a_broker_answers_and_delivers_as_a_real_one(tmp_path: Path, case: dict[str, Any]) -> None:
    renamed = names(case)
    case = {**case, **renamed({key: case[key] for key in ("sent", "answer", "deliveries")})}

    async def story() -> None:
        machine, subscriber = Machine(tmp_path, strict=True), Subscriber()
        async with subscriber.listening(), machine.up():
            answers(subscriber, renamed)
            for kind in ("ok", "json", "fail500", "fail400", "fail429"):
                sink = {"deadLetterSink": {"uri": f"{subscriber.url}/dlq"}}
                await machine.trigger(
                    f"trigger-{kind}", renamed.names[f"t.{kind}"], f"{subscriber.url}/{kind}", delivery=DELIVERY | sink
                )
            sent = case["sent"]
            path = sent["path"].replace(renamed.names["rec"], "rec")
            body = None if sent["body"] is None else sent["body"].encode()
            async with machine.session.request(
                sent["method"], machine.url + path, data=body, headers=sent["headers"]
            ) as answer:
                assert answer.status == case["answer"]["status"], await answer.text()
                for name in ("Allow", "Webhook-Allowed-Origin", "Webhook-Allowed-Rate"):
                    assert answer.headers.get(name) == case["answer"]["headers"].get(name)
            await machine.settled()
            wanted = case["deliveries"]
            assert [one.path for one in subscriber.received] == [one["path"] for one in wanted]
            for expected, got in zip(wanted, subscriber.received, strict=True):
                compare(case, expected, got)

    run(story())


def test_a_reply_that_its_own_trigger_takes_ends_after_as_many_hops(tmp_path: Path) -> None:
    """Twice 255 deliveries on the real broker; then the reply is dead-lettered. The same here, in less time."""
    case = next(case for case in RECORDING["cases"] if case["name"].startswith(LOOP))
    renamed = names(case)
    sent = renamed(case["sent"])

    async def story() -> None:
        machine, subscriber = Machine(tmp_path, strict=True), Subscriber()
        async with subscriber.listening(), machine.up():
            answers(subscriber, renamed)
            sink = {"deadLetterSink": {"uri": f"{subscriber.url}/dlq"}}
            for path in ("reply", "got-reply"):
                await machine.trigger(
                    path, renamed.names["t.reply"], f"{subscriber.url}/{path}", delivery=DELIVERY | sink
                )
            async with machine.session.post(
                f"{machine.url}/default/rec", data=sent["body"].encode(), headers=sent["headers"]
            ) as answer:
                assert answer.status == 202
            await machine.settled()
            assert len(subscriber.at("/reply")) == len(subscriber.at("/got-reply")) == 255
            assert len(subscriber.at("/dlq")) == 1
            assert json.loads(subscriber.at("/dlq")[0].body) == {"r": 1}

    run(story())


def test_brokers_and_triggers_say_of_themselves_what_real_ones_say(tmp_path: Path) -> None:
    """Conditions with reasons and messages. A cluster's broker is made of channels, which have no place here."""

    async def story() -> None:
        machine, subscriber = Machine(tmp_path), Subscriber()
        async with subscriber.listening(), machine.up():
            sink = {"deadLetterSink": {"uri": f"{subscriber.url}/dlq"}}
            trigger = await machine.trigger("t", "t.ok", f"{subscriber.url}/ok", delivery=DELIVERY | sink)
            broker = await machine.status(kinds.BROKER, "rec")
            for kind, said in (("broker", broker), ("trigger", trigger)):
                recorded_ones = RECORDING["objects"][kind]
                wanted = conditions(recorded_ones[0])
                assert {name: one for name, one in conditions(said).items() if name in wanted} == wanted

    run(story())


def conditions(obj: dict[str, Any]) -> dict[str, dict[str, str]]:
    rows = obj["status"]["conditions"]
    return {row["type"]: {key: value for key, value in row.items() if key != "lastTransitionTime"} for row in rows}
