"""What belongs to a folder of source code, and the digest of that.

The same rules decide what is deployed, what is copied and what makes a new revision: files that tools leave behind are
left out (and what ``.funcignore`` names, as ``func`` does), links that lead out of the folder are refused.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
from pathlib import Path

from relight.base.errors import BadInput, TooLarge

IGNORED = (
    ".git",
    ".func",
    ".venv",
    "venv",
    "__pycache__",
    "*.pyc",
    "*.egg-info",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    "node_modules",
    "build",
    "dist",
    "wheels",
)
"""Left out wherever they stand in the folder."""
MAX_FILES = 5_000
MAX_BYTES = 256 * 2**20
"""Source code is small; weights belong in the model repository, and this limit says so before they are copied."""


def listing(folder: Path) -> list[str]:
    """Relative paths of the files that belong to a folder, sorted. BadInput, TooLarge name what is wrong."""
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder")
    patterns = [*IGNORED, *_funcignore(folder)]
    found: list[str] = []
    size = 0
    for here, names, files in os.walk(folder):
        base = Path(here)
        names[:] = sorted(name for name in names if not _ignored(base / name, folder, patterns))
        for name in [*files, *[name for name in names if (base / name).is_symlink()]]:
            path = base / name
            if _ignored(path, folder, patterns):
                continue
            if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
                raise BadInput(f"{path} is a link that leads out of {folder}")
            if not path.is_file():
                continue
            size += path.stat().st_size
            found.append(path.relative_to(folder).as_posix())
            if len(found) > MAX_FILES or size > MAX_BYTES:
                raise TooLarge(
                    f"{folder} holds more than {MAX_FILES} files or {MAX_BYTES // 2**20} MiB: weights belong in the "
                    f"model repository ('relight model push'), and .funcignore leaves out what is not needed"
                )
    return sorted(found)


def digest(folder: Path, files: list[str] | None = None) -> str:
    """``sha256:<hex>`` over names, contents and executable bits of what belongs to a folder."""
    total = hashlib.sha256()
    for name in listing(folder) if files is None else files:
        path = folder / name
        content = path.read_bytes()
        executable = "x" if path.stat().st_mode & 0o100 else "-"
        total.update(f"{name}\0{executable}{len(content)}\0".encode())
        total.update(content)
    return "sha256:" + total.hexdigest()


def _funcignore(folder: Path) -> list[str]:
    path = folder / ".funcignore"
    if not path.is_file():
        return []
    lines = (line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
    return [line.rstrip("/") for line in lines if line and not line.startswith(("#", "!"))]


def _ignored(path: Path, folder: Path, patterns: list[str]) -> bool:
    relative = path.relative_to(folder).as_posix()
    for pattern in patterns:
        anchored = pattern.lstrip("/")
        if fnmatch.fnmatchcase(relative, anchored) or ("/" not in pattern and fnmatch.fnmatchcase(path.name, anchored)):
            return True
    return False
