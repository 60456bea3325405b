"""The policy in a thread of its own: beside local mode in ``relight up``, or as all that a Deployment's pod does."""

from __future__ import annotations

import logging
import threading
import time

from relight.base.errors import RelightError
from relight.net.kube import Kube
from relight.warm.keeper import Keeper
from relight.warm.settings import WarmSettings
from relight.warm.sources import Source
from relight.wire import cloudevents
from relight.wire.cloudevents import Event

log = logging.getLogger("relight.warm")

PING_TIMEOUT = 120.0
"""Seconds; a pre-warm event is answered when the model is loaded."""
MOST_PINGS = 32
"""Pre-warm events on their way at once; further ones are left out and told."""
AFTER_FAILURE = 5.0


class Pinger:
    """Sends pre-warm events, each in a thread, not more than ``MOST_PINGS`` at once."""

    def __init__(self) -> None:
        self._free = threading.BoundedSemaphore(MOST_PINGS)

    def __call__(self, url: str, event: Event) -> None:
        if not self._free.acquire(blocking=False):
            log.warning("warm.unsent url=%s: %d pre-warm events are on their way already", url, MOST_PINGS)
            return
        threading.Thread(target=self._send, args=(url, event), name="warm-ping", daemon=True).start()

    def _send(self, url: str, event: Event) -> None:
        import urllib3

        headers, body = cloudevents.encode_binary(event)
        pool = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(PING_TIMEOUT))
        try:
            response = pool.request("POST", url, body=body, headers=dict(headers))
            log.info("warm.pinged url=%s status=%d", url, response.status)
        except urllib3.exceptions.HTTPError as error:
            log.warning("warm.unanswered url=%s error=%s: the next call waits for its start", url, error)
        finally:
            pool.clear()
            self._free.release()


class Running:
    """``start``, then ``stop``; in between looks are made, whatever fails."""

    def __init__(self, kube: Kube, source: Source, settings: WarmSettings) -> None:
        self._settings = settings
        self._keeper = Keeper(kube, source, settings, Pinger())
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self.run, name="warm", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def run(self) -> None:
        """Look until ``stop``."""
        while not self._ended.is_set():
            pause = self._settings.interval
            try:
                self._keeper.step(time.time())
            except RelightError as error:
                log.warning("warm.failed error=%s: the next look is in %.0f s", error, AFTER_FAILURE)
                pause = AFTER_FAILURE
            except Exception:
                log.exception("warm.failed: the next look is in %.0f s", AFTER_FAILURE)
                pause = AFTER_FAILURE
            self._ended.wait(pause)

    def stop(self, timeout: float = 10.0) -> bool:
        """End the looks, and give users their values back; whether that was done. Idempotent."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        try:
            if not self._thread.is_alive():
                return self._keeper.end()
            error: object = "a look does not end"
        except RelightError as failure:
            error = failure
        log.warning("warm.unrestored error=%s: relight warm off does it later", error)
        return False
