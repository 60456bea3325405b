"""Who stays up under one budget, and what the hours say."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from relight.base.errors import BadInput
from relight.decide import offpeak
from relight.decide.placement import Wish, place, wanted

PEAKS: list[tuple[str, list[float], float, int, float, int]] = [
    ("nothing was seen", [], 1, 0, 1.0, 0),
    ("rarely called", [0, 0, 0, 1] * 5, 1, 0, 1.0, 0),
    ("one at a time", [1] * 10, 1, 0, 1.0, 1),
    ("four at once, two each", [4] * 10, 2, 0, 1.0, 2),
    ("a single peak is no reason for more", [1] * 19 + [9], 1, 1, 1.0, 1),
    ("but it is one to stay", [1] * 19 + [9], 1, 4, 1.0, 4),
    ("down when all are below", [1] * 30, 1, 4, 1.0, 1),
    ("the coming hour has twice the calls", [4] * 10, 2, 2, 2.0, 4),
    ("it has half of them, and that is enough for all", [4] * 10, 2, 2, 0.5, 1),
    ("nobody calls now: what comes is met by its own plan", [0] * 10, 1, 0, 4.0, 0),
]


@pytest.mark.parametrize(
    ("peaks", "target", "present", "growth", "want"), [row[1:] for row in PEAKS], ids=[row[0] for row in PEAKS]
)
def test_replicas_of_a_hot_model(peaks: list[float], target: float, present: int, growth: float, want: int) -> None:
    assert wanted(peaks, target, present, growth) == want


def grants(budget: float | None, *wishes: Wish) -> list[int]:
    found = place(wishes, budget)
    return [found[wish.name].replicas for wish in wishes]


def test_a_budget_goes_where_it_saves_most_waiting_per_gpu() -> None:
    slow, quick = Wish("slow", 1, 1.0, worth=10.0), Wish("quick", 1, 1.0, worth=1.0)
    assert grants(1.0, quick, slow) == [0, 1]
    assert grants(2.0, quick, slow) == [1, 1]
    assert grants(None, quick, slow) == [1, 1]
    # Half of a GPU for a third of the worth is the better buy.
    assert grants(1.0, Wish("whole", 1, 1.0, worth=3.0), Wish("half", 1, 0.5, worth=2.0)) == [0, 1]


def test_everybody_has_one_before_somebody_has_two() -> None:
    assert grants(2.0, Wish("big", 3, 1.0, worth=3.0), Wish("small", 1, 1.0, worth=1.0)) == [1, 1]
    assert "budget of 2 GPUs" in place([Wish("big", 3, 1.0, worth=3.0)], 2.0)["big"].reason


def test_however_hot_somebody_is() -> None:
    assert grants(2.0, Wish("big", 3, 1.0, worth=300.0), Wish("small", 1, 1.0, worth=1.0)) == [1, 1]
    assert grants(3.0, Wish("big", 3, 1.0, worth=300.0), Wish("small", 2, 1.0, worth=1.0)) == [2, 1]


def tenants(budget: float, *wishes: tuple[str, int, float, int], floor: float = 0.5) -> list[int]:
    """Each: tenant, replicas, worth, pinned; all of them of one GPU."""
    made = [
        Wish(str(at), number, 1.0, worth, least=least, tenant=tenant)
        for at, (tenant, number, worth, least) in enumerate(wishes)
    ]
    found = place(made, budget, floor)
    return [found[wish.name].replicas for wish in made]


LOUD, QUIET = ("loud", 1, 9.0, 0), ("quiet", 1, 1.0, 0)
FLOORS = [
    ("half of the budget is for all alike", 4.0, [LOUD] * 6 + [QUIET] * 2, 0.5, [1, 1, 1, 0, 0, 0, 1, 0]),
    ("none of it", 4.0, [LOUD] * 6 + [QUIET] * 2, 0.0, [1, 1, 1, 1, 0, 0, 0, 0]),
    ("all of it", 4.0, [LOUD] * 6 + [QUIET] * 2, 1.0, [1, 1, 0, 0, 0, 0, 1, 1]),
    ("what one does not want is for others", 6.0, [LOUD] * 6 + [QUIET], 1.0, [1, 1, 1, 1, 1, 0, 1]),
    ("pins count as had", 4.0, [("loud", 2, 9.0, 2), LOUD, QUIET, QUIET], 0.5, [2, 0, 1, 1]),
    ("of one tenant there is nothing to share", 2.0, [LOUD] * 3, 1.0, [1, 1, 0]),
    ("a floor too small for a replica", 1.0, [LOUD, QUIET], 0.5, [1, 0]),
]


@pytest.mark.parametrize(
    ("budget", "wishes", "floor", "want"), [row[1:] for row in FLOORS], ids=[row[0] for row in FLOORS]
)
def test_every_tenant_has_a_floor(
    budget: float, wishes: list[tuple[str, int, float, int]], floor: float, want: list[int]
) -> None:
    assert tenants(budget, *wishes, floor=floor) == want


def test_pins_and_bans_come_first() -> None:
    pinned, hot = Wish("pinned", 1, 1.0, worth=0.0, least=1), Wish("hot", 1, 1.0, worth=9.0)
    assert grants(1.0, pinned, hot) == [1, 0]
    assert grants(None, Wish("banned", 2, 1.0, worth=9.0, most=0), hot) == [0, 1]
    over = place([Wish("a", 2, 1.0, worth=1.0, least=2, reason="pinned")], 1.0)["a"]
    assert (over.replicas, over.reason) == (2, "pinned; pins and rules take 1 GPUs more than the budget of 1")


def test_who_is_up_stays_where_two_are_worth_the_same() -> None:
    assert grants(1.0, Wish("a", 1, 1.0, worth=1.0), Wish("b", 1, 1.0, worth=0.95, present=1)) == [0, 1]


def test_a_replica_without_a_gpu_is_not_counted() -> None:
    assert grants(0.0, Wish("cpu", 2, 0.0, worth=0.1), Wish("gpu", 1, 1.0, worth=9.0)) == [2, 0]


def at(text: str, zone: str = "Europe/Berlin") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


OFFICE = "between 09:00 and 18:00 on mon-fri Europe/Berlin: min 2"
NIGHT = "between 22:00 and 06:00 on fri Europe/Berlin: max 0"
HOURS = [
    ("before", OFFICE, "2026-03-02T08:59", None),
    ("at nine in summer", OFFICE, "2026-07-06T09:00", 2),
    ("at nine in winter", OFFICE, "2026-01-05T09:00", 2),
    ("the end is not in it", OFFICE, "2026-01-05T18:00", None),
    ("a saturday", OFFICE, "2026-01-10T12:00", None),
    ("over midnight", NIGHT, "2026-01-09T23:00", 0),
    ("the morning after", NIGHT, "2026-01-10T05:59", 0),
    ("a morning after another day", NIGHT, "2026-01-09T05:59", None),
    ("all day", "between 00:00 and 24:00 Europe/Berlin: min 1", "2026-01-09T05:59", 1),
    ("over the end of the week", "between 10:00 and 11:00 on sat-mon Europe/Berlin: min 3", "2026-01-11T10:30", 3),
]


@pytest.mark.parametrize(("rule", "moment", "want"), [row[1:] for row in HOURS], ids=[row[0] for row in HOURS])
def test_rules_by_the_hour(rule: str, moment: str, want: int | None) -> None:
    found = offpeak.bounds(offpeak.parse(rule), at(moment))
    assert (found.min if "min" in rule else found.max) == want
    assert found.rule == (rule if want is not None else "")


def test_of_several_rules_the_most_is_kept() -> None:
    noon, most = "between 12:00 and 13:00 Europe/Berlin: min 5", "between 09:00 and 18:00: max 3"
    rules = offpeak.parse(f"{OFFICE}; {noon}\n{most}")
    found = offpeak.bounds(rules, at("2026-01-05T12:30"))
    assert (found.min, found.max) == (5, None), "a max below a min does not count"


def test_every_wrong_rule_is_named() -> None:
    with pytest.raises(BadInput) as caught:
        offpeak.parse(
            "always: min 1; between 09:00 and 25:00: min 1; between 9:00 and 9:00: min 1;"
            "between 1:00 and 2:00 Mars/Base: min 1; between 1:00 and 2:00 on fun: min 1;"
            "between 1:00 and 2:00: min 9999"
        )
    text = str(caught.value)
    wants = ("such as", "a time from", "an end", "a time zone", "days", "at most")
    assert [want for at, want in enumerate(wants) if f"rules[{at}]: expected {want}" not in text] == []
