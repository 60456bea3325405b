"""Deploying a function's folder through the Kubernetes API."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relight.base import folders
from relight.base.errors import Forbidden, Unprocessable
from relight.cluster.apply import apply_object
from relight.cluster.images import base_name
from relight.cluster.project import Project, read_project
from relight.cluster.service import Options, build_service, build_triggers, model_of, trigger_name
from relight.cluster.waiting import SERVING, wait_ready
from relight.decide import gpus

if TYPE_CHECKING:
    from relight.net.kube import Kube

EVENTING = "eventing.knative.dev/v1"
SHARED_IMAGE = "relight"
"""Last part of the path of relight's own image, which holds all functions of the project."""


@dataclass(frozen=True)
class Deployed:
    """A function that was deployed, as the API has it."""

    project: Project
    service: Mapping[str, Any]
    verb: str
    """What became of the Service: created, configured or unchanged."""
    triggers: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    """Triggers of subscriptions that func.yaml does not have any more."""
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.project.function.name

    @property
    def namespace(self) -> str:
        return str(self.service["metadata"]["namespace"])

    @property
    def revision(self) -> str | None:
        """The newest revision; None where nothing was waited for and none was made yet."""
        found: str | None = (self.service.get("status") or {}).get("latestCreatedRevisionName")
        return found


@dataclass(frozen=True)
class Delivery:
    """How a function's code gets to a cluster that runs images. Local mode needs none of it: it runs the folder."""

    image: str | None = None
    """An image that is there already."""
    build: Callable[[Project, str], None] | None = None
    """Builds an image of the folder, pushes it, and deploys it into a namespace: what ``func deploy`` does."""
    repository: str | None = None
    """The model repository as the cluster reaches it, for functions that are not told of one."""


def deploy(
    kube: Kube,
    folder: Path,
    *,
    environ: Mapping[str, str],
    model_versions: Callable[[str], list[int]] = lambda model: [],
    model_bytes: Callable[[str, int], int | None] = lambda model, version: None,
    delivery: Delivery | None = None,
    namespace: str | None = None,
    default_namespace: str = "default",
    timeout: float | None = 600.0,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Deployed:
    """Check a folder, apply its Service and Triggers, and wait until the newest generation is ready.

    ``namespace`` wins over func.yaml's, ``default_namespace`` is for a func.yaml that names none. ``model_versions``
    lists the versions of a model in the repository; the new revision is pinned to the newest. ``model_bytes`` is the
    size of its weights: what no GPU of the cluster holds is refused (Unprocessable). ``delivery`` None: the cluster
    runs folders. ``timeout`` (seconds) None: do not wait.
    """
    on_progress(f"reading {folder}")
    project = read_project(folder)
    model = model_of(project.function)
    versions = model_versions(model) if model else []
    version = versions[-1] if versions else None
    options = Options(
        namespace=namespace or project.function.namespace or default_namespace,
        digest=folders.digest(project.folder),
        environ=environ,
        model_version=version,
    )
    if delivery is not None:
        options = _for_images(options, project, delivery)
    wanted = build_service(project, options)
    if model and version:
        _check_fits(kube, wanted, model, model_bytes(model, version))
    if delivery is not None and delivery.image is None and delivery.build is not None:
        delivery.build(project, options.namespace)
        built = kube.get(SERVING, "Service", project.function.name, options.namespace)
        options = dataclasses.replace(options, image=built["spec"]["template"]["spec"]["containers"][0]["image"])
        wanted = build_service(project, options)
    on_progress(f"applying service {project.function.name}")
    verb, service = apply_object(kube, wanted, options.namespace)
    triggers = build_triggers(project, options.namespace, service)
    for trigger in triggers:
        apply_object(kube, trigger, options.namespace)
    removed = _remove_stale(kube, service, {trigger["metadata"]["name"] for trigger in triggers})
    if timeout is not None:
        service = wait_ready(kube, service, timeout, on_progress)
    return Deployed(
        project=project,
        service=service,
        verb=verb,
        triggers=tuple(trigger["metadata"]["name"] for trigger in triggers),
        removed=removed,
        warnings=tuple(f"func.yaml: {problem}" for problem in project.function.warnings),
    )


def _for_images(options: Options, project: Project, delivery: Delivery) -> Options:
    """Options for a cluster that runs images."""
    image = delivery.image or SHARED_IMAGE
    shared = delivery.image is not None and base_name(image) == SHARED_IMAGE
    return dataclasses.replace(
        options,
        image=image,
        folder=False,
        function=project.function.name if shared else None,
        repository=delivery.repository if model_of(project.function) else None,
    )


def _check_fits(kube: Kube, service: Mapping[str, Any], model: str, size: int | None) -> None:
    asked = gpus.wanted(service["spec"]["template"]["spec"])
    if asked is None or size is None:
        return
    try:
        nodes = kube.list("v1", "Node")["items"]
    except Forbidden:
        return  # whoever may deploy need not be one who may look at nodes
    reason = gpus.refusal(model, size, *asked, nodes)
    if reason is not None:
        raise Unprocessable(reason)


def _remove_stale(kube: Kube, service: Mapping[str, Any], wanted: set[str]) -> tuple[str, ...]:
    """Remove the Triggers that an earlier deployment of this function made and this one did not.

    Only those that the Service owns and whose name is that of their subscription: others are somebody else's.
    """
    meta = service["metadata"]
    removed = []
    for trigger in kube.list(EVENTING, "Trigger", meta["namespace"])["items"]:
        name = trigger["metadata"]["name"]
        owners = {owner.get("uid") for owner in trigger["metadata"].get("ownerReferences") or ()}
        spec = trigger["spec"]
        filters = (spec.get("filter") or {}).get("attributes") or {}
        made_here = name == trigger_name(meta["name"], spec.get("broker", "default"), filters)
        if name not in wanted and meta["uid"] in owners and made_here:
            kube.delete(EVENTING, "Trigger", name, meta["namespace"])
            removed.append(name)
    return tuple(removed)
