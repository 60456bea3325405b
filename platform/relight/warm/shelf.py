"""What was learned, kept in ConfigMaps of the cluster itself: it outlives restarts, and ``relight warm`` reads it."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np

from relight.base.errors import NotFound
from relight.decide.idletimes import FLEET_SHARE, IdleTimes
from relight.net.kube import Kube
from relight.warm.functions import Function, Key, pack, unpack

log = logging.getLogger("relight.warm")

LABEL = "relight.dev/warm-state"
EACH = 400
"""Functions in one ConfigMap, which holds a MiB at most."""


class Shelf:
    """The ConfigMaps of one namespace."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube = kube
        self._namespace = namespace
        self._written: dict[str, Mapping[str, str]] = {}

    def load(self) -> tuple[dict[Key, Function], IdleTimes]:
        """All that was kept; what cannot be read is left out."""
        texts: dict[str, str] = {}
        for one in self._kube.list("v1", "ConfigMap", self._namespace, labels=f"{LABEL}=true")["items"]:
            data = one.get("data") or {}
            self._written[one["metadata"]["name"]] = data
            texts |= data
        times = IdleTimes(len(texts))
        functions: dict[Key, Function] = {}
        for name, text in sorted(texts.items()):
            namespace, _, function = name.partition(".")
            found = unpack(text, len(functions), times)
            if found is None:
                log.warning("warm.forgotten function=%s: what was kept of it cannot be read", name)
                continue
            functions[namespace, function] = found
        times.fleet = np.minimum(times.counts.astype(np.float64), FLEET_SHARE).sum(axis=0) / max(len(times), 1)
        return functions, times

    def save(self, functions: Mapping[Key, Function], times: IdleTimes) -> None:
        """Write what changed. A key is ``NAMESPACE.NAME``, as ConfigMaps may have them."""
        names = sorted(functions)
        for number, start in enumerate(range(0, max(len(names), 1), EACH)):
            data = {".".join(key): pack(functions[key], times) for key in names[start : start + EACH]}
            name = f"relight-warm-{number}"
            if self._written.get(name) != data:
                self._write(name, data)
                self._written[name] = data

    def _write(self, name: str, data: Mapping[str, str]) -> None:
        gone: dict[str, str | None] = dict.fromkeys(self._written.get(name, ()), None)
        try:
            self._kube.patch("v1", "ConfigMap", name, {"data": {**gone, **data}}, self._namespace)
        except NotFound:
            meta = {"name": name, "namespace": self._namespace, "labels": {LABEL: "true"}}
            self._kube.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": dict(data)})
