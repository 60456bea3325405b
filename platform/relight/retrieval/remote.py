"""Other functions, called over HTTP: a step that answers JSON, and the embed function's vectors."""

from __future__ import annotations

import base64
import http.client
import json
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from relight.base.errors import BadInput, Deadline, NotReady
from relight.wire.http import TIMEOUT_HEADER


class StepFailed(NotReady):
    """Another step, which this one needs, did not do its part: a bad gateway, to the caller."""

    code = "step_failed"
    status = 502


class RemoteStep:
    """A function by its URL, from any thread, over connections that are kept. ``timeout`` is in seconds.

    ``router``: ``HOST:PORT`` to connect to for names that end with ``.svc.cluster.local``, where no name service knows
    these; the name then goes in ``Host``. None: names are looked up. ``variable`` is where the URL was read from.
    """

    def __init__(self, name: str, url: str, timeout: float, router: str | None = None, variable: str = "URL") -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{variable}: expected a URL such as http://{name}.default.svc.cluster.local, got {url!r}")
        self.name = name
        self.url = url
        self._timeout = timeout
        self._secure = parts.scheme == "https"
        self._path = parts.path.rstrip("/")
        self._host = parts.netloc.rpartition("@")[2]
        self._address = router if router and parts.hostname.endswith(".svc.cluster.local") else self._host
        self._idle: list[http.client.HTTPConnection] = []
        self._closed = False
        self._lock = threading.Lock()

    def call(self, data: Any, headers: Mapping[str, str], path: str = "/", timeout: float | None = None) -> Any:
        """The JSON that the step answers. ``headers`` go with the request; ``timeout``: if less than the usual.

        Deadline where it takes too long, BadInput where it says that the input is wrong, StepFailed for all else.
        """
        wait = self._timeout if timeout is None else min(timeout, self._timeout)
        if wait <= 0:
            raise Deadline(f"no time was left for step {self.name}")
        more = {"host": self._host, "content-type": "application/json", TIMEOUT_HEADER: str(max(1, int(wait * 1000)))}
        try:
            status, answer = self._post(path, json.dumps(data).encode(), {**headers, **more}, wait)
        except TimeoutError as error:
            raise Deadline(f"step {self.name} did not answer within {wait:.3g} s at {self.url}") from error
        except (OSError, http.client.HTTPException) as error:
            raise StepFailed(
                f"step {self.name} cannot be reached at {self.url}: {_why(error)}", retry_after=1
            ) from error
        if status == 504:
            raise Deadline(f"step {self.name} did not finish in time: {_sentence(answer)}")
        if status in (400, 422) and self.passes_mistakes:
            raise BadInput(_sentence(answer))
        if status != 200:
            raise StepFailed(f"step {self.name} answered {status}: {_sentence(answer)}", retry_after=1)
        try:
            return json.loads(answer)
        except ValueError as error:
            raise StepFailed(f"step {self.name} answered something else than JSON at {self.url}") from error

    passes_mistakes = False
    """Whether what the step refuses is the caller's mistake: where it gets the caller's own words."""

    def close(self) -> None:
        """Close what is kept."""
        with self._lock:
            self._closed = True
            kept, self._idle = self._idle, []
        for connection in kept:
            connection.close()

    def _post(self, path: str, body: bytes, headers: Mapping[str, str], timeout: float) -> tuple[int, bytes]:
        begun = time.monotonic()
        with self._lock:
            kept = self._idle.pop() if self._idle else None
        if kept is not None:
            try:
                return self._exchange(kept, path, body, headers, timeout)
            except (http.client.RemoteDisconnected, ConnectionError):
                pass  # closed while it was idle; the request has no effect but its answer, so it is sent again
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        left = max(0.001, timeout - (time.monotonic() - begun))
        return self._exchange(kind(self._address, timeout=left), path, body, headers, left)

    def _exchange(
        self, connection: http.client.HTTPConnection, path: str, body: bytes, headers: Mapping[str, str], timeout: float
    ) -> tuple[int, bytes]:
        keep = False
        try:
            if connection.sock is not None:
                connection.sock.settimeout(timeout)
            connection.request("POST", (self._path + path) or "/", body, dict(headers))
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


class RemoteSearch(RemoteStep):
    """The retrieve function: it gets the caller's own question, and knows best what is wrong with it."""

    passes_mistakes = True


class RemoteEncoder(RemoteStep):
    """Vectors from ``URL/v1/embeddings``."""

    def __init__(self, url: str, model: str, timeout: float, router: str | None = None) -> None:
        super().__init__("embed", url, timeout, router, "EMBED_URL")
        self.model = model

    def encode(self, text: str, headers: Mapping[str, str], timeout: float | None = None) -> list[float]:
        """The vector of a text. ``headers`` go with the request."""
        return self.encode_all([text], headers, timeout)[0]

    def encode_all(
        self, texts: list[str], headers: Mapping[str, str], timeout: float | None = None
    ) -> list[list[float]]:
        """The vectors of some texts, in their order."""
        given: Any = texts[0] if len(texts) == 1 else texts
        data = {"model": self.model, "input": given, "encoding_format": "base64"}
        answer = self.call(data, headers, "/v1/embeddings", timeout)
        try:
            rows = [base64.b64decode(one["embedding"]) for one in answer["data"]]
            vectors: list[list[float]] = [np.frombuffer(raw, "<f4").tolist() for raw in rows]
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise StepFailed(f"step embed answered something else than an embedding at {self.url}") from error
        if len(vectors) != len(texts):
            raise StepFailed(f"step embed answered {len(vectors)} embeddings for {len(texts)} texts at {self.url}")
        return vectors


def _sentence(answer: bytes) -> str:
    try:
        error: Any = json.loads(answer)["error"]
        return str(error["message"] if isinstance(error, dict) else error)[:500]
    except (ValueError, KeyError, TypeError):
        return "no reason given"


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
