"""The router's Server-Timing field, for whoever asks with ``relight-timing``: where the time until the answer went."""

from __future__ import annotations

from collections.abc import Mapping


def server_timing(cold: Mapping[str, float], held: float, total: float) -> bytes:
    """The field's value; arguments in seconds, the field in milliseconds.

    ``cold``: the phases of the cold start that this request waited for, in order, which add up to ``total``. A request
    that was answered by what ran already has one: how long it was held.
    """
    phases = cold or {"hold": held}
    shown = {**phases, "total": total}
    return b", ".join(b"%b;dur=%.3f" % (name.encode(), seconds * 1000) for name, seconds in shown.items())
