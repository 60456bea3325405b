"""Dedup among the replicas of a function: who runs an event, and its answer, stand in Redis.

Before a run a replica claims the event, and keeps the claim up while it works. Another replica that gets the event
meanwhile waits for the answer; one that gets it later reads the answer. A replica that was killed lets its claim run
out, and the event is run again. A Redis that cannot be reached never holds an event up: then each replica knows its own
answers alone, and the log says so.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import msgspec

from relight.base.errors import BadInput, NotReady
from relight.runtime.dedup import Dedup, Key
from relight.runtime.workers import Workers
from relight.wire.http import Response

log = logging.getLogger("relight.dedup")

LEASE = 15.0
"""Seconds that a claim holds without being renewed: so long an event waits after its replica was killed."""
WAIT = 600.0
"""Seconds that a replica waits for the answer of another; then the caller is asked to come again."""
PATIENCE = 1.0
"""Seconds for Redis to answer."""
AWAY = 5.0
"""Seconds until a Redis that failed is asked again."""
THREADS = 8
QUEUE = 1000

_RUNNING = b"run:"
_ANSWER = msgspec.msgpack.Decoder(tuple[int, tuple[tuple[str, str], ...], bytes])
_RENEW = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0"
_RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


class Answers:
    """What stands in Redis. ``function`` keeps functions apart; ``ttl`` in seconds."""

    def __init__(self, url: str, function: str, ttl: float, *, lease: float = LEASE) -> None:
        try:
            import redis
        except ImportError:
            raise BadInput("RELIGHT_DEDUP_REDIS needs another package: pip install 'relight[brokers]'") from None
        self._redis: Any = redis.Redis.from_url(
            url, protocol=2, socket_timeout=PATIENCE + 2.0, socket_connect_timeout=PATIENCE
        )
        self._function = function
        self._ttl = int(ttl * 1000)
        self._lease = int(lease * 1000)

    def claim(self, key: Key) -> bytes | Response | None:
        """A claim to run the event; or its answer; or None: another replica runs it."""
        name, claim = self._name(key), _RUNNING + secrets.token_hex(8).encode()
        if self._redis.set(name, claim, nx=True, px=self._lease):
            return claim
        found = self._redis.get(name)
        if found is None or found.startswith(_RUNNING):
            return None
        status, headers, body = _ANSWER.decode(found)
        return Response(status, headers, body)

    def renew(self, key: Key, claim: bytes) -> None:
        self._redis.eval(_RENEW, 1, self._name(key), claim, self._lease)

    def keep(self, key: Key, answer: Response) -> None:
        """The answer takes the claim's place, and whoever waits is woken."""
        found = msgspec.msgpack.encode((answer.status, answer.headers, answer.body))
        self._redis.set(self._name(key), found, px=self._ttl)
        self._wake(key)

    def release(self, key: Key, claim: bytes) -> None:
        """The run failed: whoever waits may try."""
        self._redis.eval(_RELEASE, 1, self._name(key), claim)
        self._wake(key)

    def await_end(self, key: Key, seconds: float) -> None:
        """Returns when a run of the event has ended, or after a while."""
        self._redis.xread({f"{self._name(key)}:ended": "$"}, count=1, block=max(1, int(seconds * 1000)))

    def close(self) -> None:
        self._redis.close()

    def _name(self, key: Key) -> str:
        return f"relight:dedup:{self._function}:{hashlib.blake2b(repr(key).encode(), digest_size=16).hexdigest()}"

    def _wake(self, key: Key) -> None:
        ended = f"{self._name(key)}:ended"
        self._redis.xadd(ended, {"ended": "1"}, maxlen=1)
        self._redis.pexpire(ended, self._lease)


class SharedDedup:
    """``Dedup`` in front of what the replicas share. ``stop`` ends its threads."""

    def __init__(self, memory: Dedup, answers: Answers, *, on_replay: Callable[[], None] = lambda: None) -> None:
        self._memory = memory
        self._answers = answers
        self._on_replay = on_replay
        self._workers = Workers("dedup", THREADS, QUEUE)
        self._claims: dict[Key, bytes] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._away_until = float("-inf")
        self._renewing = threading.Thread(target=self._renew, name="dedup-renew", daemon=True)
        self._renewing.start()

    def __len__(self) -> int:
        return len(self._memory)

    def submit(self, key: Key, start: Callable[[], Future[Response]]) -> Future[Response]:
        """As ``Dedup.submit``; what this process does not know is looked up first."""
        return self._memory.submit(key, lambda: self._begin(key, start))

    def stop(self, timeout: float) -> None:
        self._stopped.set()
        self._workers.stop(timeout)
        self._renewing.join(timeout)
        self._answers.close()

    def _begin(self, key: Key, start: Callable[[], Future[Response]]) -> Future[Response]:
        outcome: Future[Response] = Future()

        def work() -> None:
            if not outcome.set_running_or_notify_cancel():
                return
            try:
                found = self._claimed(key)
                if isinstance(found, Response):
                    self._on_replay()
                    outcome.set_result(found)
                else:
                    start().add_done_callback(lambda run: self._ended(key, found, run, outcome))
            except Exception as error:
                self._drop(key)
                outcome.set_exception(error)

        self._workers.submit(work)
        return outcome

    def _claimed(self, key: Key) -> bytes | Response | None:
        """A claim, or the answer; None: Redis is away. NotReady if another replica works for too long."""
        deadline = time.monotonic() + WAIT
        while time.monotonic() >= self._away_until:
            try:
                found = self._answers.claim(key)
                if found is None:
                    if time.monotonic() > deadline or self._stopped.is_set():
                        raise NotReady("another replica works on this event still", retry_after=1.0)
                    self._answers.await_end(key, PATIENCE)
                    continue
            except NotReady:
                raise
            except Exception as error:
                self._away(error)
                return None
            if isinstance(found, bytes):
                with self._lock:
                    self._claims[key] = found
            return found
        return None

    def _ended(self, key: Key, claim: bytes | None, run: Future[Response], outcome: Future[Response]) -> None:
        error = NotReady("the run was cancelled", retry_after=1.0) if run.cancelled() else run.exception()
        self._drop(key)
        if claim is not None:
            try:
                if error is None and run.result().status < 300:
                    # Before anybody hears it: after a kill in between, no other replica gives another answer.
                    self._answers.keep(key, run.result())
                else:
                    self._answers.release(key, claim)
            except Exception as failure:
                self._away(failure)
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(run.result())

    def _drop(self, key: Key) -> None:
        with self._lock:
            self._claims.pop(key, None)

    def _away(self, error: Exception) -> None:
        self._away_until = time.monotonic() + AWAY
        log.warning("dedup.redis_failed error=%r: replicas do not know of each other's answers for %g s", error, AWAY)

    def _renew(self) -> None:
        """Keep up the claims of what is under way."""
        while not self._stopped.wait(LEASE / 3):
            with self._lock:
                claims = list(self._claims.items())
            try:
                for key, claim in claims:
                    self._answers.renew(key, claim)
            except Exception as error:
                self._away(error)
