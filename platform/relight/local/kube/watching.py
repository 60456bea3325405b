"""Watches over HTTP: one JSON document per line, until the client leaves, the time is up, or it fell behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from relight.base.errors import Overloaded
from relight.local.kube import representing
from relight.local.kube.failures import Failure
from relight.local.kube.kinds import Kind
from relight.local.kube.representing import Form
from relight.local.kube.selectors import FieldTest, LabelTest
from relight.local.kube.store import Expired, ObjectStore
from relight.local.kube.watches import Change

BOOKMARK_INTERVAL = 60.0
"""Seconds between two bookmarks to a client that asked for them (the API server's own interval)."""
DEFAULT_TIMEOUT = 1800.0
"""Seconds that a watch without ``timeoutSeconds`` lives; the API server takes 1800 to 3600."""
INITIAL_EVENTS_END = "k8s.io/initial-events-end"


@dataclass(frozen=True)
class WatchRequest:
    """What a client watches, and how it wants to be told."""

    kind: Kind
    namespace: str | None
    labels: LabelTest
    fields: FieldTest
    since: int | None
    form: Form = "object"
    whole: bool = False
    bookmarks: bool = False
    initial_end: bool = False
    """Whether a bookmark shall tell the end of what existed when the watch began."""
    timeout: float = DEFAULT_TIMEOUT


async def events(store: ObjectStore, request: WatchRequest) -> AsyncIterator[bytes]:
    """The lines of a watch. A version that is gone, or a watcher that fell behind, is told in an ERROR line (410)."""
    try:
        watch = store.watch(request.kind, request.namespace, request.since)
    except Expired as error:
        yield _line("ERROR", Failure(410, error.message, reason="Expired").body())
        return
    initial = watch.pending if request.since is None else 0
    shown = _Shown(request)
    deadline = asyncio.get_running_loop().time() + request.timeout
    begun = last = store.version
    try:
        while True:
            if initial == 0 and request.initial_end:
                initial = -1
                yield _bookmark(request.kind, begun, {INITIAL_EVENTS_END: "true"})
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return
            try:
                change = await asyncio.wait_for(anext(watch), min(left, BOOKMARK_INTERVAL))
            except TimeoutError:
                if request.bookmarks and store.version > last and not watch.pending:
                    last = store.version
                    yield _bookmark(request.kind, last, {})
                continue
            except StopAsyncIteration:
                return
            except Overloaded as error:
                yield _line("ERROR", Failure(410, error.message, reason="Expired").body())
                return
            initial -= initial > 0
            line = shown.line(change)
            if line is not None:
                yield line
    finally:
        watch.close()


class _Shown:
    """Turns changes into lines, for those that the client selected."""

    def __init__(self, request: WatchRequest) -> None:
        self._request = request
        self._headings = True

    def line(self, change: Change) -> bytes | None:
        request = self._request
        if not request.fields(change.object):
            return None
        now = request.labels(_labels(change.object))
        before = now if change.was is None else request.labels(change.was)
        kind = change.type
        if not now and not before:
            return None
        if kind == "MODIFIED" and now != before:
            kind = "ADDED" if now else "DELETED"
        elif (kind == "DELETED" and not before) or (kind == "ADDED" and not now):
            return None
        obj = representing.one(request.kind, change.object, request.form, whole=request.whole, headings=self._headings)
        self._headings = False
        return _line(kind, obj)


def _labels(obj: Mapping[str, Any]) -> Mapping[str, str]:
    found: Mapping[str, str] = obj["metadata"].get("labels") or {}
    return found


def _bookmark(kind: Kind, version: int, annotations: dict[str, str]) -> bytes:
    metadata: dict[str, Any] = {"resourceVersion": str(version), "creationTimestamp": None}
    if annotations:
        metadata["annotations"] = annotations
    return _line("BOOKMARK", {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata})


def _line(kind: str, obj: dict[str, Any]) -> bytes:
    return orjson.dumps({"type": kind, "object": obj}) + b"\n"
