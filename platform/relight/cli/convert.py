"""``relight convert``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from relight.base.errors import BadInput
from relight.cli.output import note

command = typer.Typer(
    help="Turn manifests of other platforms into relight's.",
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)


@command.callback()
def _group() -> None:
    """Turn manifests of other platforms into relight's."""


@command.command()
def kserve(
    filename: Annotated[str, typer.Argument(metavar="FILE", help="InferenceServices; - is stdin.")],
    image: Annotated[str, typer.Option(metavar="IMAGE", help="relight's image.")] = "relight",
) -> None:
    """KServe's InferenceServices to Knative Services on relight's image.

    The Services are printed as YAML; what could not be carried over is said on
    stderr, by field.

    \b
    relight convert kserve bert.yaml --image REGISTRY/relight:0.1.0 > service.yaml
    """
    import yaml

    from relight.cluster.documents import read_documents
    from relight.cluster.kserve import convert

    documents = read_documents([filename], sys.stdin.read() if filename == "-" else None)
    services = []
    for document in documents:
        if document.value.get("kind") != "InferenceService":
            note(f"{document.place}: {document.name}: not an InferenceService, left out")
            continue
        try:
            converted = convert(document.value, image)
        except BadInput as error:
            raise BadInput(f"{document.place}: {document.name}: {error}") from None
        services.append(converted.service)
        for problem in converted.left:
            note(f"{document.place}: {document.name}: {problem.path}: not carried over: {problem.message}")
    if not services:
        raise BadInput(f"{filename}: no InferenceService in it")
    print(yaml.safe_dump_all(services, sort_keys=False, allow_unicode=True), end="")
