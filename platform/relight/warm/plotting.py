"""Pictures of a trade-off: cold starts against idle GPU-seconds. Needs matplotlib (the extra ``plots``)."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

from relight.base.errors import BadInput, PlatformError

Point = tuple[float, float]
"""Idle GPU-seconds, share of cold starts."""
FORMATS = (".png", ".svg")


def check(path: Path) -> None:
    """Whether it can be drawn, before minutes are spent on what would be. BadInput: another ending of the name."""
    if path.suffix not in FORMATS:
        raise BadInput(f"{path}: expected a file that ends in {' or '.join(FORMATS)}", param="plot")
    if importlib.util.find_spec("matplotlib") is None:
        raise PlatformError("plots need matplotlib: pip install 'relight[plots]'")


def draw(path: Path, title: str, curves: Mapping[str, Sequence[Point]], points: Mapping[str, Point]) -> None:
    """Curves as lines, single policies as points, into a PNG or SVG. Raises as ``check`` does."""
    check(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.8), layout="constrained")
    axes = figure.add_subplot()
    for name, line in curves.items():
        idle, cold = zip(*sorted(line), strict=True)
        axes.plot(idle, [100 * share for share in cold], marker="o", markersize=4, label=name)
    for marker, (name, (idle_seconds, share)) in zip("sD^vP*X<>hdp" * 4, points.items(), strict=False):
        axes.plot([idle_seconds], [100 * share], marker, markersize=7, linestyle="none", label=name)
    axes.set_xscale("symlog", linthresh=1000.0)
    axes.set_xlabel("idle GPU-seconds")
    axes.set_ylabel("cold calls of a function, 75th percentile (%)")
    axes.set_ylim(-3, 103)
    axes.set_title(title)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize="small")
    canvas = FigureCanvasSVG(figure) if path.suffix == ".svg" else FigureCanvasAgg(figure)
    canvas.print_figure(str(path), dpi=110)
