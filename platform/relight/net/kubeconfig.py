"""Kubeconfig files: local mode's own is written here; others are only read."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from relight.base.errors import BadInput
from relight.net.tls import write_private

CONTEXT = "relight"


@dataclass(frozen=True)
class Context:
    """What a kubeconfig says about one context. ``namespace`` is the one that commands act in unless told."""

    name: str
    server: str
    namespace: str = "default"


def write(path: Path, server: str, ca: Path, token: str, *, namespace: str = "default") -> None:
    """Write local mode's kubeconfig (mode 0600, whole or not at all). Never give it the user's own file."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": CONTEXT,
                "cluster": {
                    "server": server,
                    "certificate-authority-data": base64.b64encode(ca.read_bytes()).decode(),
                },
            }
        ],
        "users": [{"name": CONTEXT, "user": {"token": token}}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": CONTEXT, "namespace": namespace}}],
        "current-context": CONTEXT,
    }
    write_private(path, yaml.safe_dump(config, sort_keys=False).encode())


def read(path: Path, context: str | None = None) -> Context:
    """One context of a kubeconfig, by default its current one. BadInput says what is missing and where."""
    try:
        config = yaml.safe_load(path.read_bytes())
    except FileNotFoundError:
        raise BadInput(f"there is no kubeconfig at {path}; start local mode with: relight up") from None
    except (OSError, yaml.YAMLError) as error:
        raise BadInput(f"{path} cannot be read as a kubeconfig: {error}") from error
    if not isinstance(config, dict):
        raise BadInput(f"{path} is no kubeconfig: an object was expected")
    name = context or config.get("current-context")
    if not name:
        raise BadInput(f"{path} has no current-context; name one of: {', '.join(_names(config, 'contexts')) or 'none'}")
    chosen = _named(path, config, "contexts", "context", name)
    cluster = _named(path, config, "clusters", "cluster", str(chosen.get("cluster")))
    return Context(name, str(cluster.get("server") or ""), str(chosen.get("namespace") or "default"))


def _names(config: dict[str, Any], section: str) -> list[str]:
    return [str(entry.get("name")) for entry in config.get(section) or () if isinstance(entry, dict)]


def _named(path: Path, config: dict[str, Any], section: str, key: str, name: str) -> dict[str, Any]:
    for entry in config.get(section) or ():
        if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get(key), dict):
            found: dict[str, Any] = entry[key]
            return found
    have = ", ".join(_names(config, section)) or "none"
    raise BadInput(f"{path} has no {key} named {name}; it has: {have}")
