"""Bodies of requests: JSON or YAML to plain values, with limits that keep a hostile one cheap."""

from __future__ import annotations

import json
from typing import Any

import orjson
import yaml

from relight.local.kube import protobuf
from relight.local.kube.failures import Failure, bad_request
from relight.local.kube.kinds import Kind

MAX_BYTES = 3 * 1024 * 1024
"""Of one body; the API server's limit."""
MAX_DEPTH = 100
"""Nesting of one object. Manifests stay below 30; deeper ones would exhaust the interpreter's stack later on."""

JSON = "application/json"
YAML = ("application/yaml", "application/x-yaml", "text/yaml", "application/apply-patch+yaml")


class _Loader(yaml.SafeLoader):
    """Safe YAML without dates (Kubernetes has none) and without aliases (a small text can become a huge value)."""

    def __init__(self, stream: bytes) -> None:
        super().__init__(stream)
        self.repeated: list[str] = []

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key.value, str):
                continue
            if key.value in seen:
                self.repeated.append(f'line {key.start_mark.line + 1}: key "{key.value}" already set in map')
            seen.add(key.value)
        return node

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("aliases are not accepted")
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def decode(body: bytes, media_type: str, expected: str) -> Any:
    """The value of a body. Failure 400 when it is neither JSON nor YAML, 415 for other media types."""
    try:
        if media_type in YAML:
            value = _plain(yaml.load(body, _Loader))
        elif media_type == protobuf.MEDIA_TYPE:
            value = protobuf.decode(body)
        elif media_type in ("", JSON) or media_type.endswith("+json"):
            value = orjson.loads(body)
        else:
            raise Failure(
                415,
                "the body of the request was in an unknown format - accepted media types include: "
                "application/json, application/yaml",
            )
    except orjson.JSONDecodeError as error:
        shown = body[:100].decode("utf-8", "replace")
        raise bad_request(
            f"the object provided is unrecognized (must be of type {expected}): couldn't get version/kind; "
            f"json parse error: {error} ({shown})"
        ) from None
    except (yaml.YAMLError, RecursionError, UnicodeDecodeError) as error:
        raise bad_request(f"the object provided is unrecognized (must be of type {expected}): {error}") from None
    if _deeper(value, MAX_DEPTH):
        raise bad_request(f"the object provided is nested more than {MAX_DEPTH} deep")
    return value


def repeated_keys(body: bytes, media_type: str) -> tuple[str, ...]:
    """What the API server says of keys that stand twice in one object, in its words.

    The last one counts, as everywhere; under strict field validation it is an error. A body that cannot be read at all
    has none: ``decode`` says what is wrong with it.
    """
    if media_type == protobuf.MEDIA_TYPE:
        return ()
    found: list[str] = []
    try:
        if media_type in YAML:
            loader = _Loader(body)
            loader.get_single_node()
            return tuple(loader.repeated)
        value = json.loads(body, object_pairs_hook=lambda pairs: _Pairs(pairs, found))
    except (ValueError, yaml.YAMLError, RecursionError):
        return ()
    return tuple(f'duplicate field "{path}"' for path in _repeated(value, "")) if found else ()


class _Pairs(dict[str, Any]):
    """An object that knows which of its keys were given twice."""

    def __init__(self, pairs: list[tuple[str, Any]], found: list[str]) -> None:
        super().__init__(pairs)
        seen: set[str] = set()
        self.repeated: list[str] = []
        if len(self) < len(pairs):
            for key, _ in pairs:
                if key in seen:
                    self.repeated.append(key)
                seen.add(key)
            found += self.repeated


def _repeated(value: Any, path: str) -> list[str]:
    found: list[str] = []
    if isinstance(value, _Pairs):
        found += [f"{path}.{key}" if path else key for key in value.repeated]
        for key, inner in value.items():
            found += _repeated(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found += _repeated(item, f"{path}[{index}]")
    return found


def decode_object(body: bytes, media_type: str, kind: Kind) -> dict[str, Any]:
    """An object of a kind, with a metadata object."""
    value = decode(body, media_type, kind.kind)
    if not isinstance(value, dict):
        raise bad_request(
            f"the object provided is unrecognized (must be of type {kind.kind}): expected an object, "
            f"got {type(value).__name__}"
        )
    given = value.get("apiVersion")
    if given not in (None, kind.api_version):
        raise bad_request(
            f"the API version in the data ({given}) does not match the expected API version ({kind.api_version})"
        )
    # a custom kind takes the kind of its path whatever the body says; a native one is decoded by what the body says
    if not kind.custom and value.get("kind") not in (None, kind.kind):
        raise bad_request(f'{value["kind"]} in version "{kind.version}" cannot be handled as a {kind.kind}')
    return {**value, "metadata": {} if value.get("metadata") is None else value["metadata"]}


def _plain(value: Any) -> Any:
    """Keys as strings: YAML has others, JSON has not."""
    if isinstance(value, dict):
        return {_key(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise bad_request(f"a value of type {type(value).__name__} cannot be written as JSON")


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    return str(key)


def _deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        containers = [item for item in level if isinstance(item, dict | list)]
        level = [inner for outer in containers for inner in (outer.values() if isinstance(outer, dict) else outer)]
        if not level:
            return False
    return True
