"""A revision's code: a copy of the function's folder, made when the revision is made.

Revisions are immutable, folders are not: without a copy, a rollback would run the edited code. Copies are named by the
digest of what they hold, so revisions with the same code share one.
"""

from __future__ import annotations

import compileall
import logging
import py_compile
import shutil
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relight.base import folders
from relight.base.errors import BadInput, NoSpace
from relight.base.ids import suffix

log = logging.getLogger("relight.local.serving")

SOURCE = "relight.dev/source"
"""Template annotation: the absolute folder of the function."""
SNAPSHOT = "relight.dev/snapshot"
"""Revision annotation: the digest of the copy that this revision runs."""
PRELOAD = "relight.dev/preload"
"""Template annotation: modules for the zygote to import, comma separated; wins over ``[tool.relight] preload``."""
BACKING = "relight.dev/backing"
"""Template annotation: backing services, comma separated; wins over ``[tool.relight] backing``."""
IMAGE = "relight"
FUNCTION = "RELIGHT_FUNCTION"


@dataclass(frozen=True)
class Source:
    """A function's code, ready to run."""

    digest: str
    path: Path
    preload: tuple[str, ...]
    backing: tuple[str, ...]


def folder_of(revision: Mapping[str, Any], functions: Path | None) -> Path:
    """The folder whose code a revision asks for. BadInput says what this machine can run instead."""
    annotations = revision["metadata"].get("annotations") or {}
    container = revision["spec"]["containers"][0]
    if SOURCE in annotations:
        folder = Path(annotations[SOURCE])
        if not folder.is_absolute():
            raise BadInput(
                f"annotation {SOURCE}: expected an absolute folder, got {annotations[SOURCE]!r}", param=SOURCE
            )
        if not folder.is_dir():
            raise BadInput(f"annotation {SOURCE}: there is no folder {folder}", param=SOURCE)
        return folder
    image = str(container.get("image", ""))
    name = image.rpartition("/")[2].partition("@")[0].partition(":")[0]
    if name != IMAGE:
        raise BadInput(
            f"image {image!r}: this machine runs no containers; use image {IMAGE!r} with {FUNCTION} in its env, "
            f"or deploy a folder with 'relight deploy'",
            param="spec.containers[0].image",
        )
    wanted = next(
        (str(one.get("value", "")) for one in container.get("env") or () if one.get("name") == FUNCTION), "model"
    )
    if functions is None:
        raise BadInput(
            f"{FUNCTION}={wanted}: no functions folder is set; start with 'relight up --functions DIR'", param=FUNCTION
        )
    folder = functions / wanted
    if "/" in wanted or wanted.startswith(".") or not folder.is_dir():
        known = ", ".join(sorted(one.name for one in functions.iterdir() if (one / "func.yaml").exists())) or "none"
        raise BadInput(f"{FUNCTION}={wanted!r}: no such function in {functions} (there: {known})", param=FUNCTION)
    return folder


def take(folder: Path, sources: Path) -> str:
    """Copy a folder into ``sources``, whole or not at all; the digest under which it stands there."""
    listing = folders.listing(folder)
    digest = folders.digest(folder, listing)
    target = sources / digest.replace(":", "-")
    if target.is_dir():
        return digest
    sources.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = sources / f".{target.name}-{suffix()}"
    try:
        for entry in listing:
            copy = partial / entry
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(folder / entry, copy)
        # Compiled here, once, and not in each replica; by hash, for a copy has no source to be newer than.
        compileall.compile_dir(partial, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
        partial.rename(target)
    except FileExistsError:
        shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        if target.is_dir():  # another took the same copy first
            return digest
        raise NoSpace(f"the function's folder {folder} could not be copied to {sources}: {error.strerror}") from error
    return digest


def open_copy(digest: str, sources: Path, annotations: Mapping[str, str]) -> Source:
    """A copy taken earlier, with what its pyproject asks of the platform."""
    path = sources / digest.replace(":", "-")
    if not path.is_dir():
        raise BadInput(f"the code of this revision ({digest}) is gone from {sources}: deploy the function again")
    settings: Mapping[str, Any] = {}
    project = path / "pyproject.toml"
    if project.is_file():
        try:
            settings = tomllib.loads(project.read_text()).get("tool", {}).get("relight", {})
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise BadInput(f"pyproject.toml: {error}", param="pyproject.toml") from error
    return Source(
        digest,
        path,
        _names(annotations.get(PRELOAD), settings.get("preload", ()), "preload"),
        _names(annotations.get(BACKING), settings.get("backing", ()), "backing"),
    )


def _names(annotation: str | None, setting: Any, what: str) -> tuple[str, ...]:
    if annotation is not None:
        return tuple(sorted(name for part in annotation.split(",") if (name := part.strip())))
    if not isinstance(setting, list | tuple) or not all(isinstance(name, str) for name in setting):
        raise BadInput(f"pyproject.toml: tool.relight.{what}: expected a list of names, got {setting!r}")
    return tuple(sorted(setting))


def prune(sources: Path, used: Iterable[str]) -> None:
    """Remove copies that no revision uses, and what an interrupted copy left."""
    keep = {digest.replace(":", "-") for digest in used}
    for entry in sources.iterdir() if sources.is_dir() else ():
        if entry.name not in keep:
            shutil.rmtree(entry, ignore_errors=True)
            log.debug("source.pruned name=%s", entry.name)
