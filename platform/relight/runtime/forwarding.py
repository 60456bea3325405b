"""Models that have a function of their own, asked for at the front door: answered here while that function wakes.

The front door is warm and can load any model; the model's own function is better at it (its own scale, its own
machine) but may be at zero. Where a setting names that function, a call finds one of two things. It has answered
lately, so it still runs: the call is passed on. Or nobody knows: the call is answered here, and the function is woken
by a question behind it, whose answer makes it the one that later calls go to.

Whether a function is at zero is not asked of the cluster: Knative keeps a replica for its window (a minute, if nobody
said otherwise) after the last request, so one that answered within ``seconds`` still runs. Where that is wrong, the
call waits for a cold start, which is all that can happen.
"""

from __future__ import annotations

import http.client
import logging
import threading
import time
from collections.abc import Callable, Mapping
from urllib.parse import quote, urlsplit

from prometheus_client import CollectorRegistry, Counter

from relight.base.errors import Overloaded, RelightError
from relight.runtime.pending import Waiting, chained
from relight.runtime.workers import Workers
from relight.wire.http import Request, Response

log = logging.getLogger("relight.forwarding")

THREADS = 16
"""Calls that are passed on at once; each waits for its answer in a thread."""
TIMEOUT = 300.0
"""Seconds for one call, and for a function to wake: Knative's own limit, if nobody said otherwise."""
_HOP = {"connection", "keep-alive", "proxy-authenticate", "te", "trailer", "transfer-encoding", "upgrade", "expect"}
_OURS = {*_HOP, "host", "content-length", "content-encoding"}
"""Not passed on of a request: its body is here as it was before a content coding packed it."""
_THEIRS = {*_HOP, "content-length", "x-request-id", "date", "server"}
_AWAY = (502, 503, 504)
"""Statuses that say nothing about the request: it is answered here instead."""


class Own:
    """One model's own function, from any thread."""

    def __init__(self, model: str, url: str, router: str | None) -> None:
        parts = urlsplit(url)
        self.model = model
        self._secure = parts.scheme == "https"
        self._host = parts.netloc.rpartition("@")[2]
        self._prefix = parts.path.rstrip("/")
        cluster = (parts.hostname or "").endswith(".svc.cluster.local")
        self._address = router if router and cluster else self._host
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._closed = False
        self.up_until = 0.0
        self.waking = False

    def call(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Response:
        """Its answer. OSError and HTTPException where there is none."""
        fields = {**headers, "Host": self._host}
        with self._lock:
            kept = self._idle.pop() if self._idle else None
        if kept is not None:
            try:
                return self._exchange(kept, method, path, fields, body)
            except TimeoutError:
                raise
            except (OSError, http.client.HTTPException):
                pass  # it was closed while nobody used it; an inference may be asked for again
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return self._exchange(kind(self._address, timeout=TIMEOUT), method, path, fields, body)

    def close(self) -> None:
        """Close what is kept, and keep nothing more."""
        with self._lock:
            self._closed = True
            kept, self._idle = self._idle, []
        for connection in kept:
            connection.close()

    def _exchange(
        self, connection: http.client.HTTPConnection, method: str, path: str, fields: dict[str, str], body: bytes
    ) -> Response:
        try:
            connection.request(method, self._prefix + path, body or None, fields)
            answer = connection.getresponse()
            data = answer.read()
        except BaseException:
            connection.close()
            raise
        with self._lock:
            keep = not (answer.will_close or self._closed)
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()
        found = tuple((name.lower(), value) for name, value in answer.getheaders() if name.lower() not in _THEIRS)
        return Response(answer.status, found, data)


class Forwarding:
    """Decides and passes on. ``seconds``: for how long a function counts as running after it has answered."""

    def __init__(
        self,
        functions: Mapping[str, str],
        seconds: float,
        *,
        router: str | None = None,
        queue_limit: int = 256,
        registry: CollectorRegistry | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own = {model: Own(model, url, router) for model, url in functions.items()}
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._workers = Workers("forward", THREADS, queue_limit)
        self._answers = Counter(
            "relight_front_door_answers",
            "Requests for models that have a function of their own, by who answered",
            ["model", "by"],
            registry=registry,
        )

    def take(self, model: str, request: Request, here: Callable[[], Response | Waiting]) -> Response | Waiting:
        """The answer of whoever answers; ``here`` is how it is answered here."""
        own = self._own.get(model)
        if own is None or request.form is not None:
            return here()
        with self._lock:
            running = self._clock() < own.up_until
            wake = not running and not own.waking
            own.waking |= wake
        if running:
            try:
                first = self._workers.submit(lambda: self._pass_on(own, request))
            except Overloaded:
                return self._here(own, here)
            return chained(first, lambda answer: answer or self._here(own, here), lambda answer: None)
        if wake:
            threading.Thread(target=self._wake, args=(own,), name=f"wake-{model}", daemon=True).start()
        return self._here(own, here)

    def stop(self, timeout: float) -> None:
        self._workers.stop(timeout)
        for own in self._own.values():
            own.close()

    def _here(self, own: Own, here: Callable[[], Response | Waiting]) -> Response | Waiting:
        self._answers.labels(own.model, "front door").inc()
        return here()

    def _pass_on(self, own: Own, request: Request) -> Response | None:
        """Its answer; None where it has none, and the request is answered here."""
        headers = {name: value for name, value in request.headers if name not in _OURS}
        target = quote(request.path) + (f"?{request.query}" if request.query else "")
        try:
            answer = own.call(request.method, target, headers, request.body)
        except (OSError, http.client.HTTPException) as error:
            log.warning("forward.failed model=%s error=%r: it is answered here", own.model, error)
            own.up_until = 0.0
            return None
        if answer.status in _AWAY:
            log.warning("forward.refused model=%s status=%d: it is answered here", own.model, answer.status)
            own.up_until = 0.0
            return None
        own.up_until = self._clock() + self._seconds
        self._answers.labels(own.model, "own function").inc()
        return answer

    def _wake(self, own: Own) -> None:
        """Ask it whether it is ready: the question waits until it is."""
        try:
            answer = own.call("GET", f"/v2/models/{quote(own.model)}/ready", {}, b"")
            if answer.status == 200:
                own.up_until = self._clock() + self._seconds
            else:
                log.warning("forward.not_woken model=%s status=%d: it is asked again", own.model, answer.status)
        except (OSError, http.client.HTTPException, RelightError) as error:
            log.warning("forward.not_woken model=%s error=%r: it is asked again", own.model, error)
        finally:
            own.waking = False
