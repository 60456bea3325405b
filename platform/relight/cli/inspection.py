"""Asking local mode's broker what it holds: its own paths, with the token of the kubeconfig."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from relight.base.errors import BadInput, NotFound, PlatformError
from relight.cli.calls import pieces, request
from relight.cli.exits import NotRunning
from relight.cli.target import find_target

_TIMEOUT = 30.0
"""Seconds for an answer, and between two signs of life of a stream (the broker gives one every 10 s)."""


class Inspection:
    """The broker of the local mode that the options mean. NotRunning: they mean a cluster, whose broker has none."""

    def __init__(self, kubeconfig: Path | None, context: str | None) -> None:
        target = find_target(kubeconfig, context)
        if target.platform is None:
            raise NotRunning("only local mode's broker can be asked this; on a cluster look into its own channel")
        self._base = target.platform.broker
        self._headers = {"Authorization": f"Bearer {_token(target.kubeconfig)}"}

    def get(self, path: str, parameters: Mapping[str, str | None]) -> Any:
        return self._json("GET", path, parameters)

    def post(self, path: str, parameters: Mapping[str, str | None]) -> Any:
        return self._json("POST", path, parameters)

    @contextmanager
    def lines(self, path: str, parameters: Mapping[str, str | None]) -> Iterator[Iterator[Any]]:
        """What a stream tells, value by value, until the broker ends it."""
        url = self._url(path, parameters)
        with request("GET", url, self._headers, None, _TIMEOUT) as response:
            _check(response, url)
            yield _values(pieces(response, url))

    def _json(self, method: str, path: str, parameters: Mapping[str, str | None]) -> Any:
        url = self._url(path, parameters)
        with request(method, url, self._headers, b"" if method == "POST" else None, _TIMEOUT) as response:
            _check(response, url)
            return json.loads(b"".join(pieces(response, url)))

    def _url(self, path: str, parameters: Mapping[str, str | None]) -> str:
        query = urlencode({name: value for name, value in parameters.items() if value is not None})
        return f"{self._base}/-/{quote(path)}" + (f"?{query}" if query else "")


def _check(response: HTTPResponse, url: str) -> None:
    if response.status < 300:
        return
    said = b"".join(pieces(response, url)).decode("utf-8", "replace").strip() or f"{url} answered {response.status}"
    kinds = {400: BadInput, 404: NotFound}
    raise kinds.get(response.status, PlatformError)(said)


def _values(parts: Iterator[bytes]) -> Iterator[Any]:
    rest = b""
    for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        yield from (json.loads(line) for line in lines if line)


def _token(kubeconfig: Path) -> str:
    import yaml

    try:
        users = yaml.safe_load(kubeconfig.read_text())["users"]
        return str(users[0]["user"]["token"])
    except (OSError, yaml.YAMLError, KeyError, IndexError, TypeError) as error:
        raise PlatformError(f"{kubeconfig} holds no token of local mode: {error!r}") from None
