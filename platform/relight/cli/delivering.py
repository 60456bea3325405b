"""How a function gets to a cluster: as a folder, as an image that is there, or through func, which builds one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from relight.base.errors import BadInput, PlatformError
from relight.cli.kube import Connection
from relight.cli.output import Waiting, note

if TYPE_CHECKING:
    from relight.cluster.deploy import Delivery
    from relight.cluster.project import Project


def choose(
    link: Connection,
    progress: Waiting,
    *,
    image: str | None,
    registry: str | None,
    repository: Callable[[], str],
    context: str | None,
) -> Delivery | None:
    """None: the cluster runs folders. PlatformError: it runs images, and there is neither one nor func to build one."""
    from relight.cluster.deploy import Delivery
    from relight.cluster.func import find_func

    if link.kube.takes_folders():
        if image or registry:
            raise BadInput("local mode runs the folder itself: --image and --registry are for clusters")
        return None
    if image is not None:
        return Delivery(image=image, repository=_reachable(repository()))
    func = find_func(os.environ)
    if func is None:
        raise PlatformError(
            "this cluster runs images: install func, which builds one, or name one that is there with --image; "
            "relight's own image serves any model of the repository (docs/50-cluster.md)"
        )
    if context is not None:
        raise BadInput(
            "func deploys to the current context of the kubeconfig: kubectl config use-context, not --context"
        )
    return Delivery(build=_builder(func, link, progress, registry), repository=_reachable(repository()))


def _reachable(repository: str) -> str | None:
    """A repository that a cluster can read; None, and a note, for a folder of this machine."""
    if not repository.startswith("file:"):
        return repository
    note(
        f"note: the model repository {repository} is a folder of this machine; set RELIGHT_REPOSITORY to the cluster's"
    )
    return None


def _builder(
    func: list[str], link: Connection, progress: Waiting, registry: str | None
) -> Callable[[Project, str], None]:
    from relight.cluster.func import deploy_arguments, prepare, run_func

    def build(project: Project, namespace: str) -> None:
        wheel = prepare(project.folder)
        if wheel is not None:
            progress.show(f"{wheel} laid there")
        arguments = deploy_arguments(project.folder, namespace, registry)
        environ = dict(os.environ) | {"KUBECONFIG": str(link.target.kubeconfig)}
        progress.show(" ".join([*func, *arguments]))
        run_func(func, arguments, environ, lambda line: progress.show(f"func: {line}"))

    return build
