"""What ``render``, ``diff`` and ``apply`` have in common: the options that say which manifests are meant."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from relight.base.errors import BadInput, RelightError
from relight.cli.output import note

if TYPE_CHECKING:
    from relight.cluster.documents import Document

Filename = Annotated[
    list[str] | None,
    typer.Option(
        "-f",
        "--filename",
        metavar="PATH",
        help="A file, a folder, or - for stdin. May be repeated.",
        show_default=False,
    ),
]
Kustomize = Annotated[
    list[str] | None,
    typer.Option(
        "-k", "--kustomize", metavar="DIR", help="A folder with a kustomization. May be repeated.", show_default=False
    ),
]
Image = Annotated[
    list[str] | None,
    typer.Option(
        "--image",
        metavar="NAME=REFERENCE",
        help="Another image, such as relight=REGISTRY/relight@sha256:DIGEST.",
        show_default=False,
    ),
]


def read(
    filename: Sequence[str] | None, kustomize: Sequence[str] | None, image: Sequence[str] | None
) -> list[Document]:
    """The objects that the options name, images renamed. BadInput: none were named, or what is there is none."""
    from relight.cluster.documents import kustomization_in, read_documents
    from relight.cluster.images import parse_images, rename_images

    paths = [*(filename or ()), *(kustomize or ())]
    if not paths:
        raise BadInput("expected -f PATH or -k DIR: what is meant?")
    for folder in kustomize or ():
        if not kustomization_in(folder):
            raise BadInput(f"{folder}: no kustomization.yaml in this folder; -f takes files and plain folders")
    images = parse_images(image or ())
    return rename_images(read_documents(paths, sys.stdin.read() if "-" in paths else None), images)


def explain(document: Document, error: RelightError) -> None:
    """Say why a document was refused, and what helps where that is known."""
    print(f"error: {document.place}: {document.name}: {error.message}", file=sys.stderr)
    if "must not set" in error.message:  # as Knative's webhook says it
        from relight.cluster.checks import features_of

        flags = ", ".join(sorted(features_of(document.value)))
        note(f"hint: ConfigMap config-features in knative-serving has to enable {flags} (see manifests/knative)")
