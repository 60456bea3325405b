"""Decisions as they were made, so that they can be made again: a record per decision, in plain values.

A record holds everything that ``decide`` and ``last_step`` were given and what they answered. ``differences`` makes the
decision again and says where the answer is another one: a log of a running platform is thereby a test of the rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from relight.decide import last_step as steps
from relight.decide import scaling, utilization
from relight.decide.last_step import UNKNOWN, Activity, ScaleTarget, Step
from relight.decide.scaling import Decision, Observation, RevisionScaling, ScalerState
from relight.decide.utilization import Wishes
from relight.decide.windows import MaxWindow

FORMAT = 1


def document(
    revision: str,
    now: float,
    spec: RevisionScaling,
    state: ScalerState,
    seen: Observation,
    decision: Decision,
    after: ScalerState,
    target: ScaleTarget,
    step: Step,
) -> dict[str, Any]:
    """One record, of values that JSON can hold."""
    return _head(revision, now, spec) | {
        "state": dataclasses.asdict(state),
        "observation": dataclasses.asdict(seen),
        "decision": dataclasses.asdict(decision),
        "after": dataclasses.asdict(after),
        "target": dataclasses.asdict(target) | {"activity": target.activity.value},
        "step": dataclasses.asdict(step) | {"activity": step.activity.value},
    }


def utilization_document(
    revision: str,
    now: float,
    spec: RevisionScaling,
    wishes: Wishes,
    replicas: int,
    average: float | None,
    wanted: int,
    after: Wishes,
) -> dict[str, Any]:
    """One record of ``class: hpa``, told apart from the others by what it holds."""
    return _head(revision, now, spec) | {
        "wishes": dataclasses.asdict(wishes),
        "utilization": {"replicas": replicas, "average": average},
        "decision": {"desired": wanted},
        "after": dataclasses.asdict(after),
    }


def _head(revision: str, now: float, spec: RevisionScaling) -> dict[str, Any]:
    return {"format": FORMAT, "revision": revision, "now": now, "spec": dataclasses.asdict(spec)}


def differences(record: Mapping[str, Any]) -> list[str]:
    """What would be decided otherwise today; empty where nothing would. ValueError for another format."""
    if record["format"] != FORMAT:
        raise ValueError(f"expected a decision of format {FORMAT}, got {record['format']!r}")
    spec, now = RevisionScaling(**record["spec"]), record["now"]
    if "utilization" in record:
        wanted, left = utilization.decide(spec, _wishes(record["wishes"]), **record["utilization"], now=now)
        return _compared(record, {"decision": {"desired": wanted}, "after": dataclasses.asdict(left)})
    decision, after = scaling.decide(spec, _state(record["state"]), Observation(**record["observation"]), now)
    target = ScaleTarget(**{**record["target"], "activity": Activity(record["target"]["activity"])})
    step = steps.last_step(spec, target, decision.desired if decision.valid else UNKNOWN, now)
    again = {
        "decision": dataclasses.asdict(decision),
        "after": dataclasses.asdict(after),
        "step": dataclasses.asdict(step) | {"activity": step.activity.value},
    }
    return _compared(record, again)


def _compared(record: Mapping[str, Any], again: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [
        f"{record['revision']} at {record['now']}: {part}.{name}: was {record[part][name]!r}, is {value!r}"
        for part, fields in again.items()
        for name, value in fields.items()
        if _plain(record[part][name]) != _plain(value)
    ]


def _state(given: Mapping[str, Any]) -> ScalerState:
    delay = given["delay"]
    if delay is not None:
        delay = MaxWindow(delay["length"], delay["granularity"], tuple((at, value) for at, value in delay["entries"]))
    return ScalerState(given["panic_since"], given["max_panic_pods"], delay)


def _wishes(given: Mapping[str, Any]) -> Wishes:
    wanted, added = (tuple((at, count) for at, count in given[name]) for name in ("wanted", "added"))
    return Wishes(wanted, added)


def _plain(value: Any) -> Any:
    """Tuples as the lists that JSON makes of them."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
