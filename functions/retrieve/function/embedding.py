"""Asks the embed function for a query's vector, over HTTP."""

from __future__ import annotations

import base64
import http.client
import json
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from relight import sdk


class StepFailed(sdk.NotReady):
    """Another step, which this one needs, did not do its part: a bad gateway, to the caller."""

    code = "step_failed"
    status = 502


class RemoteEncoder:
    """Vectors from ``URL/v1/embeddings``, from any thread, over connections that are kept. ``timeout`` is in seconds.

    ``router``: ``HOST:PORT`` to connect to for names that end with ``.svc.cluster.local``, where no name service knows
    these; the name then goes in ``Host``. None: names are looked up.
    """

    def __init__(self, url: str, model: str, timeout: float, router: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"EMBED_URL: expected a URL such as http://embed.default.svc.cluster.local, got {url!r}")
        self.url = url
        self._model = model
        self._timeout = timeout
        self._secure = parts.scheme == "https"
        self._path = parts.path.rstrip("/") + "/v1/embeddings"
        self._host = parts.netloc.rpartition("@")[2]
        self._address = router if router and parts.hostname.endswith(".svc.cluster.local") else self._host
        self._idle: list[http.client.HTTPConnection] = []
        self._closed = False
        self._lock = threading.Lock()

    def encode(self, text: str, headers: Mapping[str, str]) -> list[float]:
        """The vector of a text. ``headers`` go with the request."""
        body = json.dumps({"model": self._model, "input": text, "encoding_format": "base64"}).encode()
        try:
            status, answer = self._post(body, {**headers, "host": self._host, "content-type": "application/json"})
        except TimeoutError as error:
            raise sdk.Deadline(f"step embed did not answer within {self._timeout:g} s at {self.url}") from error
        except (OSError, http.client.HTTPException) as error:
            raise StepFailed(f"step embed cannot be reached at {self.url}: {_why(error)}", retry_after=1) from error
        if status == 504:
            raise sdk.Deadline(f"step embed did not finish in time: {_sentence(answer)}")
        if status != 200:
            raise StepFailed(f"step embed answered {status}: {_sentence(answer)}", retry_after=1)
        try:
            raw = base64.b64decode(json.loads(answer)["data"][0]["embedding"])
            vector: list[float] = np.frombuffer(raw, "<f4").tolist()
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise StepFailed(f"step embed answered something else than an embedding at {self.url}") from error
        return vector

    def close(self) -> None:
        """Close what is kept."""
        with self._lock:
            self._closed = True
            kept, self._idle = self._idle, []
        for connection in kept:
            connection.close()

    def _post(self, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        with self._lock:
            kept = self._idle.pop() if self._idle else None
        if kept is not None:
            try:
                return self._exchange(kept, body, headers)
            except (http.client.RemoteDisconnected, ConnectionError):
                pass  # closed while it was idle; the request has no effect but its answer, so it is sent again
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return self._exchange(kind(self._address, timeout=self._timeout), body, headers)

    def _exchange(
        self, connection: http.client.HTTPConnection, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        keep = False
        try:
            connection.request("POST", self._path, body, dict(headers))
            response = connection.getresponse()
            answer = response.read()
            with self._lock:
                keep = not response.will_close and not self._closed
                if keep:
                    self._idle.append(connection)
        finally:
            if not keep:
                connection.close()
        return response.status, answer


def _sentence(answer: bytes) -> str:
    try:
        error: Any = json.loads(answer)["error"]
        return str(error["message"] if isinstance(error, dict) else error)[:500]
    except (ValueError, KeyError, TypeError):
        return "no reason given"


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
