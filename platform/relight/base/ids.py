"""Identifiers: random ones, and digests of content."""

from __future__ import annotations

import hashlib
import secrets
import uuid


def new_id() -> str:
    """A random UUID, for events, objects and requests."""
    return str(uuid.uuid4())


def suffix(length: int = 5) -> str:
    """A random suffix in the alphabet Kubernetes uses for generated names (no vowels, nothing that looks alike)."""
    return "".join(secrets.choice("bcdfghjklmnpqrstvwxz2456789") for _ in range(length))


def digest(data: bytes) -> str:
    """``sha256:<hex>`` of some bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()
