"""The loop of the warm policy, one look at a time: observe, learn, decide, act.

Nothing is decided here: plans are ``decide.keepalive``'s, replicas ``decide.placement``'s, hours ``decide.offpeak``'s.
A plan becomes actions like this. ``keep``: as the revision's scale-down-delay, for what is over Knative's own window.
A second stretch: a pre-warm event and min-scale 1, a cold start before it begins, until it ends. Hot models, pins and
rules: min-scale. All of it goes back to the user's values where there is no more reason for it.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

import numpy as np

from relight.base.errors import NotFound, RelightError
from relight.decide import keepalive, offpeak
from relight.decide.hours import HOUR, growth, hour_of, watched
from relight.decide.idletimes import IdleTimes
from relight.decide.keepalive import Costs
from relight.decide.placement import PEAKS, Grant, Wish, place, wanted
from relight.net.kube import Kube
from relight.warm.acting import Actor, restore
from relight.warm.deployed import Deployed, read_deployed
from relight.warm.functions import Function, Key
from relight.warm.leading import Leadership
from relight.warm.settings import WarmSettings
from relight.warm.shelf import Shelf
from relight.warm.sources import Reading, Source
from relight.warm.starts import Starts
from relight.wire import prewarm
from relight.wire.cloudevents import Event

log = logging.getLogger("relight.warm")

LONGEST_DELAY = 3600
"""Seconds; Knative takes no longer scale-down-delay."""
MINUTE = 60.0
Ping = Callable[[str, Event], None]
"""Send an event to a function's URL. It must not wait for the answer."""


class Keeper:
    """``begin`` once, ``step`` for every look, ``end`` once. Not for several threads."""

    def __init__(
        self, kube: Kube, source: Source, settings: WarmSettings, ping: Ping, *, identity: str | None = None
    ) -> None:
        self._kube = kube
        self._source = source
        self._settings = settings
        self._ping = ping
        self._actor = Actor(kube, dry=settings.mode == "dry-run")
        self._shelf = Shelf(kube, settings.namespace)
        self._leadership = Leadership(
            kube, settings.namespace, identity or f"warm-{uuid.uuid4().hex[:12]}", settings.lease
        )
        self.functions: dict[Key, Function] = {}
        self.times = IdleTimes(0)
        self._deployed: dict[Key, Deployed] = {}
        self._grants: dict[str, Grant] = {}
        self._listed = self._saved = self._minute = float("-inf")
        self._last: float | None = None
        self._starts = Starts()
        self._hour: int | None = None
        """The present hour, since 1970; None until the first look."""
        self._whole = False
        """Whether it was watched from its beginning."""
        self._calls: Counter[int] = Counter()
        """Of the present hour, by row."""
        self._leading = False

    def step(self, now: float) -> bool:
        """One look; whether this one leads. What fails is told and tried again at the next look."""
        if not self._leadership.hold(now):
            self._leading, self._last, self._hour = False, None, None
            return False
        if not self._leading:
            self.functions, self.times = self._shelf.load()
            if self._settings.mode == "dry-run":
                restore(self._kube, "the warm policy runs dry")
            self._leading = True
            log.info("warm.leads functions=%d mode=%s", len(self.functions), self._settings.mode)
        if now - self._listed >= self._settings.objects:
            self._list(now)
        self._turn_hour(now)
        self._observe(self._source.read(), now)
        if now - self._minute >= MINUTE:
            passed = int(min(now - self._minute, 86400.0) // MINUTE) if math.isfinite(self._minute) else 1
            self._minute = now
            for function in self.functions.values():
                function.minutes_are_over(passed)
            self._place(now)
        for key, deployed in self._deployed.items():
            try:
                self._act(key, deployed, now)
            except NotFound:
                continue  # deleted meanwhile
        if now - self._saved >= self._settings.save:
            self._shelf.save(self.functions, self.times)
            self._saved = now
        return True

    def end(self) -> bool:
        """Write down what was learned and put the user's values back; whether all of them are."""
        if not self._leading:
            return True
        self._leading = False
        self._shelf.save(self.functions, self.times)
        done = True
        for deployed in self._deployed.values():
            for revision in (*deployed.left, *([deployed.latest] if deployed.latest else ())):
                try:
                    self._actor.give(revision, None, None, "WarmRestored", "the warm policy ends: the user's values")
                except NotFound:
                    continue
                except RelightError as error:
                    done = False
                    log.warning("warm.unrestored revision=%s error=%s", revision["metadata"]["name"], error)
        self._leadership.give_up()
        return done

    # Observing

    def _list(self, now: float) -> None:
        self._listed = now
        self._deployed = read_deployed(self._kube, self._settings)
        for key in [key for key in self.functions if key not in self._deployed]:
            # Its row stays empty until the next start; what is kept of it goes.
            del self.functions[key]
        for key, deployed in self._deployed.items():
            function = self.functions.get(key)
            if function is None:
                row = max((one.row for one in self.functions.values()), default=-1) + 1
                if row >= len(self.times):
                    self.times.grow(max(row + 1, 2 * len(self.times)))
                self.times.forget(row)
                self._starts.forget(row)
                function = self.functions[key] = Function(row, share=deployed.share, gpu=deployed.gpu)
                self._presume(function)
            function.share, function.gpu = deployed.share, deployed.gpu

    def _presume(self, function: Function) -> None:
        """The plan of a function of which no idle time is known."""
        costs = Costs(
            np.array([function.cold or self._settings.cold]), np.array([function.share]), self._settings.prices
        )
        function.keep = float(keepalive.prior(costs).keep[0])
        function.reason = "nothing is known of it: half of the break-even"

    def _turn_hour(self, now: float) -> None:
        """Put in the calls of an hour that is over, if all of it was watched."""
        hour = int(now // HOUR)
        if hour == self._hour:
            return
        followed = self._hour is not None and hour == self._hour + 1
        if followed and self._whole:
            calls = np.array([self._calls[row] for row in range(len(self.times))], np.float64)
            watched(self.times.week, hour_of(now - HOUR), calls)
        self._hour, self._whole = hour, followed
        self._calls.clear()

    def _observe(self, readings: Mapping[tuple[str, str], Reading], now: float) -> None:
        since = 0.0 if self._last is None else max(0.0, now - self._last)
        self._last = now
        ended: list[tuple[Function, float]] = []
        for key, deployed in self._deployed.items():
            function = self.functions[key]
            seen = [readings[key[0], name] for name in deployed.names if (key[0], name) in readings]
            idle = self._see(function, seen, now)
            if idle is not None:
                ended.append((function, idle))
            up = deployed.replicas * since
            bill = function.bill
            bill.watched += since
            bill.busy += min(up, since) if function.busy else 0.0
            bill.idle += up - (min(up, since) if function.busy else 0.0)
        if ended:
            self._learn(ended, now)

    def _see(self, function: Function, seen: Iterable[Reading], now: float) -> float | None:
        """Take in what was counted of one function; the length of the idle time that ended, if one did."""
        seen = list(seen)
        requests = sum(one.requests for one in seen)
        present = sum(one.present for one in seen)
        new = 0.0 if function.requests is None else requests - function.requests
        if new < 0:
            new = requests  # the counter began anew
        function.requests = requests
        own = min(new, function.pings)
        held = max(0.0, present - (function.pings - own))
        better_known = self._starts.see(function, seen, own_doing=function.pings > 0)
        if better_known and np.isnan(self.times.recent[function.row]).all():
            self._presume(function)
        function.pings -= int(own)
        new -= own
        function.peak = max(function.peak, held, float(new > 0))
        idle = None
        if (new or held) and function.idle_since is not None:
            idle = now - function.idle_since
        if held:
            function.busy, function.idle_since = True, None
        elif new or function.busy:
            function.busy, function.idle_since = False, now
        return idle

    def _learn(self, ended: list[tuple[Function, float]], now: float) -> None:
        rows = np.array([function.row for function, _ in ended])
        seconds = np.array([idle for _, idle in ended])
        pace = self.times.pace(rows)
        ones = np.ones(len(rows))
        self._calls.update(rows.tolist())
        began = np.array([hour_of(now - idle) for _, idle in ended])
        self.times.learn(rows, pace, seconds, ones, ones.astype(bool), began)
        active = [function for function, _ in ended]
        hour = np.full(len(rows), hour_of(now))
        known = self.times.known(rows, self.times.pace(rows))
        plans = keepalive.decide(known, self._costs(self.functions.values()).of(rows), hour)
        for at, function in enumerate(active):
            function.keep, function.gain = float(plans.keep[at]), float(plans.gain[at])
            function.ready, function.until = float(plans.ready[at]), float(plans.until[at])
            by_hour = plans.by_hour is not None and bool(plans.by_hour[at])
            function.reason = _said(function) + (", as at this time of day before" if by_hour else "")

    def _costs(self, functions: Iterable[Function]) -> Costs:
        """Of all rows; those of nobody cost nothing."""
        functions = list(functions)
        size = max((one.row for one in functions), default=-1) + 1
        cold, share = np.ones(size), np.ones(size)
        for one in functions:
            cold[one.row] = one.cold or self._settings.cold
            share[one.row] = one.share
        return Costs(cold, share, self._settings.prices)

    # Acting

    def _place(self, now: float) -> None:
        """Who stays up for the next minute. Hot is who is called often, and whose cold starts cost more than idling."""
        wishes = []
        costs = self._costs(self.functions.values())
        pays = costs.penalty / MINUTE > costs.rate
        half = PEAKS * MINUTE / 2  # to the middle of the minutes that the peaks are of, and of those that come
        grown = growth(self.times.week, hour_of(now - half), hour_of(now + half))
        for key, deployed in self._deployed.items():
            function = self.functions[key]
            present = self._grants.get("/".join(key), Grant(0, "")).replicas
            calls = sum(peak > 0 for peak in function.peaks) / max(1, len(function.peaks))
            row = function.row
            hot = wanted(function.peaks, deployed.target, present, float(grown[row])) if pays[row] else 0
            wishes.append(
                Wish(
                    "/".join(key),
                    max(hot, deployed.pinned),
                    deployed.share if deployed.gpu else 0.0,
                    calls * (function.cold or self._settings.cold) / MINUTE,
                    "pinned by its owner" if deployed.pinned else "hot: it was called in most of the last minutes",
                    least=deployed.pinned,
                    present=present,
                    tenant=key[0],
                )
            )
        self._grants = place(wishes, self._settings.gpu_budget, self._settings.floor)

    def _act(self, key: Key, deployed: Deployed, now: float) -> None:
        function = self.functions[key]
        for revision in deployed.left:
            self._actor.give(revision, None, None, "WarmRestored", "another revision takes the traffic")
        latest = deployed.latest
        if latest is None:
            return
        if deployed.banned:
            function.min_scale = function.delay = None
            self._actor.give(latest, None, None, "WarmRestored", "its owner wants no warm policy")
            return
        min_scale, reason, message = self._min_scale(key, function, deployed, now)
        function.min_scale, function.delay = min_scale, self._delay(function, deployed)
        if min_scale is None:
            reason, message = "WarmKeep", f"kept {function.keep:.0f} s after a call: {function.reason}"
        self._actor.give(latest, function.min_scale, function.delay, reason, message)

    def _min_scale(self, key: Key, function: Function, deployed: Deployed, now: float) -> tuple[int | None, str, str]:
        rule = offpeak.bounds(deployed.rules, now)
        grant = self._grants.get("/".join(key), Grant(0, ""))
        replicas, reason, message = grant.replicas, "WarmHot", f"{grant.replicas} kept: {grant.reason}"
        idle = None if function.idle_since is None else now - function.idle_since
        if idle is not None and not replicas:
            begin = max(0.0, function.ready - (function.cold or self._settings.cold) - self._settings.lead)
            if begin <= idle <= function.until:
                replicas, reason = 1, "WarmPrewarm"
                message = f"ready for the next call: {function.reason}"
                if function.pinged <= (function.idle_since or 0.0) and rule.max != 0:
                    self._prewarm(key, function, deployed, message, now)
            elif idle < function.keep and function.keep > deployed.window + LONGEST_DELAY:
                replicas, reason, message = 1, "WarmKeep", f"kept {function.keep:.0f} s: {function.reason}"
        if rule.min is not None and rule.min > replicas:
            replicas, reason, message = rule.min, "WarmRule", f"by its owner's rule: {rule.rule}"
        if rule.max is not None and rule.max < replicas:
            replicas, reason, message = rule.max, "WarmRule", f"by its owner's rule: {rule.rule}"
        return replicas or None, reason, message

    def _delay(self, function: Function, deployed: Deployed) -> int | None:
        """The scale-down-delay that makes a replica stay as long as planned.

        Small changes are not worth a write. One that is too long costs some idling, one that is too short a cold start.
        """
        over = min(LONGEST_DELAY, round(function.keep - deployed.window))
        if over <= 0:
            return None
        if function.delay is not None and 0.8 * function.delay <= over <= 1.05 * function.delay:
            return function.delay
        return over

    def _prewarm(self, key: Key, function: Function, deployed: Deployed, message: str, now: float) -> None:
        function.pinged = now
        expected = datetime.fromtimestamp((function.idle_since or now) + function.ready, UTC)
        event = prewarm.event(uuid.uuid4().hex, "/".join(key), message, expected.strftime("%Y-%m-%dT%H:%M:%SZ"))
        if self._settings.mode == "on" and deployed.url:
            function.pings += 1
            self._ping(deployed.url, event)


def _said(function: Function) -> str:
    """Why a plan is as it is, for people."""
    if function.ready != float("inf"):
        stretch = f"from {function.ready:.0f} to {function.until:.0f} s after the last call"
        return f"a call is expected {stretch}" + (f", and within {function.keep:.0f} s" if function.keep else "")
    if function.keep == 0:
        return "no moment is likely enough for a call to pay for idling"
    return f"calls within {function.keep:.0f} s are likely enough to pay for idling"
