"""Sequences and Parallels: made of channels and Subscriptions, by the names and with the statuses of Knative's own.

What a flow consists of is planned from the object alone; the reconciler makes the store's objects so. They belong to
the flow, and go with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from relight.local.conditions import Condition
from relight.local.eventing import statuses
from relight.local.eventing.naming import CHANNELS
from relight.local.eventing.world import Object, World
from relight.local.kube import kinds
from relight.local.kube.kinds import Kind

_DEFAULT_TEMPLATE: Object = {"apiVersion": "messaging.knative.dev/v1", "kind": "InMemoryChannel"}


@dataclass(frozen=True)
class Plan:
    """The objects that a flow consists of, in order. The first channel is where events enter."""

    channels: tuple[Object, ...]
    subscriptions: tuple[Object, ...]


class _Parts:
    """Makes the objects of one flow."""

    def __init__(self, flow: Object) -> None:
        self._flow = flow
        self._template: Object = (flow.get("spec") or {}).get("channelTemplate") or _DEFAULT_TEMPLATE

    def channel(self, name: str) -> Object:
        template = self._template
        return {
            "apiVersion": template.get("apiVersion"),
            "kind": template.get("kind"),
            "metadata": self._metadata(name),
            "spec": dict(template.get("spec") or {}),
        }

    def reference(self, name: str) -> dict[str, Any]:
        template = self._template
        return {"apiVersion": template.get("apiVersion"), "kind": template.get("kind"), "name": name}

    def subscription(
        self,
        name: str,
        channel: str,
        subscriber: Mapping[str, Any] | None,
        reply: Mapping[str, Any] | None,
        delivery: Mapping[str, Any] | None,
    ) -> Object:
        spec: Object = {"channel": self.reference(channel)}
        for field, value in (("subscriber", subscriber), ("reply", reply), ("delivery", delivery)):
            if value:
                spec[field] = dict(value)
        return {
            "apiVersion": kinds.SUBSCRIPTION.api_version,
            "kind": kinds.SUBSCRIPTION.kind,
            "metadata": self._metadata(name),
            "spec": spec,
        }

    def destination(self, channel: str) -> dict[str, Any]:
        return {"ref": {**self.reference(channel), "namespace": self._flow["metadata"]["namespace"]}}

    def _metadata(self, name: str) -> Object:
        flow = self._flow
        owner = {
            "apiVersion": flow["apiVersion"],
            "kind": flow["kind"],
            "name": flow["metadata"]["name"],
            "uid": flow["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        return {"name": name, "namespace": flow["metadata"]["namespace"], "ownerReferences": [owner]}


def plan_sequence(flow: Object) -> Plan:
    """A channel before every step, and a Subscription from each to the step, whose reply goes to the next channel."""
    parts, spec, base = _Parts(flow), flow.get("spec") or {}, f"{flow['metadata']['name']}-kn-sequence"
    steps = spec.get("steps") or []
    channels, subscriptions = [], []
    for at, step in enumerate(steps):
        name = f"{base}-{at}"
        channels.append(parts.channel(name))
        reply = parts.destination(f"{base}-{at + 1}") if at + 1 < len(steps) else spec.get("reply")
        subscriptions.append(parts.subscription(name, name, _destination(step), reply, step.get("delivery")))
    return Plan(tuple(channels), tuple(subscriptions))


def plan_parallel(flow: Object) -> Plan:
    """One channel in front, and per branch a filter whose reply enters the branch's channel, and the branch's step.

    Subscriptions come in pairs: the filter's, then the step's. A branch without a filter gets every event.
    """
    parts, spec, base = _Parts(flow), flow.get("spec") or {}, f"{flow['metadata']['name']}-kn-parallel"
    channels, subscriptions = [parts.channel(base)], []
    for at, branch in enumerate(spec.get("branches") or []):
        name = f"{base}-{at}"
        channels.append(parts.channel(name))
        reply = branch.get("reply") or spec.get("reply")
        subscriptions += [
            parts.subscription(f"{base}-filter-{at}", base, branch.get("filter"), parts.destination(name), None),
            parts.subscription(name, name, branch.get("subscriber"), reply, branch.get("delivery")),
        ]
    return Plan(tuple(channels), tuple(subscriptions))


def _destination(step: Mapping[str, Any]) -> dict[str, Any]:
    return {field: step[field] for field in ("ref", "uri") if step.get(field)}


class Flows:
    kinds = (kinds.SEQUENCE, kinds.PARALLEL)

    def __init__(self, world: World) -> None:
        self._world = world

    async def look(self, kind: Kind, namespace: str, name: str, obj: Object | None) -> None:
        if obj is None:
            return  # what belonged to it went with it
        plan = (plan_sequence if kind == kinds.SEQUENCE else plan_parallel)(obj)
        problem = self._problem(plan)
        if problem is None:
            self._make(obj, plan)
        channels = [self._present(one) for one in plan.channels]
        subscriptions = [self._present(one) for one in plan.subscriptions]
        status = (statuses.of_sequence if kind == kinds.SEQUENCE else statuses.of_parallel)(
            obj, channels, subscriptions, problem, self._world.stamp()
        )
        self._world.store.set_status(kind, namespace, name, status)

    def _problem(self, plan: Plan) -> Condition | None:
        for channel in plan.channels:
            kind = _kind(channel)
            if kind is None or kind not in CHANNELS:
                what = f"spec.channelTemplate: {channel['apiVersion']} {channel['kind']} is no channel here"
                return Condition("ChannelsReady", "False", "InvalidChannelTemplate", what)
        return None

    def _make(self, flow: Object, plan: Plan) -> None:
        """Make the planned objects, change those that differ, delete those that are not in the plan any more."""
        store, uid = self._world.store, flow["metadata"]["uid"]
        namespace = flow["metadata"]["namespace"]
        wanted = {(one["kind"], one["metadata"]["name"]) for one in (*plan.channels, *plan.subscriptions)}
        for kind in (kinds.SUBSCRIPTION, *CHANNELS):
            for old in store.list(kind, namespace)[0]:
                if _is_owned(old, uid) and (kind.kind, old["metadata"]["name"]) not in wanted:
                    store.delete(kind, namespace, old["metadata"]["name"])
        for one in (*plan.channels, *plan.subscriptions):
            kind = kinds.by_kind(one["apiVersion"], one["kind"]) or kinds.SUBSCRIPTION
            there = store.get(kind, namespace, one["metadata"]["name"])
            if there is None:
                store.create(kind, one)
            elif _is_owned(there, uid) and there.get("spec") != one["spec"]:
                store.update(kind, {**there, "spec": one["spec"]})

    def _present(self, planned: Object) -> Object:
        kind = _kind(planned)
        there = None
        if kind is not None:
            there = self._world.store.get(kind, planned["metadata"]["namespace"], planned["metadata"]["name"])
        return there or planned

    async def stop(self) -> None:
        """Nothing goes on by itself."""


def _kind(obj: Object) -> Kind | None:
    return kinds.by_kind(str(obj.get("apiVersion")), str(obj.get("kind")))


def _is_owned(obj: Object, uid: str) -> bool:
    owners: Iterable[Mapping[str, Any]] = obj["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid for owner in owners)
