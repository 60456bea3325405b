"""The three ways to patch that are functions of (object, patch): JSON patch, merge patch, strategic merge patch.

Server-side apply needs to know who owned what; it is in ``merging``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relight.base.errors import BadInput, Unprocessable
from relight.local.kube.cascades import copied
from relight.local.kube.fields import item_key, merge_keys
from relight.local.kube.kinds import Kind

MAX_OPERATIONS = 10_000
"""Operations in one JSON patch; the API server's own limit."""


def json_patch(obj: Any, operations: Any) -> Any:
    """RFC 6902. Unprocessable names the operation that cannot be done; then nothing was done."""
    if not isinstance(operations, list) or not all(isinstance(operation, dict) for operation in operations):
        raise BadInput("a JSON patch is a list of operations")
    if len(operations) > MAX_OPERATIONS:
        raise BadInput(f"a JSON patch may hold at most {MAX_OPERATIONS} operations, this one holds {len(operations)}")
    document = {"": copied(obj)}
    for index, operation in enumerate(operations):
        try:
            _operate(document, operation)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise Unprocessable(f"operation {index} of the patch cannot be done: {operation}", param="patch") from error
    return document[""]


def _operate(document: dict[str, Any], operation: Mapping[str, Any]) -> None:
    name, path = operation["op"], _pointer(operation["path"])
    if name == "add":
        _add(document, path, operation["value"])
    elif name == "remove":
        _take(document, path)
    elif name == "replace":
        _look(document, path)
        _set(document, path, operation["value"])
    elif name == "move":
        source = _pointer(operation["from"])
        if path[: len(source)] == source and path != source:
            raise ValueError("cannot move a value into itself")
        _add(document, path, _take(document, source))
    elif name == "copy":
        _add(document, path, copied({"": _look(document, _pointer(operation["from"]))})[""])
    elif name == "test":
        if _look(document, path) != operation["value"]:
            raise ValueError("the value differs")
    else:
        raise ValueError(f"unknown operation {name!r}")


def _pointer(text: str) -> list[str]:
    if text and not text.startswith("/"):
        raise ValueError(f"{text!r} does not begin with /")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")]


def _index(at: list[Any], step: str, limit: int) -> int:
    if not step.isdecimal() or (len(step) > 1 and step[0] == "0") or int(step) >= limit:
        raise IndexError(f"{step!r} is no index of a list of {len(at)}")
    return int(step)


def _step(at: Any, step: str) -> Any:
    return at[_index(at, step, len(at))] if isinstance(at, list) else at[step]


def _look(document: Any, path: list[str]) -> Any:
    for step in path:
        document = _step(document, step)
    return document


def _set(document: Any, path: list[str], value: Any) -> None:
    at = _look(document, path[:-1])
    if isinstance(at, list):
        at[_index(at, path[-1], len(at))] = value
    else:
        at[path[-1]] = value


def _add(document: Any, path: list[str], value: Any) -> None:
    at = _look(document, path[:-1])
    if isinstance(at, list):
        at.insert(len(at) if path[-1] == "-" else _index(at, path[-1], len(at) + 1), value)
    elif isinstance(at, dict):
        at[path[-1]] = value
    else:
        raise TypeError("only objects and lists have members")


def _take(document: Any, path: list[str]) -> Any:
    at = _look(document, path[:-1])
    return at.pop(_index(at, path[-1], len(at))) if isinstance(at, list) else at.pop(path[-1])


def merge_patch(obj: Any, patch: Any) -> Any:
    """RFC 7396: objects are merged, null removes, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(obj) if isinstance(obj, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def strategic_merge_patch(kind: Kind, obj: Any, patch: Any) -> Any:
    """A merge patch in which lists with a merge key are merged by item, with the ``$patch`` family of directives."""
    return _strategic("", obj, patch, merge_keys(kind))


def _strategic(name: str, obj: Any, patch: Any, keys: Mapping[str, tuple[str, ...]]) -> Any:
    if isinstance(patch, list) and isinstance(obj, list) and name in keys:
        return _strategic_items(obj, patch, keys[name], keys)
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    if patch.get("$patch") == "delete":
        return {}
    merged = dict(obj) if isinstance(obj, dict) else {}
    if isinstance(patch.get("$retainKeys"), list):
        merged = {key: value for key, value in merged.items() if key in patch["$retainKeys"]}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            field = key.partition("/")[2]
            merged[field] = [item for item in merged.get(field, []) if item not in value]
        elif key.startswith("$"):
            continue
        elif value is None:
            merged.pop(key, None)
        else:
            merged[key] = _strategic(key, merged.get(key), value, keys)
    return merged


def _strategic_items(
    obj: list[Any], patch: list[Any], by: tuple[str, ...], keys: Mapping[str, tuple[str, ...]]
) -> list[Any]:
    if any(isinstance(item, dict) and item.get("$patch") == "replace" and len(item) == 1 for item in patch):
        return [item for item in patch if not (isinstance(item, dict) and "$patch" in item)]
    merged = list(obj)
    for item in patch:
        places = [index for index, old in enumerate(merged) if item_key(old, by) == item_key(item, by)]
        if isinstance(item, dict) and item.get("$patch") == "delete":
            for index in reversed(places):
                del merged[index]
        elif places:
            merged[places[0]] = _strategic("", merged[places[0]], item, keys)
        else:
            merged.append(_strategic("", {}, item, keys))
    return merged
