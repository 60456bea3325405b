"""``relight deploy``."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from relight.base.errors import Deadline, LoadFailed
from relight.cli.kube import connect, url_of
from relight.cli.output import Format, note, print_json, waiting
from relight.cli.target import Context, Kubeconfig, Namespace


def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The function's folder.")] = Path(),
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
    """
    from relight.cli.model import open_repository
    from relight.cluster.deploy import deploy

    def model_versions(model: str) -> list[int]:
        repository = open_repository()
        found = repository.versions(model)
        if not found:
            note(f"warning: model {model} is not in {repository.uri}: until it is pushed, the function cannot load")
        return found

    with connect(kubeconfig, context, namespace) as link:
        try:
            with waiting(f"deploying {folder}") as progress:
                done = deploy(
                    link.kube,
                    folder,
                    environ=os.environ,
                    model_versions=model_versions,
                    namespace=namespace,
                    default_namespace=link.namespace,
                    timeout=timeout if wait else None,
                    on_progress=progress.show,
                )
        except (LoadFailed, Deadline) as error:
            error.add_note("relight logs NAME and relight describe ksvc NAME may say more")
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
        serves_model = any(env.name == "RELIGHT_MODEL" for env in done.project.function.envs)
        print(f"url: {url}")
        print(f"try: {curl(url, serves_model=serves_model)}")


def curl(url: str, *, serves_model: bool) -> str:
    """A line that calls a function: what a model can, or JSON that a step may take."""
    if serves_model:
        return f"curl {shlex.quote(url.rstrip('/') + '/v2')}"
    return f"curl {shlex.quote(url)} -H 'Content-Type: application/json' -d '{{\"text\": \"to be or not to be\"}}'"
