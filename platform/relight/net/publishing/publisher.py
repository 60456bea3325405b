"""What all publishers share: one connection, made when it is first needed and anew after a failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from relight.base.errors import NotReady, PlatformError, RelightError
from relight.wire.cloudevents import Event

log = logging.getLogger("relight.publishing")

TIMEOUT = 15.0
"""Seconds for a broker to take an event, connecting included."""


class Link(Protocol):
    """One connection to a broker. Whatever it raises ends it, except errors of relight: these are about the event."""

    async def open(self) -> None: ...

    async def send(self, event: Event) -> None:
        """Returns once the broker has confirmed the event. BadInput for one that it will never take."""
        ...

    async def close(self) -> None: ...


class Publisher:
    """Publishes events over links that ``make`` makes. ``where`` is what people read: no password stands in it."""

    def __init__(self, make: Callable[[], Link], where: str, timeout: float = TIMEOUT) -> None:
        self.where = where
        self._make = make
        self.timeout = timeout
        self._link: Link | None = None
        self._opening = asyncio.Lock()

    async def publish(self, event: Event) -> None:
        """Returns once the broker has the event. NotReady while it cannot be reached, BadInput if it is refused."""
        link: Link | None = None
        try:
            async with asyncio.timeout(self.timeout):
                link = await self._opened()
                await link.send(event)
        except RelightError:
            raise
        except TimeoutError as error:
            await self._drop(link)
            raise NotReady(f"{self.where} did not answer within {self.timeout:g} s", retry_after=1.0) from error
        except Exception as error:
            await self._drop(link)
            raise NotReady(f"{self.where}: {type(error).__name__}: {error}"[:300], retry_after=1.0) from error

    async def close(self) -> None:
        """Let go of the connection. Idempotent; another publish makes a new one."""
        await self._drop(self._link)

    async def _opened(self) -> Link:
        async with self._opening:
            if self._link is None:
                link = self._make()
                try:
                    await link.open()
                except BaseException:
                    await _close(link)
                    raise
                self._link = link
            return self._link

    async def _drop(self, link: Link | None) -> None:
        """Several may see the same link fail: it is closed once, and a newer one is left alone."""
        if link is not None and link is self._link:
            self._link = None
            await _close(link)


async def _close(link: Link) -> None:
    try:
        async with asyncio.timeout(TIMEOUT):
            await link.close()
    except Exception as error:
        log.debug("link.close_failed error=%r: it is gone all the same", error)


def missing(package: str) -> PlatformError:
    """The error for a client library that is not installed."""
    return PlatformError(f"{package} is not installed: pip install 'relight[brokers]'")
