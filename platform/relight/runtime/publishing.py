"""What a step publishes to a message broker, from its own threads."""

from __future__ import annotations

import asyncio
import threading

from relight.base.errors import BadInput, Deadline
from relight.wire.cloudevents import Event

MARGIN = 5.0
"""Seconds beyond the publisher's own limit until a caller is let go."""


class EventPublisher:
    """Publishes events to the topic that a URL names (``relight.net.publishing.urls``); for any number of threads.

    The connection is made with the first event and anew after a failure. What cannot be published is a NotReady, which
    the broker that delivered the event tries again; what the topic never takes is a BadInput.
    """

    def __init__(self, url: str) -> None:
        # No function that publishes nothing pays for the import.
        from relight.net.publishing import urls

        self._publisher = urls.publisher(url)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def publish(self, event: Event | None) -> None:
        """Returns once the broker has confirmed the event. BadInput for none: plain requests bring none to a step."""
        if event is None:
            raise BadInput("a CloudEvent was expected, to publish it; the request brought none")
        future = asyncio.run_coroutine_threadsafe(self._publisher.publish(event), self._started())
        try:
            future.result(self._publisher.timeout + MARGIN)
        except TimeoutError as error:
            future.cancel()
            raise Deadline(f"{self._publisher.where} did not take the event in time") from error

    def close(self) -> None:
        """Let go of the connection and the thread. Idempotent."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._publisher.close(), loop).result(MARGIN)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(MARGIN)
        loop.close()

    def _started(self) -> asyncio.AbstractEventLoop:
        """The loop; it starts with the first event, so that none is there before a fork."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="publisher", daemon=True)
                self._thread.start()
            return self._loop
