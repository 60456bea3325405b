"""CloudEvents over HTTP: every row of the table, and the official library on the other end."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cloudevents.core.bindings import http as library
from cloudevents.core.v1.event import CloudEvent
from tables import load

from relight.base.errors import BadInput, Unsupported
from relight.wire import cloudevents
from relight.wire.cloudevents import Event
from relight.wire.http import Headers

CASES = load("ce_cases")


def body_of(row: dict[str, Any]) -> bytes:
    return base64.b64decode(row["body_base64"]) if "body_base64" in row else row["body"].encode()


def check(event: Event, want: dict[str, Any]) -> None:
    attributes = {"specversion": "1.0", "id": event.id, "source": event.source, "type": event.type} | dict(
        event.attributes
    )
    assert attributes == want["attributes"]
    if "data_json" in want:
        assert event.json() == want["data_json"]
    elif "data_text" in want:
        assert event.data == want["data_text"].encode()
    elif "data_base64" in want:
        assert event.data == base64.b64decode(want["data_base64"])
    else:
        assert event.data is None


@pytest.mark.parametrize("row", CASES["decode"], ids=lambda row: row["id"])
def test_decode(row: dict[str, Any]) -> None:
    headers, body, want = Headers(row["headers"]), body_of(row), row["want"]
    if "error" in want:
        # The row "batch refused" is about an endpoint that takes one event; the other batch rows take batches.
        batch = cloudevents.mode(headers) == "batch" and want["status"] != 415
        decode = cloudevents.decode_batch if batch else cloudevents.decode
        with pytest.raises(BadInput) as caught:
            decode(headers, body)
        assert caught.value.status == want["status"]
        return
    assert cloudevents.mode(headers) == want["mode"]
    if want["mode"] == "batch":
        events = cloudevents.decode_batch(headers, body)
        assert len(events) == len(want["events"])
        for event, wanted in zip(events, want["events"], strict=True):
            check(event, wanted)
    elif want["mode"] == "none":
        with pytest.raises(BadInput, match="not a CloudEvent"):
            cloudevents.decode(headers, body)
    else:
        check(cloudevents.decode(headers, body), want)


def event_of(row: dict[str, Any]) -> Event:
    given = dict(row["event"])
    given.pop("specversion")
    data = given.pop("data", None)
    if "data_bytes_base64" in given:
        data = base64.b64decode(given.pop("data_bytes_base64"))
    if "data_python" in given:
        assert given.pop("data_python") == "{'s': nan}"
        data = {"s": float("nan")}
    return Event.of(data=data, **given)


@pytest.mark.parametrize("row", CASES["encode"], ids=lambda row: row["id"])
def test_encode(row: dict[str, Any]) -> None:
    event, want = event_of(row), row["want"]
    encode = cloudevents.encode_binary if row["mode"] == "binary" else cloudevents.encode_structured
    items, body = encode(event)
    headers = Headers(items)
    for name, value in want.get("headers", {}).items():
        assert headers.get(name) == value
    if "body_json" in want:
        assert json.loads(body) == want["body_json"]
    if "body_exact_json" in want:
        assert body == want["body_exact_json"].encode()
    if "body" in want:
        assert body == want["body"].encode()
    if "body_base64" in want:
        assert body == base64.b64decode(want["body_base64"])
    if "no_header" in want:
        assert want["no_header"] not in headers
    if row["id"] == "NaN refused or nulled":
        assert json.loads(body)["data"] == {"s": None}
        assert b"NaN" not in body
    if row["id"] == "unset attributes omitted":
        assert "subject" not in json.loads(body)
    back = cloudevents.decode(headers, body)
    if row["mode"] == "binary":  # headers carry text: an integer comes back as "-5"
        event = event.replace(attributes={name: str(value).lower() for name, value in event.attributes.items()})
        back = back.replace(attributes={name: str(value).lower() for name, value in back.attributes.items()})
    assert back == event


@pytest.mark.parametrize(
    ("raw", "want"),
    [
        ("Euro €".encode(), "Euro €"),
        (b"Euro%20%E2%82%AC", "Euro €"),
        (b"%e2%82%ac", "€"),
        ("€%20".encode() + b"%E2%82%AC", "€ €"),
        (b'"quoted \\"x\\""', 'quoted "x"'),
        (b"%ZZ", "%ZZ"),
        (b"%C0%A0", None),
        (b"\xe9", None),
    ],
    ids=["raw utf-8", "escaped", "lower-case escapes", "both", "quoted string", "not hex", "overlong", "latin-1"],
)
def test_header_values(raw: bytes, want: str | None) -> None:
    items = [(b"ce-specversion", b"1.0"), (b"ce-id", b"1"), (b"ce-type", b"t"), (b"ce-source", b"/s")]
    headers = Headers.from_raw([*items, (b"ce-subject", raw)])
    if want is None:
        with pytest.raises(BadInput, match="subject"):
            cloudevents.decode(headers, b"")
    else:
        assert cloudevents.decode(headers, b"").get("subject") == want


def structured(**members: Any) -> bytes:
    return json.dumps({"specversion": "1.0", "id": "1", "source": "/s", "type": "t"} | members).encode()


STRUCTURED = Headers({"content-type": "application/cloudevents+json"})


@pytest.mark.parametrize(
    ("members", "name"),
    [
        ({"data": 1, "data_base64": "AAE="}, "data"),
        ({"data_base64": "!"}, "data_base64"),
        ({"data_base64": 7}, "data_base64"),
        ({"hops": 2**31}, "hops"),
        ({"time": "2018-02-30T00:00:00Z"}, "time"),
        ({"time": 7}, "time"),
        ({"subject": True}, "subject"),
        ({"datacontenttype": "json\r\nx: y"}, "datacontenttype"),
        ({"specversion": 1.0}, "specversion"),
        ({"tags": [1]}, "tags"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_refusals_name_the_attribute(members: dict[str, Any], name: str) -> None:
    with pytest.raises(BadInput) as caught:
        cloudevents.decode(STRUCTURED, structured(**members))
    assert name in str(caught.value)


def test_all_mistakes_of_an_event_are_reported_at_once() -> None:
    with pytest.raises(BadInput) as caught:
        Event("", "/s", "", {"bad-name": "x", "time": "noon"})
    assert [problem.path for problem in caught.value.problems] == ["id", "type", "bad-name", "time"]


@pytest.mark.parametrize(
    ("members", "data"),
    [
        ({"data": None}, None),
        ({"data_base64": None, "data": "x", "datacontenttype": "text/plain"}, b"x"),
        ({"data": {"a": 1}, "datacontenttype": "text/plain"}, b'{"a": 1}'),
        ({"data": 1, "datacontenttype": "application/geo+json"}, b"1"),
    ],
    ids=["null is no data", "null beside data", "object under a text type", "a +json type"],
)
def test_data_members(members: dict[str, Any], data: bytes | None) -> None:
    assert cloudevents.decode(STRUCTURED, structured(**members)).data == data


def test_data_is_kept_byte_for_byte() -> None:
    body = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{ "x":1.10,\n"x" :"\\u20ac"}}'
    event = cloudevents.decode(STRUCTURED, body)
    assert event.data == b'{ "x":1.10,\n"x" :"\\u20ac"}'
    _, again = cloudevents.encode_structured(event)
    assert b'"data":{ "x":1.10,\n"x" :"\\u20ac"}' in again
    headers, sent = cloudevents.encode_binary(event)
    assert sent == event.data
    assert Headers(headers).get("content-type") == "application/json"


@pytest.mark.parametrize(
    ("content_type", "data"),
    [
        ("application/json", b"{bad"),
        ("application/json", b"null"),
        ("application/json", b'"\xff"'),
        ("text/plain", b"\xff"),
        ("text/plain", "größe".encode()),
        ("image/png", b"\x89PNG"),
        (None, b"{}"),
    ],
)
def test_any_bytes_survive_structured_mode(content_type: str | None, data: bytes) -> None:
    event = Event.of("t", "/s", data, id="1", datacontenttype=content_type)
    items, body = cloudevents.encode_structured(event)
    assert cloudevents.decode(Headers(items), body) == event


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/cloudevents+json; charset=utf-16"},
        {"content-type": "application/cloudevents"},
        {"content-type": "application/cloudevents-batch+avro"},
    ],
    ids=lambda headers: headers["content-type"],
)
def test_formats_that_are_not_spoken(headers: dict[str, str]) -> None:
    with pytest.raises(Unsupported, match=r"spoken|accepted"):
        cloudevents.decode(Headers(headers), b"{}")


def test_a_doubled_header_is_refused() -> None:
    items = [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-id", "2"), ("ce-type", "t"), ("ce-source", "/s")]
    with pytest.raises(BadInput, match="ce-id is given twice"):
        cloudevents.decode(Headers(items), b"")


def test_a_bad_event_of_a_batch_is_named_by_its_place() -> None:
    body = b"[" + structured() + b"," + structured(id=None) + b"]"
    with pytest.raises(BadInput, match=r"\[1\]\.id: a required attribute is missing"):
        cloudevents.decode_batch(Headers({"content-type": "application/cloudevents-batch+json"}), body)


def test_a_batch_goes_there_and_back() -> None:
    events = [Event.of("t", "/s", {"n": n}) for n in range(3)]
    items, body = cloudevents.encode_batch(events)
    assert cloudevents.decode_batch(Headers(items), body) == events


def test_deep_nesting_is_refused_and_not_a_crash() -> None:
    body = structured()[:-1] + b',"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(BadInput):
        cloudevents.decode(STRUCTURED, body)


def test_replace_sets_and_removes() -> None:
    event = Event.of("t", "/s", b"x", id="1", subject="s", hops=3)
    changed = event.replace(id="2", subject=None, hops=4, urgent=True)
    assert (changed.id, changed.get("subject"), changed.get("hops"), changed.get("urgent")) == ("2", None, 4, True)
    assert event.get("hops") == 3


SUBJECT = 'Euro € 😀 "q" %'


@pytest.mark.parametrize("kind", ["binary", "structured"])
def test_the_library_reads_our_bytes(kind: str) -> None:
    event = Event.of("t.x", "/s", {"a": [1, "ü"]}, id="1", subject=SUBJECT, time="2018-04-05T17:31:00Z", myext="v")
    items, body = (cloudevents.encode_binary if kind == "binary" else cloudevents.encode_structured)(event)
    read = library.from_http_event(library.HTTPMessage(dict(items), body))
    assert (read.get_id(), read.get_type(), read.get_source(), read.get_subject()) == ("1", "t.x", "/s", SUBJECT)
    assert read.get_data() == {"a": [1, "ü"]}
    assert read.get_extension("myext") == "v"
    assert read.get_time().isoformat() == "2018-04-05T17:31:00+00:00"


@pytest.mark.parametrize("kind", ["binary", "structured"])
def test_we_read_the_librarys_bytes(kind: str) -> None:
    given = {"id": "1", "type": "t.x", "source": "/s", "subject": SUBJECT, "datacontenttype": "application/json"}
    event = CloudEvent(attributes=given, data={"a": [1, "ü"]})
    to = library.to_binary_event if kind == "binary" else library.to_structured_event
    message = to(event)
    read = cloudevents.decode(Headers(message.headers), message.body)
    assert (read.id, read.type, read.source, read.get("subject")) == ("1", "t.x", "/s", SUBJECT)
    assert read.json() == {"a": [1, "ü"]}
