"""relight's own wheel, laid into a function's folder: an image that func builds has the folder and nothing else.

From a checkout it is built by pip; an installed relight is packed again from the files that its RECORD lists.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from itertools import pairwise
from pathlib import Path, PurePosixPath

import relight
from relight.base.errors import NotFound, PlatformError

FOLDER = "wheels"
_TIMEOUT = 300.0
"""Seconds for pip: it makes an environment for the build, and may have to download setuptools."""
_LEFT_BEHIND = ("build", "dist", "*.egg-info", "__pycache__")
_EPOCH = (1980, 1, 1, 0, 0, 0)


def lay_wheel(folder: Path) -> Path:
    """Write relight's wheel into ``folder/wheels``; its path. NotFound: no such folder; PlatformError: no wheel."""
    if not folder.is_dir():
        raise NotFound(f"{folder}: no such folder")
    target = folder / FOLDER
    source = Path(relight.__file__).parents[1]
    if (source / "pyproject.toml").is_file():
        return _built(source, target)
    try:
        return _packed(distribution("relight"), target)
    except PackageNotFoundError:
        raise PlatformError("relight is not installed as a package: no wheel of it can be made") from None


def lay_wheels(folders: Sequence[Path]) -> list[Path]:
    """As ``lay_wheel``, for several folders; the wheel is made once."""
    missing = [folder for folder in folders if not folder.is_dir()]
    if missing:
        raise NotFound(f"{missing[0]}: no such folder")
    first = lay_wheel(folders[0])
    laid = [first]
    for folder in folders[1:]:
        laid.append(folder / FOLDER / first.name)
        with _written(laid[-1]) as partial:
            shutil.copyfile(first, partial)
    return laid


def _built(source: Path, target: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    with tempfile.TemporaryDirectory(prefix="relight-wheel-") as folder:
        # setuptools builds in the source: what an earlier build left there would become part of the wheel.
        copy = shutil.copytree(source, Path(folder) / "platform", ignore=shutil.ignore_patterns(*_LEFT_BEHIND))
        made = Path(folder) / "made"
        pip += ["--wheel-dir", str(made), str(copy)]
        try:
            done = subprocess.run(pip, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
        except subprocess.TimeoutExpired:
            raise PlatformError(f"pip did not make relight's wheel within {_TIMEOUT:.0f} s") from None
        found = next(made.glob("relight-*.whl"), None)
        if done.returncode or found is None:
            raise PlatformError(f"pip could not make relight's wheel from {source}: {_reason(done.stderr)}")
        path = target / found.name
        with _written(path) as partial:
            shutil.copyfile(found, partial)
        return path


def _reason(said: str) -> str:
    """The line that tells most: pip's own error, else the last one of the program that it ran, else its last one."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    below = [before for before, line in pairwise(lines) if line == "[end of output]"]
    return (errors or below or lines[-1:] or ["no reason given"])[0]


@contextmanager
def _written(path: Path) -> Iterator[Path]:
    """Where to write a file that is to be ``path`` once it is whole."""
    path.parent.mkdir(exist_ok=True)
    partial = path.with_name(f".{path.name}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _packed(installed: Distribution, target: Path) -> Path:
    """The wheel that this installation came from, as far as a wheel matters: its files and its metadata."""
    path = target / f"relight-{installed.version}-py3-none-any.whl"
    info = f"relight-{installed.version}.dist-info"
    lines: list[str] = []
    with _written(path) as partial, zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as wheel:

        def add(name: str, content: bytes) -> None:
            wheel.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)

        for file in sorted(installed.files or (), key=str):
            if _belongs(PurePosixPath(str(file)), info):
                content = Path(str(file.locate())).read_bytes()
                digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                lines.append(f"{file},sha256={digest},{len(content)}")
                add(str(file), content)
        if not any(line.startswith("relight/") for line in lines):
            raise PlatformError("relight is installed without a list of its files: no wheel of it can be made")
        add(f"{info}/RECORD", "\n".join([*lines, f"{info}/RECORD,,", ""]).encode())
    return path


def _belongs(file: PurePosixPath, info: str) -> bool:
    """Whether a file stood in the wheel, and was not made by the installation."""
    if file.parts[0] == info:
        return file.name not in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
    return file.parts[0] == "relight" and "__pycache__" not in file.parts
