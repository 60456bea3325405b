"""Why replicas ended: counted, and told as Events of their Revision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from prometheus_client import CollectorRegistry, Counter

from relight.local.recording import Recorder
from relight.local.serving.replica import Reason, Replica
from relight.local.serving.types import RevisionKey

_AS_ASKED = frozenset({Reason.SCALED_DOWN, Reason.GAVE_WAY, Reason.SHUT_DOWN})
_SAID = {
    Reason.SCALED_DOWN: "drained, for it was not wanted any more",
    Reason.GAVE_WAY: "drained, for a newer revision needed its room",
    Reason.SHUT_DOWN: "drained, for the platform stops or its revision is gone",
    Reason.EVICTED: "drained, for its Pod was deleted",
    Reason.UNREACHABLE: "it took no connections and was replaced",
}


class Exits:
    """Told of each replica that is gone."""

    def __init__(self, registry: CollectorRegistry, recorder: Recorder) -> None:
        self._recorder = recorder
        self._count = Counter(
            "relight_replica_exits", "Replicas that ended, by reason", ["revision", "reason"], registry=registry
        )

    def record(self, revision: Mapping[str, Any] | None, key: RevisionKey, replica: Replica) -> None:
        """``revision``: None where it is gone too; then nobody asks for its Events."""
        reason = replica.reason or Reason.CRASHED
        self._count.labels(str(key), reason.value).inc()
        if revision is not None:
            kind: Literal["Normal", "Warning"] = "Normal" if reason in _AS_ASKED else "Warning"
            said = replica.message or _SAID.get(reason, "")
            self._recorder.record(revision, kind, reason.value, f"replica {replica.pod}: {said}")
