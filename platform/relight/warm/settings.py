"""What the policy is told: prices, budget, how it runs. Once, at the entry point."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

from relight.base.errors import BadInput, Problem
from relight.decide.keepalive import Prices
from relight.decide.placement import FLOOR

Mode = Literal["off", "dry-run", "on"]
MODES: tuple[Mode, ...] = ("off", "dry-run", "on")


@dataclass(frozen=True)
class WarmSettings:
    """Times in seconds."""

    mode: Mode = "off"
    """``dry-run``: everything is observed, decided and told, nothing is changed."""
    namespace: str = "default"
    """Where the policy keeps its Lease and what it has learned."""
    prices: Prices = field(default_factory=Prices)
    gpu_budget: float | None = None
    """GPUs that hot models may keep up together; None: no bound."""
    floor: float = FLOOR
    """Part of that budget which namespaces share alike."""
    cpu_share: float = 0.125
    """What a replica without a GPU counts as, of a GPU's price."""
    cold: float = 5.0
    """A cold start's length before one was seen."""
    window: float = 60.0
    """Knative's stable window where a revision does not set one: no replica goes earlier."""
    interval: float = 1.0
    """Between two looks."""
    objects: float = 3.0
    """Between two lists of what is deployed."""
    save: float = 10.0
    """Between two writes of what was learned."""
    lead: float = 1.0
    """A pre-warm is sent this much earlier than a cold start takes, and a look takes its time too."""
    lease: float = 15.0
    """After which another may take over, or undo what was done."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], **overrides: object) -> WarmSettings:
        """From RELIGHT_WARM and RELIGHT_WARM_*. BadInput names every wrong one."""
        problems: list[Problem] = []

        def number(name: str, default: float | None) -> float | None:
            raw = environ.get(name)
            if not raw:
                return default
            try:
                value = float(raw)
            except ValueError:
                value = math.nan
            if not (math.isfinite(value) and value >= 0):
                problems.append(Problem(name, f"expected a number of 0 or more, got {raw!r}"))
                return default
            return value

        mode = str(overrides.pop("mode", None) or environ.get("RELIGHT_WARM") or cls.mode)
        if mode not in MODES:
            problems.append(Problem("RELIGHT_WARM", f"expected {', '.join(MODES)}, got {mode!r}"))
        prices = Prices(
            number("RELIGHT_WARM_IDLE_PRICE", Prices.idle) or 0.0,
            number("RELIGHT_WARM_WAITING_PRICE", Prices.waiting) or 0.0,
        )
        budget = number("RELIGHT_WARM_GPU_BUDGET", None)
        share = number("RELIGHT_WARM_CPU_SHARE", cls.cpu_share) or 0.0
        floor = number("RELIGHT_WARM_FLOOR", cls.floor) or 0.0
        if floor > 1.0:
            problems.append(Problem("RELIGHT_WARM_FLOOR", f"expected a part from 0 to 1, got {floor:g}"))
        if problems:
            raise BadInput.of(problems)
        given = {name: value for name, value in overrides.items() if value is not None}
        return cls(
            mode=cast(Mode, mode),
            prices=prices,
            gpu_budget=budget,
            floor=floor,
            cpu_share=share,
            **given,  # type: ignore[arg-type]
        )
