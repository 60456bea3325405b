"""Knative's ``func`` as a program: it builds a function's image, pushes it and deploys it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from relight.base.errors import PlatformError
from relight.cluster.wheel import FOLDER, lay_wheel

_WHEEL = re.compile(rf"{FOLDER}/(relight-[\w.+]+-py3-none-any\.whl)")


def find_func(environ: Mapping[str, str]) -> list[str] | None:
    """The command that is ``func``: the program, or ``kn`` with its plugin; None: neither is on the path."""
    path = environ.get("PATH")
    if shutil.which("func", path=path):
        return ["func"]
    return ["kn", "func"] if shutil.which("kn", path=path) and shutil.which("kn-func", path=path) else None


def deploy_arguments(folder: Path, namespace: str, registry: str | None) -> list[str]:
    """What ``func`` is called with."""
    arguments = ["deploy", "--path", str(folder), "--namespace", namespace]
    return [*arguments, "--registry", registry] if registry else arguments


def run_func(
    command: Sequence[str],
    arguments: Sequence[str],
    environ: Mapping[str, str],
    on_line: Callable[[str], None] = lambda line: None,
) -> None:
    """Run func and pass on each line that it prints. PlatformError: it failed; its last words are the reason."""
    last = "no reason given"
    with subprocess.Popen(
        [*command, *arguments],
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        for line in process.stdout or ():
            if line.strip():
                last = line.strip()
                on_line(last)
    if process.returncode:
        raise PlatformError(f"{' '.join(command)} {arguments[0]} failed: {last}")


def prepare(folder: Path) -> Path | None:
    """Lay relight's wheel into a folder whose pyproject.toml names one that is not there; its path."""
    named = _WHEEL.search((folder / "pyproject.toml").read_text(encoding="utf-8"))
    if named is None or (folder / FOLDER / named[1]).is_file():
        return None
    return lay_wheel(folder)
