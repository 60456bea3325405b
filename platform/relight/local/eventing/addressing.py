"""From a destination as manifests write it (``ref`` and ``uri``) to a URL that answers on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from relight.local.eventing.naming import HUBS, SINK_SCHEME, hub_name
from relight.local.kube import kinds
from relight.local.kube.kinds import Kind
from relight.local.kube.store import ObjectStore

_BROKER_INGRESS = ("broker-ingress", "knative-eventing")
_CHANNEL_HOST = "-kn-channel"
_CLUSTER_DOMAINS = (".svc.cluster.local", ".svc")


@dataclass(frozen=True)
class Address:
    """Where a destination is; ``url`` None: nowhere yet, for the ``reason``."""

    url: str | None
    reason: str = ""


class Addresses:
    """Resolves destinations by what the store holds now: Services by their URL, hubs by their ingress."""

    def __init__(self, store: ObjectStore, hub_url: Callable[[str, str], str]) -> None:
        self._store = store
        self._hub_url = hub_url

    def url(self, namespace: str, destination: Mapping[str, Any]) -> str | None:
        return self.find(namespace, destination).url

    def find(self, namespace: str, destination: Mapping[str, Any]) -> Address:
        """``destination`` is a Trigger's ``subscriber`` or ``deadLetterSink``; ``namespace`` is the Trigger's."""
        ref, uri = destination.get("ref"), destination.get("uri")
        if ref:
            base = self._referred(namespace, ref)
            return Address(_join(base.url, str(uri))) if base.url and uri else base
        if not uri:
            return Address(None, "a ref or a uri was expected")
        return self._absolute(str(uri))

    def _referred(self, namespace: str, ref: Mapping[str, Any]) -> Address:
        api_version, name = str(ref.get("apiVersion", "")), str(ref.get("name", ""))
        kind = kinds.by_kind(api_version, str(ref.get("kind", "")))
        namespace = str(ref.get("namespace") or namespace)
        if kind is None:
            return Address(None, f"the kind {api_version} {ref.get('kind')} is not known here")
        found = self._store.get(kind, namespace, name)
        if found is None:
            return Address(None, f'failed to get object {namespace}/{name}: {kind.resource} "{name}" not found')
        if kind in HUBS:
            return Address(self._hub_url(namespace, hub_name(kind, name)))
        return self._addressable(kind, namespace, name, found)

    def _addressable(self, kind: Kind, namespace: str, name: str, found: Mapping[str, Any]) -> Address:
        # status.url is what answers on this machine; status.address.url is a name of the cluster's own.
        status = found.get("status") or {}
        url = status.get("url") or (status.get("address") or {}).get("url")
        if not url:
            return Address(None, f"{kind.kind} {namespace}/{name} has no address yet")
        return Address(str(url))

    def _absolute(self, uri: str) -> Address:
        try:
            parts = urlsplit(uri)
        except ValueError as error:
            return Address(None, f"{uri!r} is not a URL: {error}")
        if parts.scheme == SINK_SCHEME:
            return Address(uri)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            return Address(None, f"{uri!r} is not an absolute http URL")
        for domain in _CLUSTER_DOMAINS:
            if parts.hostname.endswith(domain):
                name, _, namespace = parts.hostname.removesuffix(domain).partition(".")
                if (name, namespace) == _BROKER_INGRESS:
                    return Address(self._hub_url(*parts.path.strip("/").partition("/")[::2]))
                if name.endswith(_CHANNEL_HOST):
                    hub = hub_name(kinds.IN_MEMORY_CHANNEL, name.removesuffix(_CHANNEL_HOST))
                    return Address(self._hub_url(namespace, hub))
                service = self._store.get(kinds.SERVICE, namespace, name)
                if service is None:
                    return Address(None, f"there is no Service {namespace}/{name} for {uri}")
                base = self._addressable(kinds.SERVICE, namespace, name, service)
                rest = urlunsplit(("", "", parts.path, parts.query, ""))
                return Address(_join(base.url, rest)) if base.url and rest.strip("/") else base
        return Address(uri)


def _join(base: str, relative: str) -> str:
    """A path below a function's URL, which may itself have a path (``http://127.0.0.1:8080/NAMESPACE/NAME``)."""
    return base.rstrip("/") + "/" + relative.lstrip("/")
