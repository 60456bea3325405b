"""The cluster that a command talks to, opened; and the URLs of what is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from relight.base.errors import NotFound
from relight.cli.output import note
from relight.cli.target import Target, find_target

if TYPE_CHECKING:
    from relight.cluster.client import Client


@dataclass(frozen=True)
class Connection:
    """A cluster, its client, and the namespace that is meant where an object names none."""

    target: Target
    kube: Client
    namespace: str


@contextmanager
def connect(kubeconfig: Path | None, context: str | None, namespace: str | None) -> Iterator[Connection]:
    """The cluster that the options mean, until the end of the block. NotRunning: there is none."""
    target = find_target(kubeconfig, context)
    from relight.cluster.client import Client

    kube = Client.from_kubeconfig(target.kubeconfig, context, on_warning=lambda text: note(f"warning: {text}"))
    if namespace:
        kube.namespace = namespace
    with kube:
        yield Connection(target, cast("Client", kube), kube.namespace)


def url_of(service: Mapping[str, Any], target: Target) -> str | None:
    """The URL of a Service, as its status says it.

    Where local mode has not got round to that yet (``--no-wait``), it is known all the same.
    """
    meta = service["metadata"]
    url: str | None = (service.get("status") or {}).get("url")
    if url is None and target.platform is not None:
        return f"{target.platform.functions}/{meta['namespace']}/{meta['name']}"
    return url


def function_url(name: str, namespace: str | None, kubeconfig: Path | None, context: str | None) -> str:
    """The URL of a function by its name. NotFound: there is no such Service, or it has no URL yet."""
    with connect(kubeconfig, context, namespace) as link:
        service = link.kube.get("serving.knative.dev/v1", "Service", name, link.namespace)
    url = url_of(service, link.target)
    if url is None:
        raise NotFound(f"service {name} has no URL yet: relight describe ksvc {name} says what it waits for")
    return url


def broker_url(name: str, namespace: str | None, kubeconfig: Path | None, context: str | None) -> str:
    """Where a broker takes events. NotFound: there is no such Broker, or it has no address yet."""
    with connect(kubeconfig, context, namespace) as link:
        broker = link.kube.get("eventing.knative.dev/v1", "Broker", name, link.namespace)
    if link.target.platform is not None:
        return f"{link.target.platform.broker}/{link.namespace}/{name}"
    url: str | None = ((broker.get("status") or {}).get("address") or {}).get("url")
    if url is None:
        raise NotFound(f"broker {name} has no address yet: relight describe broker {name} says what it waits for")
    return url
