"""``relight doctor``: what this machine has, what it lacks, and what nobody can know from here."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from relight.backends.machine import Finding, State, findings
from relight.base.errors import BadInput
from relight.base.settings import Settings
from relight.base.units import format_bytes
from relight.cli import exits
from relight.cli.examining import examine
from relight.cli.kube import connect
from relight.cli.manifests import Filename, Image, Kustomize, read
from relight.cli.output import Format, print_json, print_table
from relight.cli.state import find_platform
from relight.cli.target import Context, Kubeconfig, Namespace

_UNVERIFIED = (
    ("CUDA", "ONNX Runtime's and PyTorch's code for GPUs is there; relight's own tests run without a GPU"),
    ("TensorRT", "plans and their building were written against the published interface, and never run"),
    ("MIG", "slices are asked for by manifests; that a pod gets one is not seen from here"),
    ("images", "no container image is built by relight's tests; relight doctor --inside has a cluster pull one"),
)
"""What the project's own tests do not reach. docs/limits.md says more of each."""
_PROGRAMS = ("kubectl", "kn", "func", "git")


def command(
    cluster: Annotated[bool, typer.Option("--cluster", help="Check the cluster, not this machine.")] = False,
    filename: Filename = None,
    kustomize: Kustomize = None,
    image: Image = None,
    inside: Annotated[
        bool, typer.Option("--inside", help="Also from a pod: pull the image, read the model repository.")
    ] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=1, help="For --inside, per image.")] = 120.0,
    output: Annotated[Format, typer.Option("-o", "--output", help="How to print.")] = "table",
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> int:
    """Show what this machine, or a cluster, has and lacks.

    Of this machine: what could not be verified, too; it exits with 0 whatever
    it finds.

    With --cluster, or an option that says which: Knative's versions and flags,
    GPUs and their MIG layout, images, brokers, the model repository; with how
    to mend what is missing, and 1 as exit code. Checked is what -f and -k are
    to apply, else what relight has deployed in the namespace. --inside starts a
    Job for each image, which is deleted again; nothing else is changed.

    \b
    relight doctor
    relight doctor -k manifests/overlays/gpu --image relight=REGISTRY/relight:1
    relight doctor --cluster --inside
    """
    if cluster or filename or kustomize or inside or namespace or kubeconfig or context:
        if image and not (filename or kustomize):
            raise BadInput("--image renames images of what -f and -k name")
        documents = read(filename, kustomize, image) if filename or kustomize else None
        with connect(kubeconfig, context, namespace) as link:
            return examine(link, documents, inside=timeout if inside else None, output=output)
    settings = Settings.from_environ()
    found = [*_python(), *_extras(), *findings(), *_programs(), *_places(settings), *_ports(settings), *_unverified()]
    if output == "json":
        print_json([vars(finding) for finding in found])
        return exits.OK
    print_table(
        ("topic", "what", "state", "detail"),
        [(finding.topic, finding.name, _said(finding.state), finding.detail) for finding in found],
        wrap=True,
    )
    return exits.OK


def _said(state: State) -> str:
    return "not verified here" if state == "not verified" else state


def _python() -> Iterator[Finding]:
    from relight.cli.main import package_version

    yield Finding("relight", "relight", "ok", f"{package_version()}, in {Path(__file__).parent.parent}")
    yield Finding("relight", "Python", "ok", f"{platform.python_version()} on {platform.platform()}")


def _extras() -> Iterator[Finding]:
    """Each extra of the distribution, with the packages it asks for."""
    try:
        required = metadata.requires("relight") or []
    except metadata.PackageNotFoundError:
        yield Finding("extras", "relight", "problem", "relight is not installed as a package: extras are unknown")
        return
    extras: dict[str, list[str]] = {}
    for line in required:
        match = re.match(r"""([A-Za-z0-9._-]+).*;.*\bextra\s*==\s*["']([^"']+)""", line)
        if match:
            extras.setdefault(match[2], []).append(match[1])
    for extra, packages in sorted(extras.items()):
        versions = {package: _version(package) for package in packages}
        lacking = [package for package, version in versions.items() if version is None]
        have = ", ".join(f"{package} {version}" for package, version in versions.items() if version)
        if lacking:
            detail = f"lacks {', '.join(lacking)}" + (f"; has {have}" if have else "")
            yield Finding("extras", f"relight[{extra}]", "missing", detail)
        else:
            yield Finding("extras", f"relight[{extra}]", "ok", have)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _programs() -> Iterator[Finding]:
    for name in _PROGRAMS:
        where = shutil.which(name)
        yield Finding("programs", name, "ok" if where else "missing", where or "not on the PATH")


def _places(settings: Settings) -> Iterator[Finding]:
    for name, path in (("home", settings.home.path), ("cache", settings.cache)):
        there = next(parent for parent in (path, *path.parents) if parent.exists())
        if not os.access(there, os.W_OK | os.X_OK):
            yield Finding("folders", name, "problem", f"{path}: {there} cannot be written to")
            continue
        free = format_bytes(shutil.disk_usage(there).free)
        yield Finding("folders", name, "ok", f"{path}{'' if there == path else ' (to be made)'}, {free} free")


def _ports(settings: Settings) -> Iterator[Finding]:
    running = find_platform(settings.home)
    ports = (("api", settings.api_port), ("functions", settings.functions_port), ("broker", settings.broker_port))
    for name, port in ports:
        if port == 0:
            yield Finding("ports", name, "ok", "any free one")
        elif (error := _taken(settings.host, port)) is None:
            yield Finding("ports", name, "ok", f"{settings.host}:{port} is free")
        elif running is not None:
            yield Finding("ports", name, "ok", f"{settings.host}:{port} is in use; relight up runs as {running.pid}")
        else:
            yield Finding(
                "ports", name, "problem", f"{settings.host}:{port}: {error}; relight up would refuse to start"
            )


def _taken(host: str, port: int) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return None


def _unverified() -> Iterator[Finding]:
    for name, why in _UNVERIFIED:
        yield Finding("limits", name, "not verified", why)
