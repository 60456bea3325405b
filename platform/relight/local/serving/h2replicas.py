"""HTTP/2 connections to replicas: one for all clients, and another where a replica takes no more streams on it."""

from __future__ import annotations

import asyncio

from relight.base.tasks import Tasks
from relight.local.serving.h2link import Link
from relight.local.serving.types import Address


class ReplicaLink(Link):
    """A connection to one replica."""

    def __init__(self, address: Address, links: ReplicaLinks) -> None:
        super().__init__(client_side=True)
        self.address = address
        self._links = links

    def settled(self) -> None:
        if self.closing and not self.streams:
            self.close()

    def closed(self) -> None:
        self._links.forget(self)


class ReplicaLinks:
    """Open connections by replica. A replica that ends closes its own: there is nothing to look after."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._links: dict[Address, list[ReplicaLink]] = {}
        self._opening: dict[Address, asyncio.Task[ReplicaLink | OSError]] = {}

    def take(self, address: Address) -> ReplicaLink | None:
        """A connection with room for one more stream; None: open one."""
        return next((link for link in self._links.get(address, ()) if link.room), None)

    async def open(self, address: Address) -> ReplicaLink:
        """A new connection. All that ask while it is being opened get the same. OSError where nobody listens."""
        task = self._opening.get(address)
        if task is None:
            task = self._opening[address] = self._tasks.spawn(self._open(address), f"h2-open-{address.port}")
            task.add_done_callback(lambda _: self._opening.pop(address, None))
        opened = await asyncio.shield(task)
        if isinstance(opened, OSError):
            raise opened
        return opened

    async def _open(self, address: Address) -> ReplicaLink | OSError:
        link = ReplicaLink(address, self)
        try:
            await asyncio.get_running_loop().create_connection(lambda: link, address.host, address.port)
        except OSError as error:
            return error
        if not link.closing:
            self._links.setdefault(address, []).append(link)
        return link

    def forget(self, link: ReplicaLink) -> None:
        """It is closed."""
        links = self._links.get(link.address, [])
        if link in links:
            links.remove(link)
            if not links:
                del self._links[link.address]

    def buffered(self) -> int:
        """Bytes kept for all replicas."""
        return sum(link.buffered() for links in self._links.values() for link in links)

    def close(self) -> None:
        for links in list(self._links.values()):
            for link in list(links):
                link.abort()

    def __len__(self) -> int:
        return sum(map(len, self._links.values()))
