"""Heads of HTTP/2: where a request goes, what a replica is told of it, what the router answers itself."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import NamedTuple

from relight.base.errors import RelightError
from relight.local.serving.heads import identify
from relight.local.serving.refusals import Refusal
from relight.local.serving.routes import LONGEST_NAME, Found, Route, Routes, origin_allowed, read_host
from relight.wire import grpcstatus
from relight.wire.http import Response

Header = tuple[bytes, bytes]

GRPC = b"application/grpc"
_OURS = frozenset(
    (
        b"host",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-proto",
        b"x-forwarded-prefix",
        b"x-request-id",
        b"traceparent",
    )
)
"""Fields that the router writes itself; h2 refuses those that concern one connection, but for ``te: trailers``."""


class Head(NamedTuple):
    """A request's head. The parser has checked that the pseudo fields are there, once and in front."""

    method: bytes
    path: bytes
    authority: bytes
    fields: list[Header]
    noted: dict[bytes, bytes]
    """The fields by name, repeated ones joined."""

    @property
    def grpc(self) -> bool:
        return self.noted.get(b"content-type", b"").startswith(GRPC)

    @property
    def plain(self) -> bytes:
        """The path without its query."""
        return self.path.partition(b"?")[0]


def read_head(headers: list[Header]) -> Head:
    pseudo = {name: value for name, value in headers if name[:1] == b":"}
    fields = [(name, value) for name, value in headers if name[:1] != b":"]
    noted: dict[bytes, bytes] = {}
    for name, value in fields:
        noted[name] = noted[name] + b", " + value if name in noted else value
    authority = pseudo.get(b":authority") or noted.get(b"host", b"")
    return Head(pseudo.get(b":method", b""), pseudo.get(b":path", b""), authority, fields, noted)


def find(routes: Routes, pages: Container[bytes], head: Head) -> tuple[Found | None, bool]:
    """Whom a request is for, and whether its path says so. Refusal where it may not ask.

    None: the router itself, whose ``pages`` has the plain path.
    """
    if head.method == b"CONNECT":
        raise Refusal(405, "method_not_allowed", "this is no forward proxy: CONNECT is not served")
    host = read_host(head.authority)
    if not host.allowed:
        name = head.authority[:LONGEST_NAME].decode("latin-1")
        raise Refusal(
            421, "misdirected", f"{name!r} is no name of this machine: use localhost or NAME.NAMESPACE.localhost"
        )
    origin = head.noted.get(b"origin")
    if origin is not None and not origin_allowed(origin):
        page = origin[:LONGEST_NAME].decode("latin-1")
        raise Refusal(403, "forbidden", f"pages of {page!r} may not call functions of this machine")
    if host.function:
        return routes.by_host(host.function, head.path), False
    found = routes.by_path(head.path)
    if found is not None and found.route is not None:
        return found, True
    if head.grpc:
        raise Refusal(404, "not_found", "a gRPC call names its function by the authority: NAME.NAMESPACE.localhost")
    if found is None and head.plain not in pages:
        name = head.plain[:200].decode("latin-1")
        raise Refusal(404, "not_found", f"{name} names no function: /NAMESPACE/NAME/ is the form")
    return found, True


def request_head(
    head: Head, route: Route, target: bytes, by_path: bool, peer: bytes, random_bits: Callable[[int], int]
) -> tuple[list[Header], bytes]:
    """What a replica gets, and the request's id."""
    noted = head.noted
    request_id, trace = identify(noted, random_bits)
    before = noted.get(b"x-forwarded-prefix", b"")
    prefix = before + (route.prefix if by_path else b"")
    fields = [
        (b":method", head.method),
        (b":scheme", b"http"),
        (b":path", target),
        (b":authority", route.host if by_path else head.authority),
        *((name, value) for name, value in head.fields if name not in _OURS),
        (b"x-forwarded-for", b", ".join(filter(None, (noted.get(b"x-forwarded-for"), peer)))),
        (b"x-forwarded-host", noted.get(b"x-forwarded-host", head.authority)),
        (b"x-forwarded-proto", noted.get(b"x-forwarded-proto", b"http")),
        (b"x-request-id", request_id),
        (b"traceparent", trace),
    ]
    if prefix:
        fields.append((b"x-forwarded-prefix", prefix))
    return fields, request_id


def own_answer(response: Response, request_id: bytes | None) -> list[Header]:
    """The head of an answer that the router gives itself."""
    fields = [(b":status", b"%d" % response.status)]
    fields += [(name.encode(), value.encode("latin-1", "replace")) for name, value in response.headers]
    fields.append((b"content-length", b"%d" % len(response.body)))
    if request_id:
        fields.append((b"x-request-id", request_id))
    return fields


def grpc_trailers(error: RelightError | Refusal) -> list[Header]:
    """How a call ends that has failed."""
    status = grpcstatus.of_error(error) if isinstance(error, RelightError) else grpcstatus.of_http(error.status)
    more = grpcstatus.pushback(error.retry_after)
    return [
        (b"grpc-status", b"%d" % status),
        (b"grpc-message", grpcstatus.percent_encoded(error.message).encode()),
        *((name.encode(), value.encode()) for name, value in more),
    ]


def grpc_refusal(error: RelightError | Refusal, request_id: bytes | None) -> list[Header]:
    """The whole answer to a call that has not begun: a head that is the trailers as well."""
    fields = [(b":status", b"200"), (b"content-type", GRPC), *grpc_trailers(error)]
    if request_id:
        fields.append((b"x-request-id", request_id))
    return fields


def answer_class(status: int, trailers: list[Header] | None) -> str:
    """What metrics count an answer by: the class of its HTTP status, or of the gRPC status in its trailers."""
    code = next((value for name, value in trailers or () if name == b"grpc-status"), None)
    if status == 200 and code is not None and code.isdigit():
        return f"{grpcstatus.http_class(int(code))}xx"
    return f"{status // 100}xx"
