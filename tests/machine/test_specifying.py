"""From a Revision's annotations to what its requests are held to."""

from __future__ import annotations

import pytest

from relight.base.errors import BadInput
from relight.decide.admission import HoldLimits
from relight.local.serving.activator import Gates
from relight.local.serving.specifying import hold_of
from relight.local.serving.types import RevisionKey


@pytest.mark.parametrize(
    ("annotations", "hold"),
    [
        ({}, HoldLimits()),
        ({"max-hold": "5s"}, HoldLimits(max_seconds=5.0)),
        ({"max-held-requests": "8"}, HoldLimits(max_requests=8)),
        ({"max-held-requests": "0", "max-hold": "0"}, HoldLimits(max_requests=0)),
    ],
)
def test_hold_limits(annotations: dict[str, str], hold: HoldLimits) -> None:
    given = {f"relight.dev/{name}": value for name, value in annotations.items()}
    assert hold_of({"metadata": {"annotations": given}}) == hold
    gates = Gates(lambda key: None)
    assert gates.ensure(RevisionKey("n", "r"), hold=hold).hold_limits == hold
    assert gates.ensure(RevisionKey("n", "r")).hold_limits == hold, "it stays until another is given"


WRONG = [
    {"max-hold": "soon"},
    {"max-hold": "-1s"},
    {"max-held-requests": "-1"},
    {"max-held-requests": "many"},
    {"max-held-requests": "many", "max-hold": "soon"},
]


@pytest.mark.parametrize("wrong", WRONG)
def test_hold_limits_that_cannot_be(wrong: dict[str, str]) -> None:
    with pytest.raises(BadInput) as caught:
        hold_of({"metadata": {"annotations": {f"relight.dev/{name}": value for name, value in wrong.items()}}})
    assert {problem.path for problem in caught.value.problems} == {f"relight.dev/{name}" for name in wrong}
