"""The probes of a pod spec as values. ``probing`` makes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Probe:
    """One probe. Times in seconds; the defaults are Kubernetes'."""

    http: Mapping[str, Any] | None = None
    tcp: Mapping[str, Any] | None = None
    command: tuple[str, ...] = ()
    delay: float = 0.0
    """After the replica has said that it is ready."""
    period: float = 10.0
    timeout: float = 1.0
    successes: int = 1
    failures: int = 3
    """In a row, until it counts."""

    @classmethod
    def of(cls, said: Mapping[str, Any] | None) -> Probe | None:
        """A probe of a pod spec; None where there is none, or where it asks only for what is known already."""
        if not said:
            return None
        tcp = said.get("tcpSocket") or said.get("grpc")  # gRPC's health service is not asked, only its port
        if tcp is not None and not tcp.get("port"):
            return None
        command = tuple((said.get("exec") or {}).get("command") or ())
        if not (said.get("httpGet") or tcp or command):
            return None
        return cls(
            said.get("httpGet"),
            tcp,
            command,
            float(said.get("initialDelaySeconds") or 0),
            float(said.get("periodSeconds") or 10),
            float(said.get("timeoutSeconds") or 1),
            int(said.get("successThreshold") or 1),
            int(said.get("failureThreshold") or 3),
        )


@dataclass(frozen=True)
class Probes:
    """The probes of a revision's replicas, and its container's ports, which a probe may name."""

    startup: Probe | None = None
    readiness: Probe | None = None
    liveness: Probe | None = None
    ports: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, container: Mapping[str, Any]) -> Probes:
        ports = tuple(
            (str(port.get("name") or ""), int(port.get("containerPort") or 0)) for port in container.get("ports") or ()
        )
        startup, readiness, liveness = (
            Probe.of(container.get(kind)) for kind in ("startupProbe", "readinessProbe", "livenessProbe")
        )
        return cls(startup, readiness, liveness, ports)

    def port(self, asked: int | str | None, given: int) -> int:
        """A port of the pod as one of this machine: the container's own is whatever the replica was ``given``."""
        own = {0, *(number for _, number in self.ports)}
        if isinstance(asked, int) and asked not in own:
            return asked
        return given
