"""CloudEvents 1.0: HTTP messages in binary, structured and batch mode <-> frozen events.

Data stays bytes, byte for byte, from the wire to the wire: JSON inside a structured event is a slice of the body, never
parsed and written anew. What the specification forbids is refused with the attribute's name; nothing is repaired in
silence (an id that is missing is not made up, for duplicates could not be told apart any more).

Written here and not taken from the ``cloudevents`` library, because this is on the path of every cold function: the
library costs 15 ms to import, takes the mode from stray ``ce-`` headers, makes up ids and parses the data. The tests
have it read our bytes, and us its.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import msgspec
import orjson

from relight.base.errors import BadInput, Problem, Unsupported
from relight.base.ids import new_id
from relight.wire.http import Headers, media_type

Mode = Literal["binary", "structured", "batch", "none"]
Value = str | int | bool
Message = tuple[tuple[tuple[str, str], ...], bytes]

STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
JSON = "application/json"

_REQUIRED = ("id", "source", "type")
_OPTIONAL = ("subject", "time", "dataschema", "datacontenttype")
_SLOTS = ("id", "source", "type", "attributes", "data", "implied_json")
_FIELDS = frozenset(_SLOTS)
_NAME = re.compile(r"[a-z0-9]+")
_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:)(?:([0-5]\d)|60)(?:\.\d+)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
)
_ESCAPED = re.compile(rb"%([0-9A-Fa-f]{2})")
_UNSAFE = re.compile(r'[^\x21-\x7e]|["%]')
_QUOTED_PAIR = re.compile(r"\\(.)", re.DOTALL)
_INT32 = range(-(2**31), 2**31)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_elements = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Event:
    """One event. ``attributes`` holds all beside id, source and type: subject, time, datacontenttype, extensions.

    Checked when it is made: BadInput names every attribute that is wrong. Attributes that are None, and empty optional
    ones, are left out.
    """

    id: str
    source: str
    type: str
    attributes: Mapping[str, Value] = field(default_factory=dict)
    data: bytes | None = None
    implied_json: bool = False
    """The data is JSON though no datacontenttype says so (the JSON format implies it); said aloud in binary mode."""

    def __post_init__(self) -> None:
        problems = [
            Problem(name, f"a non-empty string was expected, got {value!r}"[:200])
            for name, value in (("id", self.id), ("source", self.source), ("type", self.type))
            if not isinstance(value, str) or not value
        ]
        kept: dict[str, Value] = {}
        for name, value in self.attributes.items():
            if value is None or (value == "" and name in _OPTIONAL):
                continue
            problem = _wrong(name, value)
            if problem:
                problems.append(Problem(name, problem))
            kept[name] = value
        if problems:
            raise BadInput.of(problems)
        object.__setattr__(self, "attributes", kept)

    @classmethod
    def of(
        cls, type: str, source: str, data: Any = None, *, id: str | None = None, **attributes: Value | None
    ) -> Event:
        """A new event from Python data, with a random id unless one is given.

        Bytes stay as they are. Text stays as it is unless its datacontenttype is JSON or absent; it, and anything else,
        becomes JSON then (datacontenttype ``application/json`` is set). NaN and infinities become null: JSON has none.
        """
        content_type = attributes.get("datacontenttype")
        if data is None or isinstance(data, bytes):
            body = data
        elif isinstance(data, str) and content_type is not None and not is_json(str(content_type)):
            body = data.encode()
        else:
            try:
                body = orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY)
            except TypeError as error:
                raise BadInput(f"data cannot be written as JSON: {error}", param="data") from error
            attributes["datacontenttype"] = content_type or JSON
        kept = {name: value for name, value in attributes.items() if value is not None}
        return cls(id or new_id(), source, type, kept, body)

    def get(self, name: str, default: Value | None = None) -> Value | None:
        """Any attribute by its name, id, source, type and specversion included."""
        if name in _REQUIRED:
            return str(getattr(self, name))
        return "1.0" if name == "specversion" else self.attributes.get(name, default)

    @property
    def content_type(self) -> str | None:
        """The data's media type, the implied one included; None where nothing says what the bytes are."""
        given = self.attributes.get("datacontenttype")
        return str(given) if given is not None else JSON if self.implied_json else None

    def json(self) -> Any:
        """The data as JSON; None where there is none. BadInput if it is not JSON."""
        if self.data is None:
            return None
        try:
            return msgspec.json.decode(self.data)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"data is not JSON: {error}", param="data") from error

    def digest(self) -> str:
        """Of type and data: with source and id it tells a duplicate from another event under the same names."""
        found = hashlib.blake2b(self.type.encode("utf-8", "surrogateescape") + b"\0", digest_size=8)
        found.update(b"" if self.data is None else self.data)
        return found.hexdigest()

    def replace(self, **changes: Any) -> Event:
        """A copy with other fields (id, source, type, data…) or attributes (``subject="s"``; None removes)."""
        if changes.keys().isdisjoint(_FIELDS):
            return self._with(changes)
        attributes = dict(changes.pop("attributes", self.attributes))
        fields = {
            name: changes.pop(name, getattr(self, name)) for name in ("id", "source", "type", "data", "implied_json")
        }
        attributes.update(changes)
        return Event(attributes=attributes, **fields)

    def _with(self, changes: Mapping[str, Any]) -> Event:
        """A copy with other attributes. Only these are checked: the rest was when this event was made."""
        kept, problems = dict(self.attributes), []
        for name, value in changes.items():
            if value is None or (value == "" and name in _OPTIONAL):
                kept.pop(name, None)
                continue
            problem = _wrong(name, value)
            if problem:
                problems.append(Problem(name, problem))
            kept[name] = value
        if problems:
            raise BadInput.of(problems)
        copy = object.__new__(Event)
        for field_name in _SLOTS:
            object.__setattr__(copy, field_name, kept if field_name == "attributes" else getattr(self, field_name))
        return copy


def is_json(content_type: str | None) -> bool:
    """Whether a media type declares JSON: ``*/json`` or ``*/*+json``, whatever its parameters."""
    return media_type(content_type).endswith(("/json", "+json"))


def mode(headers: Headers) -> Mode:
    """How a message carries its event. Content-Type decides first, so that stray ``ce-`` headers change nothing."""
    kind = media_type(headers.get("content-type"))
    if kind.startswith("application/cloudevents-batch"):
        return "batch"
    if kind.startswith("application/cloudevents"):
        return "structured"
    for name in ("ce-specversion", "ce-id", "ce-source", "ce-type"):
        if name in headers:
            return "binary"
    return "none"


def decode(headers: Headers, body: bytes) -> Event:
    """The one event of a message. BadInput names the attribute; Unsupported for a batch or an unknown format."""
    how = mode(headers)
    if how == "binary":
        return _decode_binary(headers, body)
    if how == "structured":
        _check_format(headers, STRUCTURED)
        return _decode_object(body)
    if how == "batch":
        raise Unsupported("one event was expected; a batch of events is not accepted here", param="content-type")
    raise BadInput("not a CloudEvent: neither ce- headers nor a Content-Type application/cloudevents+json")


def decode_batch(headers: Headers, body: bytes) -> list[Event]:
    """The events of a batch, maybe none. One bad event refuses the batch, named by its place (``[2].id``)."""
    if mode(headers) != "batch":
        raise BadInput(f"a batch was expected (Content-Type {BATCH})", param="content-type")
    _check_format(headers, BATCH)
    try:
        elements = _elements.decode(body)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"the body is not a JSON array of events: {error}") from error
    events = []
    for place, element in enumerate(elements):
        try:
            events.append(_decode_object(bytes(element)))
        except BadInput as error:
            problems = error.problems or (Problem(error.param or "", error.message),)
            raise BadInput.of([Problem(f"[{place}].{p.path}".rstrip("."), p.message) for p in problems]) from error
    return events


def encode_binary(event: Event) -> Message:
    """Headers and body of a binary-mode message: attributes percent-encoded in ``ce-`` headers, data as the body."""
    headers = [("ce-specversion", "1.0")]
    headers += [(f"ce-{name}", _escape(value)) for name, value in _attributes(event) if name != "datacontenttype"]
    content_type = event.content_type
    if content_type is not None:
        headers.append(("content-type", content_type))
    return tuple(headers), event.data or b""


def encode_structured(event: Event) -> Message:
    """Headers and body of a structured-mode message (JSON format)."""
    return (("content-type", STRUCTURED),), msgspec.json.encode(_members_of(event))


def encode_batch(events: Iterable[Event]) -> Message:
    """Headers and body of a batch (JSON format)."""
    return (("content-type", BATCH),), msgspec.json.encode([_members_of(event) for event in events])


def _attributes(event: Event) -> Iterable[tuple[str, Value]]:
    yield from (("id", event.id), ("source", event.source), ("type", event.type))
    yield from event.attributes.items()


def _wrong(name: str, value: object) -> str | None:
    """What is wrong with an attribute beside id, source and type; None if nothing is."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return "an attribute's name has lower-case letters and digits only"
    if name in ("data", "specversion", *_REQUIRED):
        return "this name is taken and cannot be an extension's"
    if isinstance(value, int) and not isinstance(value, bool):
        if name in _OPTIONAL:
            return f"a string was expected, got {value}"
        return None if value in _INT32 else f"an integer from -2147483648 to 2147483647 was expected, got {value}"
    if isinstance(value, bool):
        return f"a string was expected, got {text_of(value)}" if name in _OPTIONAL else None
    if not isinstance(value, str):
        return f"an attribute is a string, an integer or a boolean, not {type(value).__name__}"
    if name == "time" and not _is_time(value):
        return f"an RFC 3339 time such as 2018-04-05T17:31:00Z was expected, got {value!r}"[:200]
    if name == "datacontenttype" and ("/" not in value or not value.isprintable() or not value.isascii()):
        return f"a media type such as application/json was expected, got {value!r}"[:200]
    return None


def _is_time(value: str) -> bool:
    match = _RFC3339.fullmatch(value)
    if not match:
        return False
    try:
        datetime.fromisoformat(f"{match[1]}T{match[2]}{match[3] or '59'}")  # the second 60 is a leap second
    except ValueError:
        return False
    return True


def text_of(value: Value) -> str:
    """An attribute's canonical text (CloudEvents type system)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _escape(value: Value) -> str:
    text = text_of(value)
    if not _UNSAFE.search(text):
        return text
    # A lone surrogate has no UTF-8; it can only come from our own process and becomes '?'.
    return _UNSAFE.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "replace")), text)


def _unescape(name: str, value: str) -> str:
    """A header's value as text: quotes taken off, raw UTF-8 and percent-encoding both read (HTTP binding, 3.1.3.2)."""
    if len(value) >= 2 and value[0] == value[-1] == '"':
        value = _QUOTED_PAIR.sub(r"\1", value[1:-1])
    if value.isascii() and "%" not in value:
        return value
    try:
        raw = value.encode("latin-1")
    except UnicodeEncodeError:
        raw = value.encode("utf-8", "surrogateescape")  # a host that decoded the header itself
    try:
        return _ESCAPED.sub(lambda found: bytes((int(found[1], 16),)), raw).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{name}: the header's value is not UTF-8", param=name) from error


def _decode_binary(headers: Headers, body: bytes) -> Event:
    found: dict[str, Value] = {}
    content_type = headers.get("content-type")
    for header, value in headers:
        if not header.startswith("ce-"):
            continue
        name = header[3:]
        if name in found:
            raise BadInput(f"{name}: the header {header} is given twice", param=name)
        found[name] = _unescape(name, value)
    found.pop("datacontenttype", None)  # Content-Type is the only carrier of it in this mode
    if content_type:
        found["datacontenttype"] = content_type
    return _build(found, body or None)


def _decode_object(body: bytes) -> Event:
    try:
        members = _members.decode(body)
    except msgspec.ValidationError as error:
        raise BadInput(f"a JSON object was expected: {error}") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"the body is not JSON: {error}") from error
    raw, encoded = members.pop("data", None), members.pop("data_base64", None)
    found: dict[str, Value] = {}
    problems: list[Problem] = []
    for name, slice_ in members.items():
        try:
            value = msgspec.json.decode(slice_)
        except ValueError as error:
            raise BadInput(f"{name}: not JSON: {error}", param=name) from error
        if isinstance(value, float | list | dict):
            shown = bytes(slice_)[:60].decode("utf-8", "replace")
            problems.append(Problem(name, f"an attribute is a string, an integer or a boolean, not {shown}"))
        elif value is not None:
            found[name] = value
    if problems:
        raise BadInput.of(problems)
    content_type = found.get("datacontenttype")
    data = _data(raw, encoded, str(content_type) if content_type is not None else None)
    return _build(found, data, implied_json=content_type is None and encoded is None and data is not None)


def _data(raw: msgspec.Raw | None, encoded: msgspec.Raw | None, content_type: str | None) -> bytes | None:
    """The bytes of the members data and data_base64. A null is no data (JSON format, 2.2)."""
    has_text, has_bytes = raw is not None and bytes(raw) != b"null", encoded is not None and bytes(encoded) != b"null"
    if has_text and has_bytes:
        raise BadInput("data: both data and data_base64 are given; one was expected", param="data")
    if has_bytes:
        try:
            return base64.b64decode(msgspec.json.decode(encoded or b"", type=str), validate=True)
        except (msgspec.MsgspecError, binascii.Error) as error:
            raise BadInput("data_base64: a string of Base64 was expected", param="data_base64") from error
    if not has_text or raw is None:
        return None
    data = bytes(raw)
    try:
        data.decode()
        if content_type is not None and not is_json(content_type) and data[:1] == b'"':
            return msgspec.json.decode(data, type=str).encode()
    except ValueError as error:
        raise BadInput(f"data: not JSON: {error}", param="data") from error
    return data


def _build(found: dict[str, Value], data: bytes | None, implied_json: bool = False) -> Event:
    version = found.pop("specversion", None)
    problems = [Problem(name, "a required attribute is missing") for name in _REQUIRED if name not in found]
    if version is None:
        problems.append(Problem("specversion", "a required attribute is missing"))
    elif version != "1.0":
        problems.append(Problem("specversion", f"1.0 was expected, got {version!r}"[:200]))
    if problems:
        raise BadInput.of(problems)
    required = {name: found.pop(name) for name in _REQUIRED}
    return Event(attributes=found, data=data, implied_json=implied_json, **required)  # type: ignore[arg-type]


def _check_format(headers: Headers, expected: str) -> None:
    given = headers.get("content-type")
    if media_type(given) != expected:
        raise Unsupported(f"the event format {media_type(given)} is not spoken; use {expected}", param="content-type")
    charset = re.search(r"charset\s*=\s*\"?([^\s;\"]+)", given or "", re.IGNORECASE)
    if charset and charset[1].lower() not in ("utf-8", "utf8", "us-ascii"):
        raise Unsupported(f"JSON is UTF-8; the charset {charset[1]} is not spoken", param="content-type")


def _members_of(event: Event) -> dict[str, object]:
    members: dict[str, object] = {"specversion": "1.0", **dict(_attributes(event))}
    data, content_type = event.data, event.content_type
    if data is None:
        return members
    if content_type is not None and is_json(content_type) and _is_json_text(data):
        members["data"] = msgspec.Raw(data)
    elif media_type(content_type).startswith("text/"):
        try:
            members["data"] = data.decode()
        except UnicodeDecodeError:
            members["data_base64"] = base64.b64encode(data).decode()
    else:
        members["data_base64"] = base64.b64encode(data).decode()
    return members


def _is_json_text(data: bytes) -> bool:
    """Whether bytes may stand as the member ``data``; a bare null may not: it would read as no data."""
    try:
        data.decode()
        return bytes(msgspec.json.decode(data, type=msgspec.Raw)) != b"null"
    except (ValueError, RecursionError):
        return False
