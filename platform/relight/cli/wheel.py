"""``relight wheel``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Functions' folders.")],
) -> None:
    """Lay relight's wheel into functions' folders, for images that func builds.

    A function's pyproject.toml names it as wheels/relight-VERSION-py3-none-any.whl.

    \b
    relight wheel hello
    kn func deploy --path hello --registry REGISTRY
    """
    from relight.cluster.wheel import lay_wheels

    for path in lay_wheels(folders):
        print(path)
