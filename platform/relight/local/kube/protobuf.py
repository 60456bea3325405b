"""Kubernetes' protobuf bodies, for the three kinds that people create with a command.

``kubectl create namespace|configmap|secret`` sends them in this form and no other; all else of kubectl, and every
other client, sends JSON. The wire format is read here by hand: it is four rules, and the message definitions would be
a dependency of many megabytes.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from relight.local.kube.failures import Failure, bad_request

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"

# field number → (name, type), from the .proto files of Kubernetes' API; what is not named here is skipped
_METADATA = {
    1: ("name", "string"),
    2: ("generateName", "string"),
    3: ("namespace", "string"),
    11: ("labels", "strings"),
    12: ("annotations", "strings"),
}
_MESSAGES: dict[str, dict[int, tuple[str, Any]]] = {
    "Namespace": {1: ("metadata", _METADATA)},
    "ConfigMap": {
        1: ("metadata", _METADATA),
        2: ("data", "strings"),
        3: ("binaryData", "bytes"),
        4: ("immutable", "bool"),
    },
    "Secret": {
        1: ("metadata", _METADATA),
        2: ("data", "bytes"),
        3: ("type", "string"),
        4: ("stringData", "strings"),
        5: ("immutable", "bool"),
    },
}


def decode(body: bytes) -> dict[str, Any]:
    """The object of a body. Failure 415 for another kind than those three, 400 for what is malformed."""
    if not body.startswith(_MAGIC):
        raise bad_request("the body is no Kubernetes protobuf: it does not begin with k8s")
    try:
        envelope = dict(_fields(body[len(_MAGIC) :]))
        identity = {number: value.decode() for number, value in _fields(envelope[1]) if isinstance(value, bytes)}
        api_version, kind = identity.get(1, ""), identity.get(2, "")
        if api_version != "v1" or kind not in _MESSAGES:
            sentence = f"a {kind} is not accepted as {MEDIA_TYPE} in local mode"
            raise Failure(415, f"{sentence}; accepted media types include: application/json")
        return {"apiVersion": api_version, "kind": kind, **_message(envelope.get(2, b""), _MESSAGES[kind])}
    except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise bad_request("the body is a malformed protobuf message") from error


def _message(data: bytes, known: dict[int, tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, value in _fields(data):
        if number not in known:
            continue
        name, form = known[number]
        if isinstance(form, dict):
            found[name] = _message(value, form)
        elif form == "string":
            # an empty string is how protobuf says that there is none
            found |= {name: value.decode()} if value else {}
        elif form == "bool":
            found[name] = bool(value)
        else:
            entry = dict(_fields(value))
            item = entry.get(2, b"")
            decoded = item.decode() if form == "strings" else base64.b64encode(item).decode()
            found.setdefault(name, {})[entry[1].decode()] = decoded
    return found


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, value) of one message: integers and byte strings; ValueError or IndexError if it is cut short."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, form = tag >> 3, tag & 7
        if form == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if form == 2:
            length, at = _varint(data, at)
        elif form in (1, 5):
            length = 8 if form == 1 else 4
        else:
            raise ValueError(f"wire type {form}")
        if at + length > len(data):
            raise ValueError("cut short")
        yield number, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
    raise ValueError("a number of more than ten bytes")
