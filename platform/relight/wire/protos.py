"""Message classes from the text of a ``.proto`` file, made at run time.

Generated code would be tied to the version of its generator, and would lie in protobuf's one global pool, where a
second copy of the same messages in the process, such as that of Triton's client, is an error. A pool of our own knows
nobody. Read is the part of the language (proto3) that published service definitions need: messages, nested ones too,
enumerations, ``repeated``, ``map`` and ``oneof``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessages

_TOKEN = re.compile(r"[A-Za-z_][\w.]*|\d+|[{}<>,=;]")
_SCALARS = ("double", "float", "int64", "uint64", "int32", "bool", "string", "bytes", "uint32")


class Protos:
    """The messages of one package, by their names (``ModelInferRequest``)."""

    def __init__(self, package: str, text: str) -> None:
        file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
        tokens = iter(_TOKEN.findall(text))
        for word in tokens:
            if word == "enum":
                _enum(next(tokens), tokens, file.enum_type.add())
            elif word == "message":
                _message(next(tokens), tokens, file.message_type.add())
            else:
                raise ValueError(f"expected a message or an enum, got {word!r}")
        _resolve(package, file)
        self.pool = DescriptorPool()
        self.pool.Add(file)
        made: Mapping[str, Any] = GetMessages([file], self.pool)
        self._classes = {name.removeprefix(f"{package}."): one for name, one in made.items()}

    def __getitem__(self, name: str) -> Any:
        return self._classes[name]


def _expect(tokens: Iterator[str], want: str) -> None:
    got = next(tokens)
    if got != want:
        raise ValueError(f"expected {want!r}, got {got!r}")


def _enum(name: str, tokens: Iterator[str], enum: EnumDescriptorProto) -> None:
    enum.name = name
    _expect(tokens, "{")
    while (value := next(tokens)) != "}":
        _expect(tokens, "=")
        enum.value.add(name=value, number=int(next(tokens)))
        _expect(tokens, ";")


def _message(name: str, tokens: Iterator[str], message: DescriptorProto) -> None:
    message.name = name
    _expect(tokens, "{")
    while (word := next(tokens)) != "}":
        if word == "message":
            _message(next(tokens), tokens, message.nested_type.add())
        elif word == "enum":
            _enum(next(tokens), tokens, message.enum_type.add())
        elif word == "oneof":
            index = len(message.oneof_decl)
            message.oneof_decl.add(name=next(tokens))
            _expect(tokens, "{")
            while (kind := next(tokens)) != "}":
                _field(kind, tokens, message).oneof_index = index
        elif word == "map":
            _map(tokens, message)
        else:
            _field(word, tokens, message)


def _field(kind: str, tokens: Iterator[str], message: DescriptorProto) -> FieldDescriptorProto:
    field = message.field.add(label=FieldDescriptorProto.LABEL_OPTIONAL)
    if kind == "repeated":
        field.label = FieldDescriptorProto.LABEL_REPEATED
        kind = next(tokens)
    _type(field, kind)
    field.name = next(tokens)
    _expect(tokens, "=")
    field.number = int(next(tokens))
    _expect(tokens, ";")
    return field


def _map(tokens: Iterator[str], message: DescriptorProto) -> None:
    _expect(tokens, "<")
    key = next(tokens)
    _expect(tokens, ",")
    value = next(tokens)
    _expect(tokens, ">")
    field = _field("string", tokens, message)
    entry = message.nested_type.add(name="".join(part.title() for part in field.name.split("_")) + "Entry")
    entry.options.map_entry = True
    for number, (name, kind) in enumerate((("key", key), ("value", value)), start=1):
        part = entry.field.add(name=name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
        _type(part, kind)
    field.label = FieldDescriptorProto.LABEL_REPEATED
    _type(field, f"{message.name}.{entry.name}")


def _type(field: FieldDescriptorProto, kind: str) -> None:
    field.ClearField("type")
    if kind in _SCALARS:
        field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    else:
        field.type_name = kind


def _resolve(package: str, file: FileDescriptorProto) -> None:
    """Names of messages and enumerations as descriptors want them: whole, from the package on."""
    known: dict[str, str] = {}

    def note(message: DescriptorProto, outer: str) -> None:
        name = f"{outer}.{message.name}"
        known[name] = "TYPE_MESSAGE"
        known.update({f"{name}.{enum.name}": "TYPE_ENUM" for enum in message.enum_type})
        for nested in message.nested_type:
            note(nested, name)

    def complete(message: DescriptorProto, outer: str) -> None:
        name = f"{outer}.{message.name}"
        for field in message.field:
            if field.type_name:
                # From the inside out, as the language looks names up.
                scopes = (name.rsplit(".", up)[0] for up in range(name.count(".")))
                found = next(whole for scope in scopes if (whole := f"{scope}.{field.type_name}") in known)
                field.type_name = found
                field.type = FieldDescriptorProto.Type.Value(known[found])
        for nested in message.nested_type:
            complete(nested, name)

    known.update({f".{package}.{enum.name}": "TYPE_ENUM" for enum in file.enum_type})
    for message in file.message_type:
        note(message, f".{package}")
    for message in file.message_type:
        complete(message, f".{package}")
