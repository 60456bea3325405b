"""The tree of an event: who got it, when, after how many tries, and what came of it, down to the last reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from relight.local.eventing.hops import Hop
from relight.local.eventing.records import Entry

Node = dict[str, Any]


def tree(
    hops: Sequence[Hop],
    open_: Sequence[Entry],
    name_of: Callable[[Entry], str],
    paused: Callable[[Entry], bool],
) -> list[Node]:
    """The chains as nested values, from each first event on; times in seconds since 1970.

    An event has ``deliveries``; a delivery that was answered with an event has that event as its ``reply``, which in
    turn has deliveries where somebody wanted it.
    """
    nodes: dict[int, Node] = {}
    causes: dict[int, int | None] = {}
    for hop in hops:
        causes[hop.event] = hop.cause
        node = nodes.setdefault(
            hop.event, _event(hop.id, hop.source, hop.type, hop.namespace, hop.broker, hop.received, hop.trace)
        )
        node["deliveries"].append(_done(hop))
    for entry in open_:
        stored, event = entry.stored, entry.stored.event
        causes[entry.seq] = stored.cause
        node = nodes.setdefault(
            entry.seq,
            _event(event.id, event.source, event.type, stored.namespace, stored.broker, stored.received, stored.trace),
        )
        node["deliveries"].append(_open(entry, name_of(entry), paused(entry)))
    roots = []
    for seq in sorted(nodes):
        cause = causes[seq]
        if cause is None or cause not in nodes or not _hang(nodes[cause], nodes[seq]):
            roots.append(nodes[seq])
    return roots


def _hang(cause: Node, reply: Node) -> bool:
    """Put an event where it was answered; False where its hop is not known any more."""
    for delivery in cause["deliveries"]:
        told = delivery.get("reply")
        if told is not None and told["id"] == reply["id"] and "received" not in told:
            delivery["reply"] = reply
            return True
    return False


def _event(id_: str, source: str, type_: str, namespace: str, broker: str, received: float, trace: str | None) -> Node:
    return {
        "id": id_,
        "source": source,
        "type": type_,
        "namespace": namespace,
        "broker": broker,
        "received": received,
        "trace": trace,
        "deliveries": [],
    }


def _done(hop: Hop) -> Node:
    node: Node = {
        "trigger": hop.name,
        "state": hop.outcome,
        "began": hop.began,
        "ended": hop.ended,
        "attempts": hop.attempts,
        "status": hop.status,
        "tries": tries(hop.tries),
    }
    if hop.reply_id is not None:
        # What nobody wanted is told by the one who sent it.
        node["reply"] = {"id": hop.reply_id, "type": hop.reply_type, "deliveries": []}
    return node


def _open(entry: Entry, name: str, paused: bool) -> Node:
    node = {
        "trigger": name,
        "state": "dead" if entry.dead else "pending",
        "at": entry.at,
        "attempts": entry.attempt,
        "status": entry.status,
        "reason": entry.reason,
        "tries": tries(entry.tries),
    }
    if paused:
        node["paused"] = True
    return node


def tries(lines: str) -> list[Node]:
    """The attempts that failed, from a delivery's history."""
    found = []
    for line in lines.splitlines():
        began, _, reason = line.partition(" ")
        found.append({"began": float(began), "reason": reason})
    return found
