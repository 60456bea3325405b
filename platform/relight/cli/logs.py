"""``relight logs``."""

from __future__ import annotations

import os
import re
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relight.base.errors import NotFound, RelightError
from relight.base.settings import Settings
from relight.cli.kube import Connection, connect
from relight.cli.output import note
from relight.cli.target import Context, Kubeconfig, Namespace

if TYPE_CHECKING:
    from relight.net.kube import Kube

SERVICE_LABEL = "serving.knative.dev/service"
CONTAINER = "user-container"
"""The function's container in its pod, by the name that Knative gives it."""


def command(
    name: Annotated[str, typer.Argument(help="A function, or one of its pods.")],
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as more is logged.")] = False,
    tail: Annotated[
        int | None, typer.Option(metavar="LINES", min=0, help="Only the last ones.", show_default=False)
    ] = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Print what a function's replicas have logged.

    With several replicas each line begins with the name of its pod.
    """
    with connect(kubeconfig, context, namespace) as link:
        pods = link.kube.list("v1", "Pod", link.namespace, labels=f"{SERVICE_LABEL}={name}")
        names = sorted(pod["metadata"]["name"] for pod in pods["items"])
        container = CONTAINER
        if not names:
            containers = _containers(link.kube, name, link.namespace)
            if containers is not None:
                names, container = [name], CONTAINER if CONTAINER in containers else ""
            else:
                link.kube.get("serving.knative.dev/v1", "Service", name, link.namespace)  # NotFound names it
                last = _last_log(link, name)
                if last is None:
                    note(f"{name} has no replicas: it is at zero")
                else:
                    note(f"{name} has no replicas; its last one logged:")
                    for line in last if tail is None else last[len(last) - min(tail, len(last)) :]:
                        print(line)
                return
        printing = _Printing(link.kube, link.namespace, follow, tail, container, prefixed=len(names) > 1)
        if follow and len(names) > 1:
            printing.together(names)
        else:
            for pod in names:
                printing.one(pod)
    if printing.failure is not None:
        raise printing.failure


def _last_log(link: Connection, name: str) -> list[str] | None:
    """What the last replica of a function logged, where local mode keeps it: why a load failed stands there."""
    if link.target.platform is None:
        return None
    folder = Settings.from_environ().home.logs / "pods" / link.namespace
    replica = re.compile(re.escape(name) + r"-\d{5}-deployment-.+\.log")
    try:
        with os.scandir(folder) as found:
            files = [entry for entry in found if replica.fullmatch(entry.name)]
        newest = max(files, key=lambda entry: entry.stat().st_mtime, default=None)
        return None if newest is None else Path(newest.path).read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return None


def _containers(kube: Kube, name: str, namespace: str) -> list[str] | None:
    """The containers of a pod; None: there is no such pod."""
    try:
        pod = kube.get("v1", "Pod", name, namespace)
    except NotFound:
        return None
    return [str(one.get("name")) for one in pod["spec"].get("containers") or ()]


class _Printing:
    """Prints logs line by line, so that several at once do not mix within a line."""

    def __init__(
        self, kube: Kube, namespace: str, follow: bool, tail: int | None, container: str, *, prefixed: bool
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._follow = follow
        self._tail = tail
        self._container = container
        self._prefixed = prefixed
        self._lock = threading.Lock()
        self.failure: RelightError | None = None

    def one(self, pod: str) -> None:
        prefix = f"{pod}  " if self._prefixed else ""
        try:
            # On a cluster Knative's queue-proxy stands beside the function's container.
            for line in self._kube.logs(
                pod, self._namespace, follow=self._follow, tail=self._tail, container=self._container
            ):
                with self._lock:
                    print(prefix + line, flush=self._follow)
        except NotFound:
            return  # a replica that ended meanwhile, and its pod with it
        except RelightError as error:
            self.failure = error

    def together(self, pods: list[str]) -> None:
        threads = [threading.Thread(target=self.one, args=[pod], name=f"logs/{pod}", daemon=True) for pod in pods]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sys.stdout.flush()
