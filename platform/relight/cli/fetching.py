"""A plain GET, for what is not the Kubernetes API."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from relight.base.errors import PlatformError

TIMEOUT = 10.0
"""Seconds."""


def fetch(url: str, query: Mapping[str, str]) -> bytes:
    """The body of a GET. PlatformError: no answer, or another status than 200."""
    import urllib3

    whole = url + (f"?{urlencode(query)}" if query else "")
    pool = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(TIMEOUT))
    try:
        response = pool.request("GET", whole)
        body: bytes = response.data
    except urllib3.exceptions.HTTPError as error:
        raise PlatformError(f"{url} cannot be reached: {error}") from error
    finally:
        pool.clear()
    if response.status != 200:
        raise PlatformError(f"{url} answered {response.status}: {body[:200].decode('utf-8', 'replace')}")
    return body
