"""From an HTTP request on a resource to a verb, and from its outcome to an answer."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import orjson

from relight.local.kube import kinds, paging, representing, selectors, watching
from relight.local.kube.cascades import Object
from relight.local.kube.decoding import decode, decode_object, repeated_keys
from relight.local.kube.failures import Failure, bad_request, not_found
from relight.local.kube.kinds import Kind
from relight.local.kube.paths import Target
from relight.local.kube.resources import APPLY_PATCH, JSON_PATCH, Options, Outcome, Resources
from relight.local.kube.store import ObjectStore
from relight.local.kube.watching import WatchRequest
from relight.wire.http import media_type

_TRUE = ("true", "1", "")
_JSON = (("Content-Type", "application/json"),)


@dataclass(frozen=True)
class LogOptions:
    """How a pod's log is read."""

    follow: bool = False
    """Go on until it ends."""
    tail: int | None = None
    """Lines from the end; None: all."""
    timestamps: bool = False
    """Each line begins with the time at which it was written."""
    since: float | None = None
    """Only what was written after this; seconds since the epoch."""
    limit_bytes: int | None = None
    """Stop after so many bytes."""
    container: str = ""
    previous: bool = False
    """Of the container that ran before in the same pod."""


class PodLogs(Protocol):
    """Where logs come from. NotFound if there is none, when called; the iterator is closed when the client leaves."""

    def __call__(self, namespace: str, pod: str, options: LogOptions) -> AsyncIterator[bytes]: ...


@dataclass(frozen=True)
class Call:
    """One request on a resource."""

    method: str
    target: Target
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    def flag(self, name: str) -> bool:
        return name in self.query and self.query[name].lower() in _TRUE

    def number(self, name: str) -> int | None:
        text = self.query.get(name, "")
        if text == "":
            return None
        if not text.isdecimal() or len(text) > 18:
            raise bad_request(f'invalid {name}: "{text}" is not a number')
        return int(text)


@dataclass(frozen=True)
class Answer:
    """One answer: whole, or a stream of chunks."""

    status: int
    body: bytes | AsyncIterator[bytes]
    headers: tuple[tuple[str, str], ...] = _JSON


def as_json(status: int, value: Any, warnings: tuple[str, ...] = ()) -> Answer:
    """A JSON answer; each warning is a header that clients print."""
    quoted = (warning.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") for warning in warnings)
    headers = tuple(("Warning", f'299 - "{text}"') for text in quoted)
    return Answer(status, orjson.dumps(value), (*_JSON, *headers))


class Handler:
    """The verbs of HTTP on resources."""

    def __init__(self, store: ObjectStore, resources: Resources, pod_logs: PodLogs) -> None:
        self._store = store
        self._resources = resources
        self._pod_logs = pod_logs

    def handle(self, call: Call) -> Answer:
        """The answer to a call. Failure where it is refused."""
        target = call.target
        if target.subresource is not None:
            return self._subresource(call)
        if target.name is None:
            verb = {"GET": self._list, "POST": self._create, "DELETE": self._delete_all}.get(call.method)
        else:
            verb = {"GET": self._get, "PUT": self._replace, "PATCH": self._patch, "DELETE": self._delete}.get(
                call.method
            )
        writes_everywhere = target.kind.namespaced and target.namespace is None and call.method != "GET"
        if verb is None or writes_everywhere:
            raise Failure(405, "the server does not allow this method on the requested resource")
        return verb(call)

    # Reading

    def _get(self, call: Call) -> Answer:
        target = call.target
        if call.flag("watch"):
            return self._watch(call)
        form = representing.negotiate(call.headers.get("Accept", ""))
        found = self._resources.read(target.kind, target.namespace, target.name or "")
        return as_json(200, representing.one(target.kind, found, form, whole=_whole(call)))

    def _list(self, call: Call) -> Answer:
        target = call.target
        if call.flag("watch"):
            return self._watch(call)
        form = representing.negotiate(call.headers.get("Accept", ""))
        start = paging.position(call.query.get("continue", ""), self._store.oldest, self._store.version)
        found, version = self._store.list(target.kind, target.namespace, _selected(call))
        page = paging.page(target.kind, found, version, call.number("limit"), start)
        # How much is left is told where all is listed; a selection would have to be counted, and a cluster does not.
        selected = any(call.query.get(name) for name in ("labelSelector", "fieldSelector"))
        return as_json(
            200,
            representing.many(
                target.kind,
                page.objects,
                page.version,
                form,
                whole=_whole(call),
                following=page.following,
                remaining=None if selected else page.remaining,
            ),
        )

    def _watch(self, call: Call) -> Answer:
        target = call.target
        fields = call.query.get("fieldSelector", "")
        if target.name is not None:
            fields = ",".join(filter(None, (fields, f"metadata.name={target.name}")))
        initial = call.flag("sendInitialEvents")
        version = call.number("resourceVersion")
        timeout = call.number("timeoutSeconds")
        request = WatchRequest(
            target.kind,
            target.namespace,
            selectors.label_test(call.query.get("labelSelector", "")),
            selectors.field_test(target.kind, fields),
            None if initial or not version else version,
            representing.negotiate(call.headers.get("Accept", "")),
            _whole(call),
            call.flag("allowWatchBookmarks"),
            initial and call.flag("allowWatchBookmarks"),
            watching.DEFAULT_TIMEOUT if not timeout else float(timeout),
        )
        return Answer(200, watching.events(self._store, request))

    # Writing

    def _create(self, call: Call) -> Answer:
        kind, namespace = call.target.kind, call.target.namespace
        obj = decode_object(call.body, _media_type(call), kind)
        return _written(kind, self._resources.create(kind, namespace, obj, _options(call)), call)

    def _replace(self, call: Call) -> Answer:
        kind, namespace, name = _named(call)
        obj = decode_object(call.body, _media_type(call), kind)
        return _written(kind, self._resources.replace(kind, namespace, name, obj, _options(call)), call)

    def _patch(self, call: Call) -> Answer:
        kind, namespace, name = _named(call)
        given, options = _media_type(call), _options(call)
        if given == APPLY_PATCH:
            obj = decode_object(call.body, given, kind)
            return _written(kind, self._resources.apply(kind, namespace, name, obj, options), call)
        change = _decode_patch(call, given)
        return _written(kind, self._resources.patch(kind, namespace, name, given, change, options), call)

    def _delete(self, call: Call) -> Answer:
        kind, namespace, name = _named(call)
        body = _delete_options(call)
        conditions = body.get("preconditions") or {}
        outcome = self._resources.delete(kind, namespace, name, _delete_meaning(call, body), conditions)
        return _written(kind, outcome, call)

    def _delete_all(self, call: Call) -> Answer:
        kind = call.target.kind
        options = _delete_meaning(call, _delete_options(call))
        found = self._resources.delete_all(kind, call.target.namespace, _selected(call), options)
        return as_json(200, representing.many(kind, found, self._store.version, "object"))

    def _subresource(self, call: Call) -> Answer:
        kind, namespace, name = _named(call)
        subresource = call.target.subresource
        if kind is kinds.POD and subresource == "log" and call.method == "GET":
            return self._log(call, namespace or "", name)
        if subresource != "status" or not kind.status or kind.treatment == "empty":
            raise not_found(kind, f"{name}/{subresource}")
        if call.method == "GET":
            return self._get(call)
        if call.method == "PUT":
            obj = decode_object(call.body, _media_type(call), kind)
            outcome = self._resources.replace_status(kind, namespace, name, obj, _options(call))
        elif call.method == "PATCH":
            given = _media_type(call)
            if given == APPLY_PATCH:
                applied = decode_object(call.body, given, kind)
                outcome = self._resources.apply_status(kind, namespace, name, applied, _options(call))
                return _written(kind, outcome, call)
            change = _decode_patch(call, given)
            outcome = self._resources.patch_status(kind, namespace, name, given, change, _options(call))
        else:
            raise Failure(405, "the server does not allow this method on the requested resource")
        return _written(kind, outcome, call)

    def _log(self, call: Call, namespace: str, name: str) -> Answer:
        since = call.number("sinceSeconds")
        options = LogOptions(
            follow=call.flag("follow"),
            tail=call.number("tailLines"),
            timestamps=call.flag("timestamps"),
            since=time.time() - since if since is not None else _moment(call.query.get("sinceTime", "")),
            limit_bytes=call.number("limitBytes"),
            container=call.query.get("container", ""),
            previous=call.flag("previous"),
        )
        return Answer(200, self._pod_logs(namespace, name, options), (("Content-Type", "text/plain"),))


def _moment(text: str) -> float | None:
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise bad_request(f'invalid sinceTime: "{text}" is not a time such as 2026-01-31T12:00:00Z') from None


def _named(call: Call) -> tuple[Kind, str | None, str]:
    return call.target.kind, call.target.namespace, call.target.name or ""


def _media_type(call: Call) -> str:
    return media_type(call.headers.get("Content-Type"))


def _whole(call: Call) -> bool:
    return call.query.get("includeObject") == "Object"


def _selected(call: Call) -> Callable[[Object], bool]:
    labels = selectors.label_test(call.query.get("labelSelector", ""))
    fields = selectors.field_test(call.target.kind, call.query.get("fieldSelector", ""))
    return lambda obj: labels(obj["metadata"].get("labels") or {}) and fields(obj)


def _options(call: Call) -> Options:
    query = call.query
    dry_run = query.get("dryRun", "")
    if dry_run not in ("", "All"):
        raise bad_request(f'dryRun: Unsupported value: "{dry_run}": supported values: "All"')
    validation = query.get("fieldValidation") or "Warn"
    if validation not in ("Strict", "Warn", "Ignore"):
        raise bad_request(
            f'fieldValidation: Unsupported value: "{validation}": supported values: "Ignore", "Strict", "Warn"'
        )
    manager = query.get("fieldManager", "")
    if not manager and _media_type(call) != APPLY_PATCH:
        manager = call.headers.get("User-Agent", "").partition("/")[0] or "unknown"
    repeated = repeated_keys(call.body, _media_type(call)) if call.body.strip() and validation != "Ignore" else ()
    return Options(manager[:128], validation, bool(dry_run), call.flag("force"), repeated=repeated)  # type: ignore[arg-type]


def _decode_patch(call: Call, given: str) -> Any:
    # what is no patch format at all is refused by the verb, which knows the kind
    if given != JSON_PATCH and not given.endswith("-patch+json"):
        return {}
    return decode(call.body, given, "patch")


def _delete_options(call: Call) -> dict[str, Any]:
    if not call.body.strip():
        return {}
    body = decode(call.body, _media_type(call), "DeleteOptions")
    if not isinstance(body, dict):
        raise bad_request("DeleteOptions is an object")
    return body


def _delete_meaning(call: Call, body: Mapping[str, Any]) -> Options:
    policy = call.query.get("propagationPolicy") or body.get("propagationPolicy") or "Background"
    if policy not in ("Background", "Foreground", "Orphan"):
        raise bad_request(f'propagationPolicy: Unsupported value: "{policy}"')
    orphan = policy == "Orphan" or body.get("orphanDependents") is True or call.flag("orphanDependents")
    dry_run = bool(call.query.get("dryRun") or body.get("dryRun"))
    grace = call.number("gracePeriodSeconds")
    if grace is None and isinstance(body.get("gracePeriodSeconds"), int):
        grace = body["gracePeriodSeconds"]
    return Options(dry_run=dry_run, orphan=orphan, grace=grace)


def _written(kind: Kind, outcome: Outcome, call: Call) -> Answer:
    form = representing.negotiate(call.headers.get("Accept", ""))
    return as_json(outcome.status, representing.one(kind, outcome.object, form), outcome.warnings)
