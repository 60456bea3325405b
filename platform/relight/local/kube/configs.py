"""The ConfigMaps in ``knative-serving`` that steer a cluster, read as they are at the moment.

A platform has them from its first start, empty (every key at Knative's default), so that the commands of Knative's
documentation (``kubectl patch cm config-features -n knative-serving …``) work. What they may hold is checked on the way
in, as Knative's own webhook does, so that a reader meets none that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from relight.base.errors import BadInput, Problem
from relight.decide.defaults import ClusterDefaults, boolean, duration, integer
from relight.decide.retention import Retention
from relight.local.kube import kinds
from relight.local.kube.store import ObjectStore

NAMESPACE = "knative-serving"
AUTOSCALER = "config-autoscaler"
DEFAULTS = "config-defaults"
DEPLOYMENT = "config-deployment"
FEATURES = "config-features"
GC = "config-gc"
NETWORK = "config-network"
ALL = (AUTOSCALER, DEFAULTS, DEPLOYMENT, FEATURES, GC, NETWORK)


@dataclass(frozen=True)
class RevisionDefaults:
    """``config-defaults``: what a revision has where it says nothing, and what it may say. Times in seconds."""

    timeout: int = 300
    max_timeout: int = 600
    response_start_timeout: int = 300
    idle_timeout: int = 0
    """0: no limit."""
    concurrency: int = 0
    """Requests at once per replica; 0: no limit."""
    max_concurrency: int = 1000
    allow_unlimited: bool = True
    """Whether a revision may set its containerConcurrency to 0."""
    service_links: bool | None = False
    container: str = "user-container"

    @classmethod
    def from_config(cls, data: Mapping[str, str]) -> RevisionDefaults:
        """Read the ``data``; keys that are not known are ignored. BadInput names every wrong one at once."""
        problems: list[Problem] = []

        def number(key: str, default: int) -> int:
            try:
                return integer(data[key]) if key in data else default
            except ValueError as error:
                problems.append(Problem(key, str(error)))
                return default

        timeout = number("revision-timeout-seconds", cls.timeout)
        links = data.get("enable-service-links", "false").lower()
        found = cls(
            timeout=timeout,
            max_timeout=number("max-revision-timeout-seconds", cls.max_timeout),
            response_start_timeout=number("revision-response-start-timeout-seconds", timeout),
            idle_timeout=number("revision-idle-timeout-seconds", cls.idle_timeout),
            concurrency=number("container-concurrency", cls.concurrency),
            max_concurrency=number("container-concurrency-max-limit", cls.max_concurrency),
            allow_unlimited=boolean(data.get("allow-container-concurrency-zero", "true")),
            service_links={"true": True, "false": False}.get(links),
            container=data.get("container-name-template", cls.container),
        )
        problems += found._problems()
        if problems:
            raise BadInput.of(problems)
        return found

    def _problems(self) -> list[Problem]:
        most = self.max_timeout
        rules = (
            ("revision-timeout-seconds", 0 < self.timeout <= most, f"1 to max-revision-timeout-seconds ({most})"),
            (
                "revision-response-start-timeout-seconds",
                0 <= self.response_start_timeout <= self.timeout,
                f"0 to revision-timeout-seconds ({self.timeout})",
            ),
            (
                "revision-idle-timeout-seconds",
                0 <= self.idle_timeout <= self.timeout,
                f"0 to revision-timeout-seconds ({self.timeout})",
            ),
            ("container-concurrency-max-limit", self.max_concurrency >= 1, "1 or more"),
            (
                "container-concurrency",
                0 <= self.concurrency <= self.max_concurrency,
                f"0 to container-concurrency-max-limit ({self.max_concurrency})",
            ),
            ("container-name-template", "{{" not in self.container, "a plain name: templates are not filled in here"),
        )
        return [Problem(key, f"expected {expected}") for key, ok, expected in rules if not ok]


def rollout_duration(data: Mapping[str, str]) -> float:
    """``rollout-duration`` of ``config-network``: seconds (a plain number, or a Go duration); 0: at once."""
    text = data.get("rollout-duration", "0")
    try:
        seconds = float(integer(text)) if text.isdecimal() else duration(text)
    except ValueError as error:
        raise BadInput.of([Problem("rollout-duration", str(error))]) from error
    if seconds < 0:
        raise BadInput.of([Problem("rollout-duration", "expected 0 or more")])
    return seconds


_CHECKS: dict[str, Callable[[Mapping[str, str]], object]] = {
    AUTOSCALER: ClusterDefaults.from_config,
    DEFAULTS: RevisionDefaults.from_config,
    DEPLOYMENT: ClusterDefaults.from_config,
    GC: Retention.from_config,
    NETWORK: rollout_duration,
}


def problems(namespace: str, name: str, data: Mapping[str, str]) -> list[Problem]:
    """What is wrong with a ConfigMap of these; nothing for any other."""
    check = _CHECKS.get(name) if namespace == NAMESPACE else None
    try:
        if check is not None:
            check(data)
    except BadInput as error:
        return list(error.problems) or [Problem(name, error.message)]
    return []


class Configs:
    """Reads them from the store, each time anew."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def _data(self, name: str) -> Mapping[str, str]:
        found = self._store.get(kinds.CONFIG_MAP, NAMESPACE, name) or {}
        data: Mapping[str, str] = found.get("data") or {}
        return data

    def scaling(self) -> ClusterDefaults:
        return ClusterDefaults.from_config({**self._data(DEPLOYMENT), **self._data(AUTOSCALER)})

    def revisions(self) -> RevisionDefaults:
        return RevisionDefaults.from_config(self._data(DEFAULTS))

    def features(self) -> Mapping[str, str]:
        """Values in lower case, as Knative reads them."""
        return {name: value.lower() for name, value in self._data(FEATURES).items()}

    def retention(self) -> Retention:
        return Retention.from_config(self._data(GC))

    def rollout_duration(self) -> float:
        return rollout_duration(self._data(NETWORK))
