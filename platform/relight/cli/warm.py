"""``relight warm``."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from relight.base.errors import BadInput, NotFound
from relight.cli.kube import connect
from relight.cli.output import Format, note, print_json, print_table
from relight.cli.target import Context, Kubeconfig, Namespace
from relight.cli.warmth import histogram, moment, money, phases, plan_of

if TYPE_CHECKING:
    from relight.warm.simulating import Outcome

command = typer.Typer(
    help="The warm policy: what it knows, what it decides, what that saves.",
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)

_Output = Annotated[Format, typer.Option("-o", "--output", help="How to print.")]
_Home = Annotated[
    str, typer.Option("--policy-namespace", metavar="NAME", help="Where the policy keeps what it has learned.")
]


@command.callback()
def warm() -> None:
    """The warm policy: what it knows, what it decides, what that saves."""


@command.command("status")
def status(
    output: _Output = "table",
    home: _Home = "default",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """List the functions with their plans, and say who acts.

    \b
    relight warm status
    """
    from relight.warm.leading import API, KIND, NAME, expired
    from relight.warm.shelf import Shelf

    with connect(kubeconfig, context, None) as link:
        functions, _ = Shelf(link.kube, home).load()
        try:
            lease = link.kube.get(API, KIND, NAME, home)["spec"]
        except NotFound:
            lease = {}
    leader = None if not lease or expired(lease, time.time()) else lease["holderIdentity"]
    rows = [
        {
            "function": "/".join(key),
            "coldStart": round(one.cold, 2),
            "coldStartPhases": {name: round(seconds, 3) for name, seconds in one.phases.items()},
            "plan": plan_of(one),
            "minScale": one.min_scale,
            "scaleDownDelay": one.delay,
            "idleSince": one.idle_since,
            "reason": one.reason,
        }
        for key, one in sorted(functions.items())
    ]
    if output == "json":
        print_json({"leader": leader, "functions": rows})
        return
    note(f"{leader} decides" if leader else "nobody decides: relight up --warm on, or relight warm run")
    print_table(
        ("function", "cold start", "plan", "min", "last call"),
        [
            (
                row["function"],
                f"{row['coldStart']:g} s" if row["coldStart"] else "?",
                row["plan"],
                "-" if row["minScale"] is None else row["minScale"],
                moment(functions[tuple(str(row["function"]).split("/"))].idle_since),  # type: ignore[index]
            )
            for row in rows
        ],
    )


@command.command("explain")
def explain(
    name: Annotated[str, typer.Argument(help="The function.")],
    home: _Home = "default",
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Say what is decided about a function, and from what: the idle times as a
    histogram, and the money on both sides.

    \b
    relight warm explain bert
    """
    from relight.warm.explaining import explanation
    from relight.warm.settings import WarmSettings
    from relight.warm.shelf import Shelf

    with connect(kubeconfig, context, namespace) as link:
        functions, times = Shelf(link.kube, home).load()
        key = (link.namespace, name)
    if key not in functions:
        raise NotFound(f"the warm policy knows no function {name} in {key[0]}: relight warm status lists them")
    settings = WarmSettings.from_environ(os.environ)
    found = explanation(functions[key], times, settings)
    print(f"{key[0]}/{name}: {plan_of(functions[key])}")
    print(f"reason: {functions[key].reason}")
    if functions[key].phases:
        print(f"a cold start: {phases(functions[key])}")
    print()
    for line in histogram(found):
        print(line)
    print()
    print_table(("money per idle time", ""), [(text, money(value)) for text, value in found.sides])


@command.command("simulate")
def simulate(
    trace: Annotated[
        str,
        typer.Argument(
            help="A CSV (function,minute,calls), a folder or CSV of the Azure Functions trace, or KIND:SEED to make "
            "one: timer, diurnal, burst, drift, mixed, calendar."
        ),
    ],
    policies: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="NAME",
            help="fixed:SECONDS, knative, hybrid, relight, always-on, oracle; several times.",
            show_default=False,
        ),
    ] = None,
    idle_price: Annotated[float, typer.Option(help="Of a GPU that idles, per second.")] = 0.0008,
    waiting_price: Annotated[float, typer.Option(help="Of a caller that waits, per second.")] = 0.004,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the trade-off (.png or .svg).", show_default=False)
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the trace as CSV.", show_default=False)
    ] = None,
    output: _Output = "table",
) -> None:
    """Replay a trace of calls through policies, and compare what they cost.

    \b
    relight warm simulate mixed:1
    relight warm simulate calls.csv --policy relight --policy fixed:10m
    """
    from relight.decide.keepalive import Prices
    from relight.warm import plotting, traces
    from relight.warm.generating import KINDS, generate
    from relight.warm.policies import policy
    from relight.warm.simulating import Entries

    if plot is not None:
        plotting.check(plot)
    kind, _, seed = trace.partition(":")
    if kind in KINDS and (not seed or seed.isdigit()) and not Path(trace).exists():
        found = generate(kind, functions=100, seed=int(seed or 0))
    elif not Path(trace).exists():
        raise BadInput(f"{trace}: expected a file or folder, or one of {', '.join(KINDS)} with a seed (timer:1)")
    else:
        found = traces.read(Path(trace))
    if not len(found.function):
        raise BadInput(f"{trace} holds no calls")
    if save is not None:
        traces.write(found, save)
        note(f"written: {save}, {save.with_suffix('.json').name}")
    for option, price in (("--idle-price", idle_price), ("--waiting-price", waiting_price)):
        if not 0.0 <= price < float("inf"):
            raise BadInput(f"{option}: expected a number of 0 or more, got {price}")
    prices = Prices(idle_price, waiting_price)
    names = policies or ["relight", "knative", "fixed:5m", "fixed:10m", "hybrid", "always-on", "oracle"]
    chosen = {name: policy(name) for name in names}
    entries = Entries(found)
    outcomes = {name: one(entries, prices) for name, one in chosen.items()}
    if output == "json":
        print_json({name: _outcome(one, prices.idle, prices.waiting) for name, one in outcomes.items()})
    else:
        note(f"{found.name}: {found.size} functions, {int(found.calls.sum())} calls, {found.minutes / 1440:.1f} days")
        _print_outcomes(outcomes, idle_price, waiting_price)
    if plot is not None:
        dearer = [Prices(idle_price, waiting_price * factor) for factor in (0.1, 0.3, 1, 3, 10)]
        line = [policy("relight")(entries, one) for one in dearer]
        points = {name: (one.gpu_seconds, one.percentile(75)) for name, one in outcomes.items() if name != "relight"}
        title = f"{found.name}: cold starts against idle time"
        plotting.draw(plot, title, {"relight": [(one.gpu_seconds, one.percentile(75)) for one in line]}, points)
        note(f"drawn: {plot}")


@command.command("off")
def off(
    if_expired: Annotated[
        bool, typer.Option("--if-expired", help="Only where nobody holds the policy's Lease any more.")
    ] = False,
    home: _Home = "default",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Give every revision its owner's own values back.

    A policy that still runs sets its own again: end that first.
    """
    from relight.net.kube import Kube
    from relight.warm.acting import restore
    from relight.warm.leading import API, KIND, NAME, expired

    def undo(kube: Kube) -> None:
        try:
            lease = kube.get(API, KIND, NAME, home)["spec"]
        except NotFound:
            lease = {}
        if if_expired and lease and not expired(lease, time.time()):
            note(f"{lease['holderIdentity']} acts: nothing is changed")
            return
        for name in restore(kube, "relight warm off"):
            print(name)

    if os.environ.get("KUBERNETES_SERVICE_HOST") and kubeconfig is None:
        kube = Kube.in_cluster(home)
        with kube:
            undo(kube)
        return
    with connect(kubeconfig, context, None) as link:
        undo(link.kube)


@command.command("run")
def run(
    prometheus: Annotated[
        str | None, typer.Option(metavar="URL", help="Where the cluster's Prometheus answers.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Observe, decide and tell; change nothing.")] = False,
    home: _Home = "default",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Run the policy in this process, until it is ended: in a pod of the cluster
    (its account needs the Role relight-warm), or for a cluster from outside.

    RELIGHT_WARM_IDLE_PRICE, _WAITING_PRICE, _GPU_BUDGET and _CPU_SHARE set
    what things cost. Of several only one acts: who holds the Lease.
    """
    from relight.base import logs
    from relight.cli.fetching import fetch
    from relight.net.kube import Kube
    from relight.warm.pods import replicas
    from relight.warm.running import Running
    from relight.warm.settings import WarmSettings
    from relight.warm.sources import FunctionSource, PrometheusSource, RouterSource, Source

    settings = WarmSettings.from_environ(os.environ, mode="dry-run" if dry_run else "on", namespace=home)
    logs.configure(os.environ.get("RELIGHT_LOG_LEVEL") or "info")
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    def serve(kube: Kube, source: Source) -> None:
        running = Running(kube, source, settings)
        running.start()
        try:
            ended.wait()
        finally:
            running.stop()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        if os.environ.get("KUBERNETES_SERVICE_HOST") and kubeconfig is None:
            with Kube.in_cluster(home) as kube:
                source: Source = FunctionSource(replicas(kube), fetch)
                serve(kube, PrometheusSource(prometheus, fetch) if prometheus else source)
            return
        with connect(kubeconfig, context, None) as link:
            if prometheus:
                serve(link.kube, PrometheusSource(prometheus, fetch))
            elif link.target.platform is not None:
                serve(link.kube, RouterSource(link.target.platform.functions, fetch))
            else:
                raise BadInput("outside of a cluster the policy needs --prometheus URL, or local mode")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_outcomes(outcomes: dict[str, Outcome], idle_price: float, waiting_price: float) -> None:
    rows = []
    for name, one in outcomes.items():
        told = _outcome(one, idle_price, waiting_price)
        cold = told["coldStarts"]
        assert isinstance(cold, dict)
        rows.append(
            (
                name,
                f"{told['money']:.2f}",
                f"{told['idleGpuSeconds']:.0f}",
                f"{told['waitingSeconds']:.0f}",
                *(f"{100 * cold[key]:.1f}" for key in ("p50", "p75", "p99", "calls")),
            )
        )
    print_table(("policy", "money", "idle gpu-s", "wait s", "p50 %", "p75 %", "p99 %", "of calls %"), rows)


def _outcome(one: Outcome, idle_price: float, waiting_price: float) -> dict[str, object]:
    from relight.decide.keepalive import Prices

    return {
        "money": one.money(Prices(idle_price, waiting_price)),
        "idleGpuSeconds": one.gpu_seconds,
        "waitingSeconds": float(one.waiting.sum()),
        "coldStarts": {
            "p50": one.percentile(50),
            "p75": one.percentile(75),
            "p99": one.percentile(99),
            "calls": one.cold_share,
        },
    }
