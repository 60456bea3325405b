"""func.yaml of Knative Functions: text to frozen values, every mistake at once and by field path.

Spec version 0.36.0 is read as its published JSON Schema has it: an unknown key is refused, a number where text belongs
is refused. Version 0.35.x is read leniently: unknown keys become ``warnings``. A newer version is refused by name, for
its meaning is not known here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from relight.base.errors import BadInput, Problem, Unprocessable
from relight.base.units import parse_quantity

SPEC_VERSION = "0.36.0"
OLDEST = (0, 35)
NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
"""A DNS-1035 label: what ``func`` and Knative take as the name of a function."""
NAME_RULE = "expected lower-case letters, digits and '-', a letter first, at most 63 characters"

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_REFERENCE = re.compile(r"\{\{\s*(env|secret|configMap)\s*:\s*([-._a-zA-Z0-9]+)(?:\s*:\s*([-._a-zA-Z0-9]+))?\s*\}\}")


@dataclass(frozen=True)
class Reference:
    """A value that stands elsewhere: ``{{ env:X }}``, ``{{ secret:NAME:KEY }}``, ``{{ configMap:NAME:KEY }}``.

    ``key`` None with a secret or config map means all of its keys.
    """

    kind: str
    name: str
    key: str | None = None

    def __str__(self) -> str:
        return "{{ " + ":".join(part for part in (self.kind, self.name, self.key) if part) + " }}"


@dataclass(frozen=True)
class Env:
    """One entry of ``run.envs``: a literal value, or a reference (``name`` None: all keys of what is referred to)."""

    name: str | None
    value: str | None = None
    reference: Reference | None = None


@dataclass(frozen=True)
class Scale:
    """``deploy.options.scale``; None: not given, the cluster's default holds."""

    min: int | None = None
    max: int | None = None
    metric: str | None = None
    target: float | None = None
    utilization: float | None = None


@dataclass(frozen=True)
class Resources:
    """``deploy.options.resources``: quantities as written, and how many requests one replica takes at once."""

    requests: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)
    concurrency: int | None = None


@dataclass(frozen=True)
class Volume:
    """One entry of ``run.volumes``: ``source`` is the volume source as a pod spells it."""

    path: str
    source: Mapping[str, Any]


@dataclass(frozen=True)
class Subscription:
    """Events that the function wants: from broker ``source``, whose attributes equal ``filters``."""

    source: str
    filters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FuncYaml:
    """What a func.yaml says, as far as deploying needs it."""

    spec_version: str
    name: str
    runtime: str = "python"
    namespace: str | None = None
    invoke: str = "http"
    image: str | None = None
    envs: tuple[Env, ...] = ()
    volumes: tuple[Volume, ...] = ()
    start_timeout: int | None = None
    """Seconds."""
    kafka: Mapping[str, str] | None = None
    scale: Scale = Scale()
    resources: Resources = Resources()
    liveness: str = "/health/liveness"
    readiness: str = "/health/readiness"
    service_account: str | None = None
    image_pull_secret: str | None = None
    subscriptions: tuple[Subscription, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[Problem, ...] = ()
    """Keys that an older version may have had and that mean nothing here."""


def decode(text: str | bytes) -> FuncYaml:
    """A func.yaml. BadInput: it is no YAML mapping; Unprocessable: ``problems`` names each wrong field by its path."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadInput(f"func.yaml is not YAML: {describe(error)}") from None
    if not isinstance(value, dict):
        raise BadInput("func.yaml: expected a mapping of keys to values")
    return _Reader().function(value)


def describe(error: yaml.YAMLError) -> str:
    """A YAML error in one line, with its place."""
    problem = getattr(error, "problem", None) or "it cannot be read"
    mark = getattr(error, "problem_mark", None)
    return f"{problem} (line {mark.line + 1}, column {mark.column + 1})" if mark else str(problem)


class _Reader:
    """Collects problems while it reads; a field that is wrong is reported and taken as not given."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self.lenient = False

    def wrong(self, path: str, message: str) -> None:
        self.problems.append(Problem(path, message))

    def function(self, value: dict[Any, Any]) -> FuncYaml:
        version = self.version(value.get("specVersion"))
        top = self.mapping(value, "", _TOP)
        self.created(top)
        name = self.text(top, "name", "")
        if name is None:
            if top.get("name") is None:
                self.wrong("name", "missing")
        elif not NAME.fullmatch(name):
            self.wrong("name", f"{name!r}: {NAME_RULE}")
        self.build(top)
        run = self.mapping(top.get("run"), "run", _RUN)
        deploy = self.mapping(top.get("deploy"), "deploy", _DEPLOY)
        options = self.mapping(deploy.get("options"), "deploy.options", {"scale", "resources"})
        health = self.mapping(deploy.get("healthEndpoints"), "deploy.healthEndpoints", {"liveness", "readiness"})
        for values, path in ((top, ""), (deploy, "deploy")):
            self.choice(values, "deployer", path, ("knative", "raw", "keda"))
        read = FuncYaml(
            spec_version=version,
            name=name or "",
            runtime=self.text(top, "runtime", "") or "python",
            namespace=self.text(top, "namespace", "") or self.text(deploy, "namespace", "deploy") or None,
            invoke=self.choice(top, "invoke", "", ("http", "cloudevent")) or "http",
            image=self.text(deploy, "image", "deploy") or self.text(top, "image", "") or None,
            envs=self.each(run, "envs", "run", self.env),
            volumes=self.each(run, "volumes", "run", self.volume),
            start_timeout=self.integer(run, "startTimeout", "run", 0),
            kafka=self.kafka(run),
            scale=self.scale(options),
            resources=self.resources(options),
            liveness=self.endpoint(health, "liveness"),
            readiness=self.endpoint(health, "readiness"),
            service_account=self.text(deploy, "serviceAccountName", "deploy") or None,
            image_pull_secret=self.text(deploy, "imagePullSecret", "deploy") or None,
            subscriptions=self.each(deploy, "subscriptions", "deploy", self.subscription),
            annotations=self.texts(deploy.get("annotations"), "deploy.annotations"),
            labels=dict(self.each(deploy, "labels", "deploy", self.label)),
            warnings=tuple(self.warnings),
        )
        self.boolean(top, "registryInsecure", "")
        self.boolean(deploy, "managementDisabled", "deploy")
        for key in ("domain", "registry"):
            self.text(top, key, "")
        if self.problems:
            raise Unprocessable.of(self.problems)
        return read

    def version(self, value: object) -> str:
        match = _VERSION.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            self.wrong("specVersion", "missing" if value is None else f"expected a version such as {SPEC_VERSION}")
            return SPEC_VERSION
        number, known = tuple(map(int, match.groups())), tuple(map(int, SPEC_VERSION.split(".")))
        if number > known:
            self.wrong("specVersion", f"{value} is newer than what is known here ({SPEC_VERSION})")
        elif number[:2] < OLDEST:
            self.wrong("specVersion", f"{value} is too old; `func build` with a current func rewrites the file")
        self.lenient = number < known
        return match[0]

    def created(self, top: Mapping[str, Any]) -> None:
        value = top.get("created")
        if value is None:
            self.wrong("created", "missing")
        elif not hasattr(value, "isoformat") and not _TIME.fullmatch(
            str(value)
        ):  # YAML makes a datetime of a bare time
            self.wrong("created", f"expected a time such as 2026-01-31T12:00:00Z, got {value!r}")

    def build(self, top: Mapping[str, Any]) -> None:
        """``build`` is checked and not kept: nothing is built here."""
        build = self.mapping(top.get("build"), "build", _BUILD)
        self.choice(build, "builder", "build", ("host", "pack", "s2i"))
        for key in ("pvcSize", "remoteStorageClass", "baseImage"):
            self.text(build, key, "build")
        self.texts(build.get("builderImages"), "build.builderImages")
        git = self.mapping(build.get("git"), "build.git", {"url", "revision", "contextDir"})
        for key in git:
            self.text(git, key, "build.git")
        self.each(build, "buildEnvs", "build", self.env)
        self.each(build, "buildpacks", "build", self.string)
        self.each(build, "volumes", "build", self.mount)

    def mapping(self, value: object, path: str, known: set[str]) -> dict[str, Any]:
        """The known keys of a mapping; None counts as empty, as in Go."""
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.wrong(path, "expected a mapping")
            return {}
        for key in value:
            if key not in known:
                problem = Problem(f"{path}.{key}" if path else str(key), "unknown key")
                (self.warnings if self.lenient else self.problems).append(problem)
        return {key: value[key] for key in value if key in known}

    def typed(self, values: Mapping[str, Any], key: str, path: str, test: Callable[[Any], bool], expected: str) -> Any:
        value = values.get(key)
        if value is None:
            return None
        if not test(value):
            self.wrong(f"{path}.{key}" if path else key, f"expected {expected}, got {value!r}")
            return None
        return value

    def text(self, values: Mapping[str, Any], key: str, path: str) -> str | None:
        value = values.get(key)
        if value is not None and not isinstance(value, str | dict | list):
            self.wrong(f"{path}.{key}" if path else key, f"expected text; write {key}: {str(value)!r}")
            return None
        found: str | None = self.typed(values, key, path, lambda value: isinstance(value, str), "text")
        return found

    def boolean(self, values: Mapping[str, Any], key: str, path: str) -> bool | None:
        found: bool | None = self.typed(values, key, path, lambda value: isinstance(value, bool), "true or false")
        return found

    def choice(self, values: Mapping[str, Any], key: str, path: str, choices: tuple[str, ...]) -> str | None:
        # An empty text is what func itself writes for "not chosen".
        found: str | None = self.typed(values, key, path, lambda value: value in (*choices, ""), " or ".join(choices))
        return found or None

    def integer(self, values: Mapping[str, Any], key: str, path: str, least: int) -> int | None:
        found: int | None = self.typed(
            values,
            key,
            path,
            lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least,
            f"a whole number of at least {least}",
        )
        return found

    def number(self, values: Mapping[str, Any], key: str, path: str, least: float, most: float) -> float | None:
        until = f" to {most:g}" if most != float("inf") else " or more"
        value = self.typed(
            values,
            key,
            path,
            lambda value: isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most,
            f"a number of {least:g}{until}",
        )
        return None if value is None else float(value)

    def texts(self, value: object, path: str) -> dict[str, str]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.wrong(path, "expected a mapping of texts")
            return {}
        texts = {key: self.text(value, key, path) for key in value if isinstance(key, str)}
        for key in value.keys() - texts.keys():
            self.wrong(f"{path}.{key}", "expected text as the key")
        return {key: text for key, text in texts.items() if text is not None}

    def each(self, values: Mapping[str, Any], key: str, path: str, read: Callable[[Any, str], Any]) -> tuple[Any, ...]:
        """Every item of a list that could be read."""
        items = values.get(key)
        where = f"{path}.{key}"
        if items is None:
            return ()
        if not isinstance(items, list):
            self.wrong(where, "expected a list")
            return ()
        found = (read(item, f"{where}[{at}]") for at, item in enumerate(items))
        return tuple(item for item in found if item is not None)

    def string(self, item: object, path: str) -> str | None:
        if isinstance(item, str):
            return item
        self.wrong(path, f"expected text, got {item!r}")
        return None

    def mount(self, item: object, path: str) -> object:
        mount = self.mapping(item, path, {"hostPath", "path"})
        for key in ("hostPath", "path"):
            if not self.text(mount, key, path):
                self.wrong(f"{path}.{key}", "missing")
        return None

    def env(self, item: object, path: str) -> Env | None:
        entry = self.mapping(item, path, {"name", "value"})
        name, value = self.text(entry, "name", path), self.text(entry, "value", path)
        if name is not None and not _ENV_NAME.fullmatch(name):
            self.wrong(f"{path}.name", f"{name!r}: expected letters, digits, '-', '.', '_', not a digit first")
            return None
        if value is None or not value.startswith("{{"):
            if not name:
                self.wrong(f"{path}.name", "missing")
            return Env(name, value or "")
        match = _REFERENCE.fullmatch(value)
        if match is None or (match[1] == "env" and match[3]):
            self.wrong(
                f"{path}.value",
                f"{value!r}: expected {{{{ env:X }}}}, {{{{ secret:NAME:KEY }}}} or {{{{ configMap:NAME:KEY }}}}",
            )
            return None
        if (name is None) != (match[1] != "env" and match[3] is None):
            self.wrong(path, "a name belongs to one value; without a name, refer to a whole secret or configMap")
            return None
        return Env(name, None, Reference(match[1], match[2], match[3]))

    def volume(self, item: object, path: str) -> Volume | None:
        kinds = ("secret", "configMap", "persistentVolumeClaim", "emptyDir")
        entry = self.mapping(item, path, {"path", *kinds})
        given = [kind for kind in kinds if kind in entry]
        where = self.text(entry, "path", path)
        if not where or not where.startswith("/"):
            self.wrong(f"{path}.path", "expected the absolute path that the volume is mounted on")
        if len(given) != 1:
            self.wrong(path, f"expected exactly one of {', '.join(kinds)}")
            return None
        kind = given[0]
        if kind in ("secret", "configMap"):
            name = self.text(entry, kind, path) or ""
            source: dict[str, Any] = {kind: {"secretName" if kind == "secret" else "name": name}}
        else:
            known = {"claimName", "readOnly"} if kind == "persistentVolumeClaim" else {"medium", "sizeLimit"}
            fields = self.mapping(entry.get(kind), f"{path}.{kind}", known)
            for key in fields:
                (self.boolean if key == "readOnly" else self.text)(fields, key, f"{path}.{kind}")
            source = {kind: fields}
        return Volume(where or "", source)

    def kafka(self, run: Mapping[str, Any]) -> dict[str, str] | None:
        if run.get("kafka") is None:
            return None
        known = ("brokers", "topic", "consumerGroup")
        kafka = self.mapping(run["kafka"], "run.kafka", set(known))
        read = {key: self.text(kafka, key, "run.kafka") or "" for key in known}
        for key in known:
            if kafka.get(key) is None:
                self.wrong(f"run.kafka.{key}", "missing")
        return read

    def scale(self, options: Mapping[str, Any]) -> Scale:
        path = "deploy.options.scale"
        scale = self.mapping(options.get("scale"), path, {"min", "max", "metric", "target", "utilization"})
        read = Scale(
            min=self.integer(scale, "min", path, 0),
            max=self.integer(scale, "max", path, 0),
            metric=self.choice(scale, "metric", path, ("concurrency", "rps")),
            target=self.number(scale, "target", path, 0.01, float("inf")),
            utilization=self.number(scale, "utilization", path, 1, 100),
        )
        if read.min and read.max and read.min > read.max:
            self.wrong(f"{path}.min", f"{read.min} is more than max, {read.max}")
        return read

    def resources(self, options: Mapping[str, Any]) -> Resources:
        path = "deploy.options.resources"
        resources = self.mapping(options.get("resources"), path, {"requests", "limits"})
        requests = self.mapping(resources.get("requests"), f"{path}.requests", {"cpu", "memory"})
        limits = self.mapping(resources.get("limits"), f"{path}.limits", {"cpu", "memory", "concurrency"})
        return Resources(
            requests=self.quantities(requests, f"{path}.requests"),
            limits=self.quantities(limits, f"{path}.limits"),
            concurrency=self.integer(limits, "concurrency", f"{path}.limits", 0),
        )

    def quantities(self, values: Mapping[str, Any], path: str) -> dict[str, str]:
        read = {key: self.text(values, key, path) for key in ("cpu", "memory") if key in values}
        for key, text in read.items():
            if text is None:
                continue
            try:
                parse_quantity(text)
            except ValueError as error:
                self.wrong(f"{path}.{key}", str(error))
        return {key: text for key, text in read.items() if text is not None}

    def endpoint(self, health: Mapping[str, Any], key: str) -> str:
        path = self.text(health, key, "deploy.healthEndpoints")
        if path and not path.startswith("/"):
            self.wrong(f"deploy.healthEndpoints.{key}", f"expected a path such as /health/{key}, got {path!r}")
        return path or f"/health/{key}"

    def subscription(self, item: object, path: str) -> Subscription | None:
        entry = self.mapping(item, path, {"source", "filters"})
        source = self.text(entry, "source", path)
        if not source:
            self.wrong(f"{path}.source", "expected the name of a broker")
            return None
        return Subscription(source, self.texts(entry.get("filters"), f"{path}.filters"))

    def label(self, item: object, path: str) -> tuple[str, str] | None:
        entry = self.mapping(item, path, {"key", "value"})
        key, value = self.text(entry, "key", path), self.text(entry, "value", path) or ""
        if not key or not _LABEL_KEY.fullmatch(key):
            self.wrong(f"{path}.key", f"{key!r} is not a label's key")
            return None
        if not _LABEL_VALUE.fullmatch(value):
            self.wrong(f"{path}.value", f"{value!r} is not a label's value")
        return key, value


_TOP = {
    *("specVersion", "name", "domain", "runtime", "registry", "registryInsecure", "image", "namespace", "deployer"),
    *("created", "invoke", "build", "run", "deploy"),
}
_BUILD = {
    *("git", "builderImages", "buildpacks", "builder", "buildEnvs", "pvcSize", "remoteStorageClass", "baseImage"),
    "volumes",
}
_RUN = {"volumes", "envs", "startTimeout", "kafka"}
_DEPLOY = {
    *("namespace", "image", "annotations", "options", "labels", "healthEndpoints", "serviceAccountName"),
    *("imagePullSecret", "deployer", "subscriptions", "managementDisabled"),
}
