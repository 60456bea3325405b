"""Saved optimised graphs of models, kept per node: what makes the second load of a model short.

An optimised graph is good for one version of the runtime, one kind of processor and one content of the file; all three
are in its folder's name. A folder appears whole, by a rename. ``choice.json`` in it says what was measured, and whether
the saved graph or the model's own file is quicker to the first result: folding can make a graph larger than its model.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from relight.backends import cpus
from relight.base.ids import new_id

FORMAT = 1
GRAPH = "model.onnx"
DATA = "model.data"
SHIPPED = "fused"
"""Folder of a model's version: ``fused/PROCESSOR/RUNTIME/``."""
_CHOICE = "choice.json"
_SAMPLE, _SAMPLES = 64 << 10, 32


@dataclass(frozen=True)
class Measured:
    """Seconds to load and to run once, by file."""

    plain: tuple[float, float]
    saved: tuple[float, float]

    @property
    def saved_is_quicker(self) -> bool:
        return sum(self.saved) < sum(self.plain)


@dataclass(frozen=True)
class Graphs:
    """The saved graph of one model file on this node."""

    folder: Path

    @classmethod
    def of(cls, cache: Path, model: Path, digest: str | None, version: str) -> Graphs:
        """Where the graph of a model is or will be."""
        if digest is None:
            stat = model.stat()
            digest = f"{model.resolve()}:{stat.st_size}:{stat.st_mtime_ns}"
        key = hashlib.sha256(f"{FORMAT}\n{version}\n{cpus.kind()}\n{model.name}\n{digest}".encode()).hexdigest()[:32]
        return cls(cache / "graphs" / key)

    @classmethod
    def shipped(cls, model: Path, version: str) -> Graphs | None:
        """The graph that a version of the repository brings for this processor and runtime; None where it has none.

        ``relight model optimize --fuse`` puts it there. It has to be that of this very model: a folder that somebody
        copied to put other weights in would else answer with the old ones.
        """
        graphs = cls(model.parent / SHIPPED / cpus.kind() / version)
        try:
            of = json.loads((graphs.folder / _CHOICE).read_text()).get("model")
        except (OSError, ValueError):
            return None
        return graphs if of == fingerprint(model) else None

    @property
    def graph(self) -> Path:
        return self.folder / GRAPH

    def chosen(self) -> bool | None:
        """Whether to open the saved graph; None where there is none, or one that cannot be used."""
        try:
            choice = json.loads((self.folder / _CHOICE).read_text())
        except (OSError, ValueError):
            return None
        return bool(choice["saved_is_quicker"]) if choice.get("format") == FORMAT and self.graph.exists() else None

    @contextmanager
    def building(self) -> Iterator[Path | None]:
        """A folder to build in, or None where another process builds, or has built, the same."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with (self.folder.parent / f"{self.folder.name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
                return
            if self.folder.exists():
                yield None
                return
            for left in self.folder.parent.glob(f"{self.folder.name}.*.part"):
                # The lock is ours: whoever made these was killed.
                shutil.rmtree(left, ignore_errors=True)
            part = self.folder.parent / f"{self.folder.name}.{new_id()}.part"
            part.mkdir()
            try:
                yield part
            finally:
                shutil.rmtree(part, ignore_errors=True)

    def ship(self, model: Path) -> None:
        """Say of a graph that was saved in this folder that it is this model's, and to be used."""
        choice = {"format": FORMAT, "saved_is_quicker": True, "model": fingerprint(model)}
        (self.folder / _CHOICE).write_text(json.dumps(choice, indent=1))

    def publish(self, part: Path, measured: Measured) -> None:
        """Make what was built the graph of this model, in one step."""
        choice = {
            "format": FORMAT,
            "saved_is_quicker": measured.saved_is_quicker,
            "plain": dict(zip(("load", "run"), measured.plain, strict=True)),
            "saved": dict(zip(("load", "run"), measured.saved, strict=True)),
        }
        (part / _CHOICE).write_text(json.dumps(choice, indent=1))
        os.rename(part, self.folder)

    def discard(self) -> None:
        """Take away a graph that cannot be read; the next process builds it anew."""
        broken = self.folder.with_name(f"{self.folder.name}.{new_id()}.part")
        try:
            os.rename(self.folder, broken)
        except OSError:
            return
        shutil.rmtree(broken, ignore_errors=True)


def fingerprint(model: Path) -> str:
    """Of a file's size and of samples spread over it: 2 MiB are read, however large it is.

    Weights that were trained further differ everywhere, so that the samples tell them apart.
    """
    size = model.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with model.open("rb") as file:
        for at in range(_SAMPLES):
            file.seek(max(0, (size - _SAMPLE) * at // (_SAMPLES - 1)))
            digest.update(file.read(_SAMPLE))
    return digest.hexdigest()
