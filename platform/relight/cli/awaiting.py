"""What a call from zero waits for, told while it waits: looked up beside it, so that it takes no longer for that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from relight.base.errors import RelightError

PATIENCE = 1.0
"""Seconds of a call after which it is worth saying what it waits for."""
EVERY = 0.5
"""Seconds between two looks."""


@contextmanager
def explained(
    name: str,
    namespace: str | None,
    kubeconfig: Path | None,
    context: str | None,
    say: Callable[[str], None],
) -> Iterator[None]:
    """Until the end of the block, ``say`` what a function's revisions wait for, if that takes longer."""
    over = threading.Event()
    thread = threading.Thread(
        target=_look, args=(over, name, namespace, kubeconfig, context, say), name="explain", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(EVERY)  # what it looks up last is of no use any more


def _look(
    over: threading.Event,
    name: str,
    namespace: str | None,
    kubeconfig: Path | None,
    context: str | None,
    say: Callable[[str], None],
) -> None:
    if over.wait(PATIENCE):
        return
    from relight.cli.kube import connect
    from relight.cluster.standing import RevisionStanding, standing

    def told(one: RevisionStanding) -> str:
        if one.reason:
            return f"{one.name}: {one.reason}"
        return f"{one.name}: {'no replica yet' if not one.replicas else 'ready, and at work on the answer'}"

    try:
        with connect(kubeconfig, context, namespace) as link:
            while not over.is_set():
                found = standing(link.kube, name, link.namespace)
                lines = [told(one) for one in found.revisions if one.percent]
                if lines and not over.is_set():
                    say("; ".join(lines))
                over.wait(EVERY)
    except RelightError as error:
        if not over.is_set():
            say(f"what it waits for cannot be told: {error.message}")
