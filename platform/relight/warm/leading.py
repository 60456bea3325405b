"""Who acts, of several: the holder of a Lease (``coordination.k8s.io``), which runs out where it is not renewed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from relight.base.errors import Conflict, NotFound
from relight.net.kube import Kube

API, KIND = "coordination.k8s.io/v1", "Lease"
NAME = "relight-warm"


class Leadership:
    """One that would hold the Lease. ``identity`` must differ between those who would."""

    def __init__(self, kube: Kube, namespace: str, identity: str, seconds: float) -> None:
        self._kube = kube
        self._namespace = namespace
        self._identity = identity
        self._seconds = seconds
        self._renewed = float("-inf")
        self._held = False

    def hold(self, now: float) -> bool:
        """Take or renew it; whether it is held now. Renewed when a third of its time is over, not at each look."""
        if self._held and 0 <= now - self._renewed < self._seconds / 3:
            return True
        self._held = self._try(now)
        if self._held:
            self._renewed = now
        return self._held

    def _try(self, now: float) -> bool:
        try:
            lease = self._kube.get(API, KIND, NAME, self._namespace)
        except NotFound:
            lease = {"apiVersion": API, "kind": KIND, "metadata": {"name": NAME, "namespace": self._namespace}}
            try:
                self._kube.create({**lease, "spec": self._spec({}, now)})
            except Conflict:
                return False
            return True
        spec = lease.get("spec") or {}
        if spec.get("holderIdentity") not in (self._identity, "", None) and not expired(spec, now):
            return False
        try:
            self._kube.replace({"apiVersion": API, "kind": KIND, **lease, "spec": self._spec(spec, now)})
        except Conflict:
            return False
        return True

    def give_up(self) -> None:
        """Let somebody else have it at once."""
        if not self._held:
            return
        self._held = False
        try:
            lease = self._kube.get(API, KIND, NAME, self._namespace)
            if (lease.get("spec") or {}).get("holderIdentity") == self._identity:
                lease["spec"]["holderIdentity"] = ""
                self._kube.replace({"apiVersion": API, "kind": KIND, **lease})
        except (Conflict, NotFound):
            return

    def _spec(self, before: dict[str, Any], now: float) -> dict[str, Any]:
        same = before.get("holderIdentity") == self._identity
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._seconds)),
            "acquireTime": before["acquireTime"] if same and "acquireTime" in before else stamp(now),
            "renewTime": stamp(now),
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (0 if same or not before else 1),
        }


def expired(spec: dict[str, Any], now: float) -> bool:
    """Whether a Lease's holder has not been heard of for as long as it said it would be."""
    try:
        renewed = datetime.fromisoformat(str(spec.get("renewTime")).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return True
    return not spec.get("holderIdentity") or now - renewed > float(spec.get("leaseDurationSeconds") or 15)


def stamp(now: float) -> str:
    """A moment as Leases have it: RFC 3339 with microseconds."""
    return datetime.fromtimestamp(now, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
