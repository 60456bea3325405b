"""Which function a request is for, and whether it may reach it.

What is refused here although the parser lets it pass: transfer codings other than ``chunked`` alone, chunked bodies in
HTTP/1.0, no Host or two, hosts and origins that are not this machine's, CONNECT, an upgrade with a body.
"""

from __future__ import annotations

from relight.local.serving.context import Context
from relight.local.serving.exchange import Exchange
from relight.local.serving.http1 import tokens
from relight.local.serving.refusals import Refusal
from relight.local.serving.routes import LONGEST_NAME, origin_allowed, read_host


def aim(context: Context, exchange: Exchange, url: bytes) -> None:
    """Give the exchange its route, the router's own answer, or the reason why it gets neither."""
    try:
        _check_coding(exchange)
        path, function = _read_target(exchange, url)
        _look_up(context, exchange, path, function)
    except Refusal as refusal:
        exchange.error = refusal
        if refusal.status in (400, 405, 431):
            # Who got the framing wrong is not believed about where the next request begins.
            exchange.keep_alive = False


def offers_only_h2c(exchange: Exchange) -> bool:
    """Whether the upgrade that a request offers is one that is not passed on: h2c would be a way round all checks."""
    return exchange.method != b"CONNECT" and b"h2c" in tokens(exchange.noted.get(b"upgrade", b""))


def _check_coding(exchange: Exchange) -> None:
    if exchange.method == b"CONNECT":
        raise Refusal(405, "method_not_allowed", "this is no forward proxy: CONNECT is not served")
    if exchange.upgrade and (exchange.chunked or exchange.content_length):
        raise Refusal(400, "bad_request", "a request with Upgrade and a body is not understood here")
    coding = exchange.noted.get(b"transfer-encoding")
    if coding is not None and (coding.lower() != b"chunked" or exchange.version == "1.0"):
        raise Refusal(400, "bad_request", "the only transfer coding that is understood here is chunked, in HTTP/1.1")


def _read_target(exchange: Exchange, url: bytes) -> tuple[bytes, bytes]:
    """Path and query, and ``NAME.NAMESPACE`` where the host names the function."""
    noted = exchange.noted
    path = url
    if url[:1] != b"/":
        # Absolute form: its authority goes before Host (RFC 9112, 3.2.2).
        scheme, separator, rest = url.partition(b"://")
        if not separator or scheme.lower() != b"http":
            raise Refusal(400, "bad_request", f"{url[:200].decode('latin-1')!r} is no path of a function")
        noted[b"host"], slash, path = rest.partition(b"/")
        path = slash + path or b"/"
    authority = noted.get(b"host")
    if authority is None and exchange.version == "1.0":
        return path, b""
    if authority is None or b"," in authority:
        raise Refusal(400, "bad_request", "a request needs one Host field")
    host = read_host(authority)
    if not host.allowed:
        name = authority[:LONGEST_NAME].decode("latin-1")
        hint = "use localhost or NAME.NAMESPACE.localhost"
        raise Refusal(421, "misdirected", f"{name!r} is no name of this machine: {hint}")
    origin = noted.get(b"origin")
    if origin is not None and not origin_allowed(origin):
        page = origin[:LONGEST_NAME].decode("latin-1")
        raise Refusal(403, "forbidden", f"pages of {page!r} may not call functions of this machine")
    return path, host.function


def _look_up(context: Context, exchange: Exchange, path: bytes, function: bytes) -> None:
    found = context.routes.by_host(function, path) if function else context.routes.by_path(path)
    if found is None:
        plain = path.partition(b"?")[0]
        page = context.pages.get(plain)
        if page is None:
            name = plain[:200].decode("latin-1")
            raise Refusal(404, "not_found", f"{name} names no function: /NAMESPACE/NAME/ is the form")
        exchange.local = page()
        return
    exchange.target = found.target
    if found.route is None:
        raise Refusal(404, "not_found", found.nobody)
    exchange.aim(found.route, by_path=not function)
