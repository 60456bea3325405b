"""Where requests go: functions by path, by host name and by tag.

Path form: ``/NAMESPACE/NAME/rest``, ``/NAMESPACE/TAG-NAME/rest``. Host form: ``NAME.NAMESPACE`` or
``TAG-NAME.NAMESPACE`` followed by ``.localhost``, ``.127.0.0.1.sslip.io``, ``.svc`` or ``.svc.cluster.local``. A
function's own name goes before the same name made of a tag and another function's name.

Any other host name is refused: a page on the internet whose name was made to resolve to this machine (DNS rebinding)
must not reach what listens here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

from relight.decide.traffic import pick, tagged
from relight.local.serving.http1 import split_port
from relight.local.serving.types import RouteTarget

FUNCTION_DOMAINS = (
    b".localhost",
    b".127.0.0.1.sslip.io",
    b".127-0-0-1.sslip.io",
    b".svc.cluster.local",
    b".svc",
)
"""Domains below which ``NAME.NAMESPACE`` is a function. By any resolver they lead to this machine, or nowhere."""

LONGEST_NAME = 262
"""Bytes of a host name (253 by RFC 1035), a trailing dot and a port; longer ones are not this machine's."""


TAG_HEADER = b"knative-serving-tag"
"""Names a tag whose revision is meant, where ``config-features`` has ``tag-header-based-routing`` enabled."""


class Route:
    """One address of a function: its own, or that of one tag."""

    __slots__ = ("host", "host_line", "name", "namespace", "prefix", "prefix_line", "targets")

    def __init__(self, namespace: str, name: str, targets: tuple[RouteTarget, ...], host: str) -> None:
        self.namespace = namespace
        self.name = name
        self.targets = targets
        self.host = f"{host}.{namespace}.localhost".encode()
        """Host of the upstream request where the caller used the path form."""
        self.prefix = f"/{namespace}/{host}".encode()
        self.host_line = b"host: %b\r\n" % self.host
        self.prefix_line = b"x-forwarded-prefix: %b\r\n" % self.prefix

    def pick(self, random01: float) -> RouteTarget:
        """The target for one request; BadInput where the route has only tags."""
        targets = self.targets
        return targets[0] if len(targets) == 1 and targets[0].percent else pick(targets, random01)


class Found(NamedTuple):
    """Answer of a lookup. ``route`` None: nothing of that name (``function``) gets traffic."""

    route: Route | None
    function: str
    target: bytes
    """Request target for the function: path and query, the prefix taken off."""

    @property
    def nobody(self) -> str:
        """What is said where there is no route: a function has one from its first ready revision on."""
        return f"no function {self.function[:200]} is deployed here, or none of its revisions has been ready yet"


class Routes:
    """The table, changed by the route controller and read by the router, both on the event loop."""

    def __init__(self, by_tag_header: Callable[[], bool] = lambda: False) -> None:
        self.by_tag_header = by_tag_header
        """Whether ``Knative-Serving-Tag`` counts now; asked only where a request has it."""
        self._routes: dict[tuple[str, str], Route] = {}
        self._claims: dict[tuple[str, str], dict[str, Route]] = {}
        """By namespace and host name: the functions that go by it, by their names; more than one where a tag's address
        is another function's name, or another's tag's."""
        self._by_path: dict[bytes, Route] = {}
        self._by_host: dict[bytes, Route] = {}

    def set(self, namespace: str, name: str, targets: tuple[RouteTarget, ...]) -> None:
        """A function's traffic, at once for all requests that come after."""
        gone = self._hosts(namespace, name)
        self._routes[namespace, name] = own = Route(namespace, name, targets, name)
        addresses = {f"{one.tag}-{name}": (RouteTarget(one.revision, 100),) for one in targets if one.tag}
        routes = {host: Route(namespace, name, to, host) for host, to in addresses.items()} | {name: own}
        for host in gone - routes.keys():
            self._unclaim(namespace, host, name)
        for host, route in routes.items():
            self._claims.setdefault((namespace, host), {})[name] = route
            self._decide(namespace, host)

    def remove(self, namespace: str, name: str) -> None:
        """Idempotent."""
        for host in self._hosts(namespace, name):
            self._unclaim(namespace, host, name)
        self._routes.pop((namespace, name), None)

    def get(self, namespace: str, name: str) -> Route | None:
        return self._routes.get((namespace, name))

    def pick(self, route: Route, tag: bytes | None, random01: float) -> RouteTarget:
        """The target for one request; as on Knative, a tag that the route does not have is no tag.

        BadInput where the route has only tags and none of them was asked for.
        """
        if tag is not None and self.by_tag_header():
            found = tagged(route.targets, tag.decode("latin-1"))
            if found is not None:
                return found
        return route.pick(random01)

    def __iter__(self) -> Iterator[Route]:
        return iter(list(self._routes.values()))

    def _hosts(self, namespace: str, name: str) -> frozenset[str]:
        """The names that a function goes by now."""
        route = self._routes.get((namespace, name))
        if route is None:
            return frozenset()
        return frozenset((name, *(f"{one.tag}-{name}" for one in route.targets if one.tag)))

    def _unclaim(self, namespace: str, host: str, name: str) -> None:
        claims = self._claims[namespace, host]
        del claims[name]
        if not claims:
            del self._claims[namespace, host]
        self._decide(namespace, host)

    def _decide(self, namespace: str, host: str) -> None:
        """Who a name means: the function of that name, else the last by name of those that have such a tag."""
        claims = self._claims.get((namespace, host), {})
        path, label = f"{namespace}/{host}".encode(), f"{host}.{namespace}".encode()
        if claims:
            self._by_path[path] = self._by_host[label] = claims.get(host) or claims[max(claims)]
        else:
            self._by_path.pop(path, None)
            self._by_host.pop(label, None)

    def by_path(self, target: bytes) -> Found | None:
        """Path form; None where the path has no two segments."""
        query = target.find(b"?")
        end = len(target) if query < 0 else query
        first = target.find(b"/", 1, end)
        if first < 2 or first + 1 >= end:
            return None
        second = target.find(b"/", first + 1, end)
        if second == first + 1:
            return None
        if second < 0:
            key, rest = target[1:end], b"/" + target[end:]
        else:
            key, rest = target[1:second], target[second:]
        return Found(self._by_path.get(key), key.decode("latin-1"), rest)

    def by_host(self, label: bytes, target: bytes) -> Found:
        """Host form; ``label`` is ``NAME.NAMESPACE``."""
        name, _, namespace = label.decode("latin-1").partition(".")
        return Found(self._by_host.get(label), f"{namespace}/{name}", target)


class Host(NamedTuple):
    """What a Host field says. ``function`` is ``NAME.NAMESPACE`` in the host form, empty in the path form."""

    allowed: bool
    function: bytes = b""


def read_host(authority: bytes) -> Host:
    """Judge a Host field by its name alone; nothing is resolved."""
    return _read_host(authority) if len(authority) <= LONGEST_NAME else Host(False)


@lru_cache(maxsize=1024)
def _read_host(authority: bytes) -> Host:
    host, good = split_port(authority)
    if not good:
        return Host(False)
    if host in (b"localhost", b"[::1]", b"127.0.0.1.sslip.io", b"127-0-0-1.sslip.io") or _is_loopback(host):
        return Host(True)
    for domain in FUNCTION_DOMAINS:
        if host.endswith(domain):
            label = host.removesuffix(domain)
            if b"." in label:
                return Host(True, label)
            # One name before .localhost is some local name for this machine; before the others it is nobody's.
            return Host(domain == b".localhost" and bool(label))
    return Host(False)


def _is_loopback(host: bytes) -> bool:
    parts = host.split(b".")
    return len(parts) == 4 and parts[0] == b"127" and all(part.isdigit() and int(part) < 256 for part in parts)


def origin_allowed(origin: bytes) -> bool:
    """Whether a page of this origin may call: pages that this machine serves, by any of its names."""
    scheme, separator, authority = origin.strip().partition(b"://")
    return bool(separator) and scheme.lower() in (b"http", b"https") and read_host(authority).allowed
