"""Who may talk to the API: requests to this machine's loopback names, with the token.

A web page in the user's browser can make it send requests to 127.0.0.1, under a name that resolves there (DNS
rebinding). Such requests carry that name in Host, or a foreign Origin, and are refused before anything else.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from urllib.parse import urlsplit

from relight.local.kube.failures import Failure

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
PUBLIC = ("/healthz", "/livez", "/readyz", "/version")
"""Paths that tell nothing about anyone; a cluster answers them without credentials too."""


def check(path: str, headers: Mapping[str, str], token: str) -> None:
    """Failure 403 for a foreign Host or Origin, 401 without the right token."""
    host = headers.get("Host", "")
    if _name(host) not in LOOPBACK:
        raise Failure(403, f"host {host!r} is not a name of this machine's loopback; use 127.0.0.1 or localhost")
    origin = headers.get("Origin")
    if origin is not None and _name(urlsplit(origin).netloc) not in LOOPBACK:
        raise Failure(403, f"requests from pages of {origin!r} are not accepted")
    if path in PUBLIC:
        return
    scheme, _, given = headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
        raise Failure(401, "Unauthorized", headers={"WWW-Authenticate": "Bearer"})


def _name(netloc: str) -> str:
    """``localhost`` of ``localhost:8443``; ``[::1]`` of ``[::1]:8443``."""
    name, colon, port = netloc.rpartition(":")
    return (name if colon and port.isdecimal() else netloc).lower()
