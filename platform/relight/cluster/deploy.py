"""Deploying a function's folder through the Kubernetes API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relight.base import folders
from relight.cluster.apply import apply_object
from relight.cluster.project import Project, read_project
from relight.cluster.service import Options, build_service, build_triggers, model_of, trigger_name
from relight.cluster.waiting import wait_ready

if TYPE_CHECKING:
    from relight.net.kube import Kube

EVENTING = "eventing.knative.dev/v1"


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


def deploy(
    kube: Kube,
    folder: Path,
    *,
    environ: Mapping[str, str],
    model_versions: Callable[[str], list[int]] = lambda model: [],
    namespace: str | None = None,
    default_namespace: str = "default",
    timeout: float | None = 600.0,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Deployed:
    """Check a folder, apply its Service and Triggers, and wait until the newest generation is ready.

    ``namespace`` wins over func.yaml's, ``default_namespace`` is for a func.yaml that names none. ``model_versions``
    lists the versions of a model in the repository; the new revision is pinned to the newest. ``timeout`` (seconds)
    None: do not wait.
    """
    on_progress(f"reading {folder}")
    project = read_project(folder)
    digest = folders.digest(project.folder)
    model = model_of(project.function)
    versions = model_versions(model) if model else []
    options = Options(
        namespace=namespace or project.function.namespace or default_namespace,
        digest=digest,
        environ=environ,
        model_version=versions[-1] if versions else None,
    )
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
