"""``relight render``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from relight.base.errors import BadInput
from relight.cli.manifests import Filename, Image, Kustomize, read


def command(
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="A function's folder.", show_default=False)
    ] = None,
    filename: Filename = None,
    kustomize: Kustomize = None,
    image: Image = None,
) -> None:
    """Print the objects that apply or deploy would send, as YAML; nothing is sent.

    \b
    relight render -k manifests/overlays/gpu --image relight=IMAGE@DIGEST
    relight render functions/embed --image relight=REGISTRY/relight:0.1.0-cuda
    """
    import yaml

    from relight.cluster.images import parse_images
    from relight.cluster.project import read_project
    from relight.cluster.service import Options, build_objects

    if folder is None:
        values: list[Any] = [dict(document.value) for document in read(filename, kustomize, image)]
    elif filename or kustomize:
        raise BadInput("expected a function's folder, or -f and -k; not both")
    else:
        given = parse_images(image or ()).get("relight")
        values = build_objects(
            read_project(folder), Options(image=given or "relight", folder=given is None, environ=os.environ)
        )
    print(yaml.safe_dump_all(values, sort_keys=False, allow_unicode=True), end="")
