"""One optimisation from end to end: make the new files, ask both models the same, compare answers and speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from relight.backends import registry
from relight.backends.base import NOTHING, Declared, Session
from relight.backends.graphs import SHIPPED
from relight.backends.optimizing import onnx_files, plans, torch_files
from relight.backends.optimizing.agreement import Agreement, compare
from relight.backends.optimizing.measuring import Figures, measure
from relight.backends.optimizing.samples import TOKENIZER, Sample, from_file, from_texts
from relight.base.errors import BadInput, Unprocessable
from relight.wire.tensors import TensorSpec

RECORD = "optimization.json"
"""In a version that was made so: of which one, how, and what was measured."""
Way = Literal["int8", "int8-static", "fp16", "fuse", "tensorrt"]


@dataclass(frozen=True)
class Subject:
    """A version of a model on this machine's disk."""

    folder: Path
    source: Path
    """The file of it that is opened."""
    declared: Declared
    samples: tuple[Sample, ...]
    """To compare on."""
    calibration: tuple[Sample, ...]
    """To learn ranges from; others than ``samples`` where there are enough."""


@dataclass(frozen=True)
class Trial:
    """What came out."""

    way: Way
    placed: dict[str, str]
    """Where the new model ran while it was measured."""
    before: Figures
    after: Figures
    agreements: tuple[Agreement, ...]

    @property
    def agreement(self) -> float:
        """The least cosine of all outputs."""
        return min(agreement.cosine for agreement in self.agreements)

    def refuse(self, least: float) -> None:
        """Unprocessable where an output agrees less than that."""
        wrong = [f"{found.output!r} has {found.cosine:.4f}" for found in self.agreements if not found.cosine >= least]
        if wrong:
            raise Unprocessable(
                f"the optimised model gives other answers: agreement (cosine of the worst row) of {', '.join(wrong)}, "
                f"expected at least {least}; nothing was written"
            )


def examine(
    folder: Path,
    *,
    inputs: Path | None = None,
    texts: Path | None = None,
    calibration: Path | None = None,
    declared: Declared = NOTHING,
    warmups: Sequence[Sample] = (),
) -> Subject:
    """Find the model's file in a version's folder, and real inputs for it. BadInput says which inputs are needed.

    ``declared`` and ``warmups`` are what its configuration says of it; the latter are compared on where no inputs are
    given.
    """
    names = [path.name for path in folder.iterdir() if path.is_file()]
    kind = registry.kind_of("", "", names)
    source = folder / registry.file_of(kind, names)
    given = inputs or texts or calibration
    if given is None and not warmups:
        raise BadInput("real inputs are needed, to see that the answers stay the same: --inputs FILE, or --texts FILE")
    if source.suffix == ".pt" and not declared.inputs:
        # TorchScript says nothing of what goes in; what is given does.
        read = [from_file(path, None) if path else [] for path in (inputs, calibration)]
        declared = torch_files.declared_by(source, (read[0] or read[1])[0])
    else:
        session = kind.backend().open(source, declared=declared)
        specs = session.inputs
        session.close()
        read = [
            _read(inputs or texts, folder / TOKENIZER, specs, is_text=inputs is None),
            _read(calibration, folder / TOKENIZER, specs, is_text=False),
        ]
    shown, learned = read
    if not shown and not learned:
        shown = list(warmups)
    if not shown:
        # Every fourth is kept back: what ranges were learned from says little about others.
        shown = learned[::4] if len(learned) > 1 else learned
        learned = [sample for at, sample in enumerate(learned) if at % 4] if len(learned) > 1 else learned
    return Subject(folder, source, declared, tuple(shown), tuple(learned))


def attempt(subject: Subject, way: Way, target: Path, seconds: float) -> Trial:
    """Write the new version's files into an empty folder and measure. Unprocessable where the model cannot be made so.

    Files that the optimisation does not replace are linked there.
    """
    source = subject.source
    old = _weights(subject, way)
    if way == "fuse":
        _require(source, ".onnx", way)
        _link(subject.folder, target, without=set())
        made = target / source.name
        new = list(onnx_files.fuse(made, target).iterdir())
    else:
        _make(subject, way, target)
        new = [path for path in target.iterdir() if path.is_file()]
        made = next(path for path in new if path.suffix in (".onnx", ".pt", ".plan"))
        _link(subject.folder, target, without={path.name for path in old})
    before, after = _Opener(source, subject.declared), _Opener(made, subject.declared)
    placed, agreements = _compare(before, after, subject.samples)
    figures = measure((before, _bytes(old)), (after, _bytes(new)), subject.samples, seconds)
    return Trial(way, placed, *figures, agreements)


def _make(subject: Subject, way: Way, target: Path) -> None:
    source = subject.source
    if way == "int8" and source.suffix in (".pt", ".pt2", ".safetensors"):
        torch_files.int8(source, target)
        return
    _require(source, ".onnx", way)
    if way == "int8":
        onnx_files.int8(source, target)
    elif way == "int8-static":
        onnx_files.int8_static(source, target, subject.calibration)
    elif way == "fp16":
        onnx_files.fp16(source, target)
    else:
        plans.build(source, target, subject.samples)


def _compare(
    before: _Opener, after: _Opener, samples: Sequence[Sample]
) -> tuple[dict[str, str], tuple[Agreement, ...]]:
    old, new = before(), after()
    try:
        if {spec.name for spec in old.inputs} != {spec.name for spec in new.inputs}:
            raise Unprocessable("the optimised model has other inputs than the original")
        pairs = [(old.run(sample), new.run(sample)) for sample in samples]
        return new.placement.describe(), tuple(compare(pairs))
    finally:
        old.close()
        new.close()


class _Opener:
    """Opens one model file, again and again."""

    def __init__(self, path: Path, declared: Declared) -> None:
        self._path = path
        self._declared = declared

    def __call__(self) -> Session:
        return registry.backend_for("", "", self._path.name).open(self._path, declared=self._declared)


def _read(path: Path | None, tokenizer: Path, specs: Sequence[TensorSpec], *, is_text: bool) -> list[Sample]:
    if path is None:
        return []
    if is_text or path.suffix == ".txt":
        return from_texts(path, tokenizer, specs)
    return from_file(path, specs)


def _weights(subject: Subject, way: Way) -> list[Path]:
    """The files that a new model takes the place of."""
    if subject.source.suffix != ".onnx":
        return [subject.source]
    if way == "fuse":  # which needs no package to read the file with
        return [path for path in subject.folder.iterdir() if path.name.startswith(subject.source.name)]
    return [path for path in onnx_files.files_of(subject.source) if path.is_file()]


def _link(folder: Path, target: Path, without: set[str]) -> None:
    """Everything else that belongs to the version: a tokenizer, labels. Graphs fused of the old file do not."""
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if not path.is_file() or name.parts[0] in {*without, SHIPPED, RECORD} or name.parts[0][0] == ".":
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).symlink_to(path.resolve())


def _bytes(paths: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def _require(source: Path, suffix: str, way: Way) -> None:
    if source.suffix != suffix:
        raise Unprocessable(f"--{way} is for ONNX files; this version has {source.name}")
