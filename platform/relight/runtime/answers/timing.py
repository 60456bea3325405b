"""The Server-Timing header: how long a request waited and was computed."""

from __future__ import annotations

from relight.runtime.batcher import Computed


def server_timing(computed: Computed) -> tuple[str, str]:
    """``queue`` and ``infer`` in milliseconds, as the header wants."""
    return "server-timing", f"queue;dur={computed.queue * 1000:.3f}, infer;dur={computed.infer * 1000:.3f}"
