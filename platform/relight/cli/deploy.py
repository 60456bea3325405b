"""``relight deploy``."""

from __future__ import annotations

import functools
import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from relight.base.errors import BadInput, Deadline, LoadFailed
from relight.cli.kube import connect, url_of
from relight.cli.output import Format, note, print_json, waiting
from relight.cli.target import Context, Kubeconfig, Namespace


def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The function's folder.")] = Path(),
    image: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE", help="On a cluster: an image that is there, by tag or digest.", show_default=False
        ),
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(metavar="REGISTRY", help="On a cluster: where func pushes what it builds.", show_default=False),
    ] = None,
    canary: Annotated[
        int | None,
        typer.Option(
            metavar="PERCENT",
            min=0,
            max=99,
            help="Give the new revision this share of the traffic; the rest stays.",
            show_default=False,
        ),
    ] = None,
    tag: Annotated[
        str | None, typer.Option(metavar="TAG", help="With --canary: a tag for the new revision.", show_default=False)
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the new revision is ready.")] = True,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="For --wait.")] = 600.0,
    output: Annotated[Format, typer.Option("-o", "--output", help="How to print.")] = "table",
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Deploy a function's folder and wait until it is ready.

    The folder holds func.yaml, pyproject.toml and the package function/, as
    `relight new` writes it. Deploying again after an edit makes a new revision;
    so does a newer version of the model that it serves.

    Local mode runs the folder itself. On a cluster func builds an image of it
    and deploys that, and relight adds what relight.yaml says, such as a GPU;
    with --image nothing is built.

    \b
    relight deploy functions/embed
    relight deploy bert --image REGISTRY/relight@sha256:DIGEST
    relight deploy bert --canary 10 --tag next
    """
    from relight.cli.delivering import choose
    from relight.cli.model import open_repository
    from relight.cluster.deploy import deploy
    from relight.cluster.project import read_project
    from relight.cluster.traffic import begin, give

    if tag is not None and canary is None:
        raise BadInput("--tag is for the new revision of --canary PERCENT")
    if canary is not None and not wait:
        raise BadInput("--canary needs the new revision's name: it cannot be combined with --no-wait")
    repository = functools.cache(open_repository)

    def model_versions(model: str) -> list[int]:
        found = repository().versions(model)
        if not found:
            note(f"warning: model {model} is not in {repository().uri}: until it is pushed, the function cannot load")
        return found

    def model_bytes(model: str, version: int) -> int | None:
        return repository().manifest(model, version).size

    with connect(kubeconfig, context, namespace) as link:
        try:
            with waiting(f"deploying {folder}") as progress:
                delivery = choose(
                    link, progress, image=image, registry=registry, repository=lambda: repository().uri, context=context
                )
                stable: str | None = None
                if canary is not None:
                    function = read_project(folder).function
                    where = namespace or function.namespace or link.namespace
                    stable = begin(link.kube, function.name, where)
                done = deploy(
                    link.kube,
                    folder,
                    environ=os.environ,
                    model_versions=model_versions,
                    model_bytes=model_bytes,
                    delivery=delivery,
                    namespace=namespace,
                    default_namespace=link.namespace,
                    timeout=timeout if wait else None,
                    on_progress=progress.show,
                )
                if stable is not None and done.revision not in (None, stable):
                    give(link.kube, done.name, done.namespace, str(done.revision), canary or 0, tag)
        except (LoadFailed, Deadline) as error:
            named = read_project(folder).function.name
            error.add_note(f"relight logs {named} and relight describe ksvc {named} may say more")
            raise
    url = url_of(done.service, link.target)
    for warning in done.warnings:
        note(f"warning: {warning}")
    if output == "json":
        facts = {"name": done.name, "namespace": done.namespace, "result": done.verb, "revision": done.revision}
        print_json(facts | {"url": url, "triggers": done.triggers, "removedTriggers": done.removed})
        return
    print(f"{done.name} {done.verb}" + (f", revision {done.revision}" if done.revision else ""))
    for name in done.triggers:
        print(f"trigger {name}")
    for name in done.removed:
        print(f"trigger {name} removed: func.yaml does not subscribe to it any more")
    if url:
        envs = done.project.function.envs
        serves_model = any(env.name == "RELIGHT_MODEL" or (env.name, env.value) == _ANY_MODEL for env in envs)
        print(f"url: {url}")
        print(f"try: {curl(url, serves_model=serves_model)}")


_ANY_MODEL = ("RELIGHT_FUNCTION", "model")


def curl(url: str, *, serves_model: bool) -> str:
    """A line that calls a function: what a model can, or JSON that a step may take."""
    if serves_model:
        return f"curl {shlex.quote(url.rstrip('/') + '/v2')}"
    return f"curl {shlex.quote(url)} -H 'Content-Type: application/json' -d '{{\"text\": \"to be or not to be\"}}'"
