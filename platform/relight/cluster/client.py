"""The Kubernetes client as people use it: kinds by any of their names, and the server's own tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from relight.base.errors import BadInput, NotFound, PlatformError
from relight.net import kube

_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
_PREFERRED = ("serving.knative.dev", "eventing.knative.dev", "")
"""API groups whose kinds win where several have one of that name: ``service`` means Knative's here."""


@dataclass(frozen=True)
class Resource:
    """A kind as the API's discovery describes it."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool
    names: frozenset[str]
    """All names it goes by, in lower case."""
    categories: frozenset[str] = frozenset()

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    def __str__(self) -> str:
        """As kubectl writes it: ``service.serving.knative.dev``, ``pod``."""
        return self.kind.lower() + (f".{self.group}" if self.group else "")


class Client(kube.Kube):
    """``Kube`` with what only people ask for."""

    def close(self) -> None:
        """Hang up now: a pool that is only forgotten lives on as long as an error's traceback that knows it."""
        pools = self._client.rest_client.pool_manager.pools
        for key in pools.keys():  # noqa: SIM118  (the container has no __iter__)
            pools[key].close()
        super().close()

    def takes_folders(self) -> bool:
        """Whether this cluster runs functions from folders, as local mode does; others run images."""
        version = self._get("/version", {}, "application/json")
        return str(version.get("gitVersion", "")).endswith("+relight")

    def serves(self, api_version: str, kind: str) -> bool:
        """Whether this server knows a kind."""
        try:
            self._resource(api_version, kind)
        except NotFound:
            return False
        return True

    def resource(self, text: str) -> Resource:
        """The kind that a name means: ``ksvc``, ``services``, ``Trigger``, ``services.serving.knative.dev``.

        NotFound: this server has none of that name.
        """
        name, _, group = text.lower().partition(".")
        if not name:
            raise BadInput("expected a kind such as ksvc or trigger")
        for resources in (self._preferred, self._others):
            found = [
                resource
                for resource in resources()
                if name in resource.names and (not group or group in (resource.group, _joined(resource)))
            ]
            if found:
                break
        else:
            raise NotFound(f"{self.server} has no kind {text!r}")
        order = {group: at for at, group in enumerate(_PREFERRED)}
        return min(found, key=lambda resource: order.get(resource.group, len(order)))

    def category(self, text: str) -> list[Resource]:
        """The kinds of a category such as ``all`` or ``knative``, by group and name; none where that is no category."""
        known: dict[tuple[str, str], Resource] = {}
        for resource in (*self._preferred(), *self._others()):
            known.setdefault((resource.group, resource.plural), resource)
        found = [resource for resource in known.values() if text.lower() in resource.categories]
        return sorted(found, key=lambda resource: (resource.group, resource.plural))

    def table(
        self, resource: Resource, namespace: str | None, *, name: str | None = None, labels: str = ""
    ) -> dict[str, Any]:
        """The server's table of the objects of a kind, or of one; ``namespace`` None: of all namespaces."""
        path = self._path(resource.api_version, resource.kind, namespace, name, everywhere=namespace is None)
        return self._get(path, {"labelSelector": labels}, _TABLE)

    def _preferred(self) -> Iterator[Resource]:
        """Of each group, the kinds in the version that the server prefers."""
        yield from self._of("v1", "/api/v1")
        for group in self._groups():
            version = group["preferredVersion"]["groupVersion"]
            yield from self._of(version, f"/apis/{version}")

    def _others(self) -> Iterator[Resource]:
        """The kinds in versions that are not preferred, the best first: some kinds have no other."""
        for group in self._groups():
            for version in group["versions"]:
                if version["groupVersion"] != group["preferredVersion"]["groupVersion"]:
                    yield from self._of(version["groupVersion"], f"/apis/{version['groupVersion']}")

    def _groups(self) -> list[dict[str, Any]]:
        return self._get("/apis", {}, "application/json").get("groups") or []

    def _of(self, version: str, path: str) -> Iterator[Resource]:
        for entry in self._get(path, {}, "application/json").get("resources") or ():
            if "/" in entry["name"]:
                continue  # a subresource
            names = {entry["name"], entry["kind"].lower(), entry.get("singularName"), *(entry.get("shortNames") or ())}
            yield Resource(
                version,
                entry["kind"],
                entry["name"],
                entry["namespaced"],
                frozenset(name for name in names if name),
                frozenset(entry.get("categories") or ()),
            )

    def _get(self, path: str, query: Mapping[str, str], accept: str) -> dict[str, Any]:
        import urllib3

        configuration = self._client.configuration
        headers = {"Accept": accept, "User-Agent": "relight"}
        for auth in configuration.auth_settings().values():
            if auth["in"] == "header" and auth["value"]:
                headers[auth["key"]] = auth["value"]
        given = urlencode({key: value for key, value in query.items() if value})
        url = configuration.host + path + (f"?{given}" if given else "")
        timeout = urllib3.Timeout(connect=kube.CONNECT_TIMEOUT, read=kube.READ_TIMEOUT)
        try:
            response = self._client.rest_client.pool_manager.request(
                "GET", url, headers=headers, timeout=timeout, retries=False
            )
        except urllib3.exceptions.HTTPError as error:
            raise PlatformError(f"no Kubernetes API answers at {self.server}: {error}") from error
        if response.status >= 300:
            raise kube._error(response.status, kube._message(response.data))
        found: dict[str, Any] = json.loads(response.data)
        return found


def _joined(resource: Resource) -> str:
    """``v1.serving.knative.dev``: what kubectl takes as a full name after the plural."""
    version = resource.api_version.rpartition("/")[2]
    return f"{version}.{resource.group}"
