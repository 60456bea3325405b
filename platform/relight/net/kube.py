"""The one Kubernetes client: local mode and clusters alike, for objects as plain dictionaries.

Thin over the official ``kubernetes`` package, which knows kubeconfigs, credentials and TLS; paths come from the API's
own discovery, so that every kind works without a class for it. The package takes half a second and 126 MB to import:
it is imported when a client is made, and not before. Calls block; use from a thread where there is a loop.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from relight.base.errors import (
    BadInput,
    Conflict,
    Deadline,
    Forbidden,
    NotAllowed,
    NotFound,
    Overloaded,
    PlatformError,
    RelightError,
    TooLarge,
    Unauthorized,
    Unprocessable,
    Unsupported,
)
from relight.net import kubeconfig

CONNECT_TIMEOUT = 5.0
READ_TIMEOUT = 60.0
"""Seconds without a byte after which an answer is given up; streams have no such limit, or the watch's own."""
WATCH_GRACE = 15.0
"""Seconds that a server may be late with the end of a watch."""

_ERRORS: dict[int, type[RelightError]] = {
    400: BadInput,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: NotAllowed,
    409: Conflict,
    413: TooLarge,
    415: Unsupported,
    422: Unprocessable,
    429: Overloaded,
    503: Overloaded,
    504: Deadline,
}
_WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')


class Gone(RelightError):
    """The version to watch from is too old: list again and watch from there."""

    code = "gone"
    status = 410
    retryable = True


class Kube:
    """See the module. Make one with ``from_kubeconfig``, and close it."""

    def __init__(self, client: Any, server: str, namespace: str, on_warning: Callable[[str], None] | None) -> None:
        self._client = client
        self._plurals: dict[tuple[str, str], tuple[str, bool]] = {}
        self._on_warning = on_warning
        self.server = server
        self.namespace = namespace
        """The namespace of the kubeconfig's context, for objects that name none."""

    @classmethod
    def from_kubeconfig(
        cls, path: Path, context: str | None = None, *, on_warning: Callable[[str], None] | None = None
    ) -> Kube:
        """A client for one context. ``on_warning`` gets each Warning that the server sends. BadInput: a bad file."""
        chosen = kubeconfig.read(path, context)
        from kubernetes import config

        try:
            make: Callable[..., Any] = config.new_client_from_config
            client = make(str(path), context=context, persist_config=False)
        except config.ConfigException as error:
            raise BadInput(f"{path} cannot be used as a kubeconfig: {error}") from error
        return cls(client, chosen.server, chosen.namespace, on_warning)

    @classmethod
    def in_cluster(cls, namespace: str) -> Kube:
        """A client with the pod's own account. BadInput: this is no pod, or it has no account."""
        from kubernetes import client, config

        load: Callable[..., None] = config.load_incluster_config
        try:
            load()
        except config.ConfigException as error:
            raise BadInput(f"this is not a pod of a cluster with an account of its own: {error}") from error
        made = client.ApiClient()
        return cls(made, made.configuration.host, namespace, None)

    def close(self) -> None:
        self._client.rest_client.pool_manager.clear()

    def __enter__(self) -> Kube:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Objects

    def get(self, api_version: str, kind: str, name: str, namespace: str | None = None) -> dict[str, Any]:
        """One object; NotFound if it is not there."""
        return self._json("GET", self._path(api_version, kind, namespace, name))

    def list(
        self, api_version: str, kind: str, namespace: str | None = None, *, labels: str = "", everywhere: bool = False
    ) -> dict[str, Any]:
        """A list with its resourceVersion. ``everywhere``: in all namespaces."""
        path = self._path(api_version, kind, namespace, everywhere=everywhere)
        return self._json("GET", path, {"labelSelector": labels})

    def apply(
        self,
        obj: Mapping[str, Any],
        field_manager: str = "relight",
        *,
        force: bool = True,
        dry_run: bool = False,
        validation: str = "Strict",
    ) -> dict[str, Any]:
        """Server-side apply: create, or change what this manager owns. Conflict names others' fields unless forced."""
        query = {
            "fieldManager": field_manager,
            "force": "true" if force else "false",
            "fieldValidation": validation,
            "dryRun": "All" if dry_run else "",
        }
        body = json.dumps(obj).encode()
        return self._json("PATCH", self._path_of(obj), query, body, "application/apply-patch+yaml")

    def create(self, obj: Mapping[str, Any], field_manager: str = "relight") -> dict[str, Any]:
        """Create an object; Conflict if it is there already."""
        metadata = obj.get("metadata") or {}
        path = self._path(str(obj.get("apiVersion")), str(obj.get("kind")), metadata.get("namespace"))
        return self._json("POST", path, {"fieldManager": field_manager}, json.dumps(obj).encode())

    def replace(self, obj: Mapping[str, Any], field_manager: str = "relight") -> dict[str, Any]:
        """Replace an object; Conflict if it changed since its resourceVersion."""
        return self._json("PUT", self._path_of(obj), {"fieldManager": field_manager}, json.dumps(obj).encode())

    def patch(
        self, api_version: str, kind: str, name: str, change: Mapping[str, Any], namespace: str | None = None
    ) -> dict[str, Any]:
        """Merge patch (RFC 7396)."""
        path = self._path(api_version, kind, namespace, name)
        query = {"fieldManager": "relight"}
        return self._json("PATCH", path, query, json.dumps(change).encode(), "application/merge-patch+json")

    def delete(self, api_version: str, kind: str, name: str, namespace: str | None = None) -> dict[str, Any]:
        """Delete an object and, in the background, what it owns; NotFound if it is not there."""
        path = self._path(api_version, kind, namespace, name)
        return self._json("DELETE", path, {"propagationPolicy": "Background"})

    def watch(
        self,
        api_version: str,
        kind: str,
        namespace: str | None = None,
        *,
        name: str = "",
        labels: str = "",
        since: str = "",
        timeout: float | None = None,
        everywhere: bool = False,
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """(ADDED | MODIFIED | DELETED, object), first for all that exists unless ``since`` is a resourceVersion.

        Ends when the server ends it, after ``timeout`` seconds at the latest. Gone: ``since`` is too old.
        """
        query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={name}" if name else "",
            "labelSelector": labels,
            "resourceVersion": since,
            "timeoutSeconds": str(max(1, round(timeout))) if timeout is not None else "",
        }
        path = self._path(api_version, kind, namespace, everywhere=everywhere)
        for line in self._lines(path, query, None if timeout is None else timeout + WATCH_GRACE):
            if not line.strip():
                continue
            event = json.loads(line)
            if event["type"] == "ERROR":
                raise _error(int(event["object"].get("code") or 500), event["object"].get("message") or "watch failed")
            if event["type"] != "BOOKMARK":
                yield event["type"], event["object"]

    def logs(
        self,
        pod: str,
        namespace: str | None = None,
        *,
        follow: bool = False,
        tail: int | None = None,
        container: str = "",
    ) -> Iterator[str]:
        """Lines of a pod's log, without their ends. ``container`` is needed where the pod has several."""
        query = {
            "follow": "true" if follow else "",
            "tailLines": "" if tail is None else str(tail),
            "container": container,
        }
        path = self._path("v1", "Pod", namespace, pod) + "/log"
        for line in self._lines(path, query, None if follow else READ_TIMEOUT):
            yield line.decode("utf-8", "replace")

    # Paths

    def _path_of(self, obj: Mapping[str, Any]) -> str:
        metadata = obj.get("metadata") or {}
        api_version, kind, name = obj.get("apiVersion"), obj.get("kind"), metadata.get("name")
        for field, value in (("apiVersion", api_version), ("kind", kind), ("metadata.name", name)):
            if not value or not isinstance(value, str):
                raise BadInput(f"the object has no {field}", param=field)
        return self._path(str(api_version), str(kind), metadata.get("namespace"), name)

    def _path(
        self,
        api_version: str,
        kind: str,
        namespace: str | None = None,
        name: str | None = None,
        *,
        everywhere: bool = False,
    ) -> str:
        plural, namespaced = self._resource(api_version, kind)
        root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        inside = f"/namespaces/{quote(namespace or self.namespace, safe='')}" if namespaced and not everywhere else ""
        return f"{root}{inside}/{plural}" + (f"/{quote(name, safe='')}" if name else "")

    def _resource(self, api_version: str, kind: str) -> tuple[str, bool]:
        if (api_version, kind) not in self._plurals:
            root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
            try:
                found = self._json("GET", root)
            except NotFound:
                raise NotFound(f"{self.server} does not serve {api_version}, which {kind} belongs to") from None
            for entry in found["resources"]:
                if "/" not in entry["name"]:
                    self._plurals[api_version, entry["kind"]] = (entry["name"], entry["namespaced"])
        if (api_version, kind) not in self._plurals:
            raise NotFound(f"{self.server} has no kind {kind} in {api_version}")
        return self._plurals[api_version, kind]

    # Requests

    def _json(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        response = self._request(method, path, query or {}, body, content_type, READ_TIMEOUT)
        with closing(response):
            content = self._read(response)
        found: dict[str, Any] = json.loads(content)
        return found

    def _lines(self, path: str, query: Mapping[str, str], read_timeout: float | None) -> Iterator[bytes]:
        from urllib3.exceptions import HTTPError

        response = self._request("GET", path, query, None, "", read_timeout)
        rest = b""
        with closing(response):
            try:
                for chunk in response.stream(65536, decode_content=True):
                    *lines, rest = (rest + chunk).split(b"\n")
                    yield from lines
            except HTTPError as error:
                raise PlatformError(f"the connection to {self.server} broke: {error}") from error
        if rest:
            yield rest

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: bytes | None,
        content_type: str,
        read_timeout: float | None,
    ) -> Any:
        """The response, its body unread. Anything but success is raised with the server's own message."""
        import urllib3

        configuration = self._client.configuration
        headers = {"Accept": "application/json", "User-Agent": "relight"}
        headers |= {"Content-Type": content_type} if body is not None else {}
        for auth in configuration.auth_settings().values():
            if auth["in"] == "header" and auth["value"]:
                headers[auth["key"]] = auth["value"]
        given = {name: value for name, value in query.items() if value}
        url = configuration.host + path + (f"?{urlencode(given)}" if given else "")
        try:
            response = self._client.rest_client.pool_manager.request(
                method,
                url,
                body=body,
                headers=headers,
                timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT, read=read_timeout),
                retries=False,
                preload_content=False,
            )
        except urllib3.exceptions.SSLError as error:
            raise PlatformError(f"{self.server} is not who the kubeconfig says it is: {error}") from error
        except urllib3.exceptions.HTTPError as error:
            raise PlatformError(f"no Kubernetes API answers at {self.server}: {error}") from error
        self._warn(response.headers)
        if response.status >= 300:
            with closing(response):
                raise _error(response.status, _message(self._read(response)))
        return response

    def _read(self, response: Any) -> bytes:
        import urllib3

        try:
            content: bytes = response.read(decode_content=True)
        except urllib3.exceptions.HTTPError as error:
            raise PlatformError(f"the connection to {self.server} broke: {error}") from error
        response.release_conn()
        return content

    def _warn(self, headers: Any) -> None:
        if self._on_warning is not None:
            for value in headers.getlist("Warning"):
                for text in _WARNING.findall(value):
                    self._on_warning(re.sub(r"\\(.)", r"\1", text))


def _message(content: bytes) -> str:
    try:
        status = json.loads(content)
    except ValueError:
        return content[:500].decode("utf-8", "replace").strip()
    return str(status.get("message") or status) if isinstance(status, dict) else str(status)


def _error(status: int, message: str) -> RelightError:
    if status == Gone.status:
        return Gone(message)
    return _ERRORS.get(status, PlatformError)(message)
