"""What every reconciler of eventing works with, and what a reconciler is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from relight.local.eventing.addressing import Address, Addresses
from relight.local.eventing.catalogue import Validation
from relight.local.eventing.dispatch import Dispatcher
from relight.local.eventing.log import EventLog
from relight.local.eventing.outlets import Outlets
from relight.local.eventing.triggers import Table
from relight.local.kube.kinds import Kind
from relight.local.kube.store import ObjectStore, timestamp
from relight.local.recording import Recorder

Object = dict[str, Any]


@dataclass(frozen=True)
class World:
    """The parts of eventing, and the store that tells what is wanted."""

    store: ObjectStore
    log: EventLog
    table: Table
    dispatcher: Dispatcher
    addresses: Addresses
    outlets: Outlets
    validation: Validation
    recorder: Recorder
    hub_url: Callable[[str, str], str]
    """(namespace, hub) → where events for it are posted."""
    now: Callable[[], float]
    """Seconds since 1970."""

    def stamp(self) -> str:
        return timestamp(self.now())

    def address(self, namespace: str, destination: Mapping[str, Any] | None) -> Address | None:
        """Where a destination is; None where none is given."""
        return self.addresses.find(namespace, destination) if destination else None


class Reconciler(Protocol):
    """Makes what is there follow what some kinds of objects say."""

    @property
    def kinds(self) -> tuple[Kind, ...]: ...

    async def look(self, kind: Kind, namespace: str, name: str, obj: Object | None) -> None:
        """An object may have changed, or something that it refers to; None: it is gone."""
        ...

    async def stop(self) -> None:
        """Let go of what goes on by itself. Idempotent."""
        ...


class Uids:
    """The uid under which each object was last seen, so that one that was deleted, or made anew, can be let go."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], str] = {}

    def replaced(self, kind: Kind, namespace: str, name: str, obj: Object | None) -> str | None:
        """The uid that is no more; None where nothing was there before, or the same still is."""
        key = (kind.kind, namespace, name)
        known = self._known.pop(key, None)
        if obj is not None:
            self._known[key] = obj["metadata"]["uid"]
        return None if obj is not None and known == obj["metadata"]["uid"] else known


class Follower:
    """A reconciler of objects that nothing goes on for by itself."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._uids = Uids()

    async def stop(self) -> None:
        """Nothing goes on by itself."""
