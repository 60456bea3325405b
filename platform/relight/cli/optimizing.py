"""``relight model optimize``: a new version of a model, smaller or quicker, if it still answers the same."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relight.base.errors import Conflict
from relight.base.settings import Settings
from relight.cli.output import Format, note, print_json, print_table, waiting

if TYPE_CHECKING:
    from relight.backends.base import Declared
    from relight.backends.optimizing.samples import Sample
    from relight.backends.optimizing.trial import Trial, Way
    from relight.store.repository import Repository


def optimize(
    name: Annotated[str, typer.Argument(help="The model's name in the repository.")],
    int8: Annotated[bool, typer.Option("--int8", help="Weights in INT8, no data needed (dynamic).")] = False,
    int8_static: Annotated[
        Path | None,
        typer.Option("--int8-static", metavar="CALIBRATION", help="All in INT8; ranges from these inputs."),
    ] = None,
    fp16: Annotated[bool, typer.Option("--fp16", help="FP16 inside; inputs and outputs stay. For GPUs.")] = False,
    fuse: Annotated[bool, typer.Option("--fuse", help="Add the graph as optimised for this processor.")] = False,
    tensorrt: Annotated[bool, typer.Option("--tensorrt", help="Build a TensorRT plan on this GPU.")] = False,
    inputs: Annotated[
        Path | None, typer.Option("--inputs", metavar="FILE", help="Real inputs to compare on: .npz or .json.")
    ] = None,
    texts: Annotated[
        Path | None,
        typer.Option("--texts", metavar="FILE", help="For encoders with a tokenizer.json: a text per line."),
    ] = None,
    version: Annotated[
        int | None, typer.Option("--version", metavar="N", help="Version to start from; by default the latest.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Write it as a version of this model; by default NAME.")
    ] = None,
    min_agreement: Annotated[
        float, typer.Option("--min-agreement", min=-1.0, max=1.0, help="Least cosine of any row; below, refuse.")
    ] = 0.99,
    seconds: Annotated[float, typer.Option("--seconds", min=0.0, help="How long to measure each model.")] = 2.0,
    repository: Annotated[
        str | None,
        typer.Option(
            "--repository", metavar="URI", help="Model repository; as in relight model push.", show_default=False
        ),
    ] = None,
    output: Annotated[Format, typer.Option("-o", "--output", help="How to print.")] = "table",
) -> None:
    """Write a smaller or quicker version of a model, and compare the two.

    Both versions get the same real inputs. One whose answers differ is refused,
    and nothing is written.

    Examples:
      relight model optimize minilm --fuse --texts questions.txt
      relight model optimize ranker --int8 --inputs samples.npz
      relight model optimize vision --int8-static images.npz
    """
    from relight.cli.model import open_repository

    way = _way(int8=int8, static=int8_static is not None, fp16=fp16, fuse=fuse, tensorrt=tensorrt)
    there = open_repository(repository)
    written = target or name
    _check_config(there, written, way)
    from relight.backends.optimizing.trial import RECORD, attempt, examine
    from relight.store.cache import NodeCache

    with NodeCache(Settings.from_environ().cache).fetch(there, name, version) as fetched:
        declared, warmups = _configured(there, name)
        subject = examine(
            fetched.path, inputs=inputs, texts=texts, calibration=int8_static, declared=declared, warmups=warmups
        )
        with tempfile.TemporaryDirectory(prefix="relight-optimize-") as folder, waiting(f"making {way} of {name}"):
            trial = attempt(subject, way, Path(folder), seconds)
            record = {
                "format": 1,
                "of": {"model": name, "version": fetched.version, "digest": fetched.digest},
                "samples": {"compared": len(subject.samples), "calibrated": len(subject.calibration)},
                **asdict(trial),
            }
            if output == "table":
                _print(trial, len(subject.samples))
            trial.refuse(min_agreement)
            (Path(folder) / RECORD).write_text(json.dumps(record, indent=1))
            made = there.push(Path(folder), written)
    if output == "json":
        print_json({"model": written, "version": made, **record})
    else:
        print(f"\n{written} version {made} written to {there.uri} (from {name} version {fetched.version})")
        if trial.after.p50 > trial.before.p50:
            note("note: it is slower here than the original; the version before stays in the repository")


def _configured(repository: Repository, name: str) -> tuple[Declared, list[Sample]]:
    """What ``config.pbtxt`` declares, and its warm-ups from files: zeros and random numbers are no real inputs."""
    from relight.backends.base import NOTHING
    from relight.backends.declaring import of_config
    from relight.runtime import warming
    from relight.store import modelfiles

    files = modelfiles.fetch(repository, name)
    if files.config is None:
        return NOTHING, []
    from relight.wire import modelconfig_text

    config = modelconfig_text.decode(files.config, name).config
    real = [warmup for warmup in config.warmups if all(given.data == "file" for given in warmup.inputs.values())]
    return of_config(config), [warming.inputs(warmup, config, files.warmup) for warmup in real]


def _way(*, int8: bool, static: bool, fp16: bool, fuse: bool, tensorrt: bool) -> Way:
    chosen: dict[Way, bool] = {"int8": int8, "int8-static": static, "fp16": fp16, "fuse": fuse, "tensorrt": tensorrt}
    asked = [way for way, wanted in chosen.items() if wanted]
    if len(asked) != 1:
        options = ", ".join(f"--{way}" for way in chosen)
        given = f"got {', '.join(f'--{way}' for way in asked)}" if asked else "got none of them"
        raise typer.BadParameter(f"expected one of {options}; {given}", param_hint="optimize")
    return asked[0]


def _check_config(repository: Repository, name: str, way: Way) -> None:
    """A plan is no version of a model whose config.pbtxt, which is one for all versions, names another backend."""
    if way != "tensorrt":
        return
    try:
        text = repository.objects.read(f"{name}/config.pbtxt").decode()
    except FileNotFoundError:
        return
    for field, value in re.findall(r'^\s*(platform|backend)\s*:\s*["\']([^"\']+)', text, re.MULTILINE):
        if not value.startswith("tensorrt"):
            raise Conflict(
                f"config.pbtxt of {name} says {field} {value!r} for all its versions: "
                f"write the plan as a model of its own, such as --as {name}-trt"
            )


def _print(trial: Trial, samples: int) -> None:
    before, after = trial.before, trial.after
    rows: list[Sequence[object]] = [
        ("size", _megabytes(before.size), _megabytes(after.size), _ratio(after.size, before.size)),
        ("load to first answer", _ms(before.load), _ms(after.load), _ratio(after.load, before.load)),
        ("latency p50", _ms(before.p50), _ms(after.p50), _ratio(after.p50, before.p50)),
        ("latency p95", _ms(before.p95), _ms(after.p95), _ratio(after.p95, before.p95)),
        (
            f"throughput, batch {after.batch}",
            f"{before.throughput:.0f} rows/s",
            f"{after.throughput:.0f} rows/s",
            _ratio(after.throughput, before.throughput),
        ),
    ]
    print_table((trial.way, "before", "after", "after/before"), rows)
    print(f"\nanswers to {samples} samples, on {trial.placed['device']} ({trial.placed['engine']})")
    print_table(
        ("output", "rows", "max abs", "cosine", "top-1"),
        [
            (found.output, found.rows, f"{found.max_abs:.2g}", f"{found.cosine:.5f}", _share(found.top1))
            for found in trial.agreements
        ],
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"


def _megabytes(size: int) -> str:
    from relight.base.units import format_bytes

    return format_bytes(size)


def _ratio(after: float, before: float) -> str:
    return f"{after / before:.2f}" if before else "-"


def add(command: Any) -> None:
    """Put ``optimize`` among the commands of ``relight model``."""
    command.command("optimize")(optimize)
