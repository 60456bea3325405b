"""What ``push`` stores: the files of a folder, or a single file, as they will be called in the repository."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from relight.base.errors import BadInput
from relight.store.objects import clean_key


@dataclass(frozen=True, slots=True)
class Source:
    """Files as (path in the version's folder, origin, bytes), all their bytes, and the model's config.pbtxt."""

    files: tuple[tuple[str, Path, int], ...]
    size: int
    config: bytes | None


def collect(path: Path) -> Source:
    """The files to store. Accepted are

    * a folder of Triton's layout: ``config.pbtxt`` and one folder named by a number (the number itself is not kept);
    * any other folder: all its files;
    * one file: an ``.onnx`` file is stored as ``model.onnx``, another one under its own name.

    Names that begin with a dot are left out. A symbolic link to a file stands for that file (model hubs keep
    their files so); a link to a folder is refused, for it may lead round in circles.
    """
    if path.is_file():
        name = "model.onnx" if path.suffix == ".onnx" else path.name
        return _source([(name, path)], None)
    if not path.is_dir():
        raise BadInput(f"{path} is neither a folder nor a file")
    config = path / "config.pbtxt"
    numbered = sorted(item.name for item in path.iterdir() if re.fullmatch(r"[0-9]+", item.name) and item.is_dir())
    if len(numbered) > 1:
        raise BadInput(
            f"{path} holds the versions {', '.join(numbered)}: push one of them, such as {path / numbered[-1]}"
        )
    files = [(name, file) for name, file in _walk(path, "") if name != "config.pbtxt"]
    if numbered:
        prefix = f"{numbered[0]}/"
        strangers = [name for name, _ in files if not name.startswith(prefix)]
        if strangers:
            raise BadInput(
                f"{path} holds version {numbered[0]} and beside it {', '.join(strangers)}: push one or the other"
            )
        files = [(name.removeprefix(prefix), file) for name, file in files]
    if not files:
        raise BadInput(f"{path} holds no file to push")
    return _source(files, config.read_bytes() if config.is_file() else None)


def _source(files: list[tuple[str, Path]], config: bytes | None) -> Source:
    found = tuple((clean_key(name), file, file.stat().st_size) for name, file in sorted(files))
    return Source(found, sum(size for _, _, size in found), config)


def _walk(folder: Path, prefix: str) -> Iterator[tuple[str, Path]]:
    with os.scandir(folder) as found:
        items = sorted(found, key=lambda entry: entry.name)
    for item in items:
        if item.name.startswith("."):
            continue
        if item.is_dir(follow_symlinks=False):
            yield from _walk(folder / item.name, f"{prefix}{item.name}/")
        elif item.is_file():
            yield prefix + item.name, folder / item.name
        elif item.is_symlink():
            raise BadInput(
                f"{item.path} links to {'a folder' if item.is_dir() else 'nothing'}: only links to files are followed"
            )
        else:
            raise BadInput(f"{item.path} is no regular file")
