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
from collections.abc import Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
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
    target.mkdir(exist_ok=True)
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
        (folder / FOLDER).mkdir(exist_ok=True)
        laid.append(Path(shutil.copy2(first, folder / FOLDER / first.name)))
    return laid


def _built(source: Path, target: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(target)]
    with tempfile.TemporaryDirectory(prefix="relight-wheel-") as folder:
        # setuptools builds in the source: what an earlier build left there would become part of the wheel.
        copy = shutil.copytree(source, Path(folder) / "platform", ignore=shutil.ignore_patterns(*_LEFT_BEHIND))
        try:
            done = subprocess.run([*pip, str(copy)], capture_output=True, text=True, timeout=_TIMEOUT, check=False)
        except subprocess.TimeoutExpired:
            raise PlatformError(f"pip did not make relight's wheel within {_TIMEOUT:.0f} s") from None
    found = sorted(target.glob("relight-*.whl"), key=lambda path: path.stat().st_mtime)
    if done.returncode or not found:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise PlatformError(f"pip could not make relight's wheel from {source}: {reason}")
    return found[-1]


def _packed(installed: Distribution, target: Path) -> Path:
    """The wheel that this installation came from, as far as a wheel matters: its files and its metadata."""
    path = target / f"relight-{installed.version}-py3-none-any.whl"
    info = f"relight-{installed.version}.dist-info"
    lines: list[str] = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:

        def add(name: str, content: bytes) -> None:
            wheel.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)

        for file in sorted(installed.files or (), key=str):
            if _belongs(PurePosixPath(str(file)), info):
                content = Path(str(file.locate())).read_bytes()
                digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                lines.append(f"{file},sha256={digest},{len(content)}")
                add(str(file), content)
        add(f"{info}/RECORD", "\n".join([*lines, f"{info}/RECORD,,", ""]).encode())
    if not any(line.startswith("relight/") for line in lines):
        path.unlink()
        raise PlatformError("relight is installed without a list of its files: no wheel of it can be made")
    return path


def _belongs(file: PurePosixPath, info: str) -> bool:
    """Whether a file stood in the wheel, and was not made by the installation."""
    if file.parts[0] == info:
        return file.name not in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
    return file.parts[0] == "relight" and "__pycache__" not in file.parts
