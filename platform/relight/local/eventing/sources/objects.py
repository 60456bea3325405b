"""The reconciler of sources: one running feed per object, and its status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from relight.base.errors import BadInput, Problem
from relight.local.eventing import statuses
from relight.local.eventing.secrets import Secrets, StoredSecrets
from relight.local.eventing.sources.feeding import Feed, Feeders, Line
from relight.local.eventing.world import Object, Uids, World
from relight.local.kube.kinds import Kind


@dataclass(frozen=True)
class Plan:
    """What an object asks for, checked: equal plans are the same feed."""

    attributes: tuple[tuple[str, str], ...]
    """(type, source) of the events, for the status."""
    settings: Any
    extensions: Mapping[str, str]


class SourceKind(Protocol):
    """One kind of source."""

    kind: Kind

    def plan(self, obj: Object, secrets: Secrets) -> Plan:
        """From an object. BadInput names every wrong field."""
        ...

    def feed(self, plan: Plan) -> Feed: ...


class Sources:
    """See the module."""

    def __init__(self, world: World, feeders: Feeders, of: Iterable[SourceKind]) -> None:
        self._world = world
        self._feeders = feeders
        self._by_kind = {one.kind: one for one in of}
        self.kinds: tuple[Kind, ...] = tuple(self._by_kind)
        self._uids = Uids()

    async def look(self, kind: Kind, namespace: str, name: str, obj: Object | None) -> None:
        world, source = self._world, self._by_kind[kind]
        gone = self._uids.replaced(kind, namespace, name, obj)
        if gone is not None:
            await self._feeders.forget(gone)
            await world.outlets.close(gone, namespace)
        if obj is None:
            return
        uid, spec = obj["metadata"]["uid"], obj.get("spec") or {}
        problem: str | None = None
        attributes: Sequence[tuple[str, str]] = ()
        # Whatever else is wrong: what was taken before goes on to where it was to go.
        hub = await world.outlets.open(uid, namespace, f"{name} ({kind.kind})", spec.get("sink") or {})
        try:
            plan = source.plan(obj, StoredSecrets(world.store, namespace))
            attributes = plan.attributes
            line = Line(uid, namespace, name, plan.settings, hub, plan.extensions)
            told = plan.attributes
            await self._feeders.run(
                line, lambda: source.feed(plan), lambda: self._tell(kind, namespace, name, None, told)
            )
        except BadInput as error:
            problem = error.message
            await self._feeders.end(uid)
        self._tell(kind, namespace, name, problem, attributes)

    async def stop(self) -> None:
        await self._feeders.stop()

    def _tell(
        self, kind: Kind, namespace: str, name: str, problem: str | None, attributes: Sequence[tuple[str, str]]
    ) -> None:
        world = self._world
        obj = world.store.get(kind, namespace, name)
        if obj is None:
            return
        address = world.addresses.find(namespace, (obj.get("spec") or {}).get("sink") or {})
        state = self._feeders.state(obj["metadata"]["uid"])
        status = statuses.of_source(obj, address, problem, attributes, world.stamp(), state)
        world.store.set_status(kind, namespace, name, status)


def needed(spec: Mapping[str, Any], *names: str) -> list[Problem]:
    """A problem for each field that is not there."""
    return [Problem(f"spec.{name}", "it is missing") for name in names if not spec.get(name)]


def overrides(spec: Mapping[str, Any]) -> dict[str, str]:
    """The extensions of ``spec.ceOverrides``."""
    given = (spec.get("ceOverrides") or {}).get("extensions") or {}
    return {str(name): str(value) for name, value in given.items()}
