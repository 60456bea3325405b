"""Settings of one machine: frozen, read from the environment once at an entry point, checked with sentences.

No module below an entry point reads the environment. Every field says its unit, what 0 or None means, and why the
default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from relight.base.errors import BadInput, Problem
from relight.base.units import parse_amounts


def default_home(environ: Mapping[str, str]) -> Path:
    """``$RELIGHT_HOME``, else ``$XDG_STATE_HOME/relight``, else ``~/.local/state/relight``."""
    if environ.get("RELIGHT_HOME"):
        return Path(environ["RELIGHT_HOME"]).expanduser().resolve()
    state = environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "relight"


@dataclass(frozen=True)
class Home:
    """Where local mode keeps what it knows. One platform per folder at a time (``lock``)."""

    path: Path

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def status(self) -> Path:
        """JSON: pid and addresses of the platform that runs on this folder."""
        return self.path / "status.json"

    @property
    def kubeconfig(self) -> Path:
        return self.path / "kubeconfig"

    @property
    def pki(self) -> Path:
        return self.path / "pki"

    @property
    def objects(self) -> Path:
        return self.path / "objects.db"

    @property
    def events(self) -> Path:
        return self.path / "events.db"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def sources(self) -> Path:
        """Copies of functions' folders, one per revision's digest, so that an old revision keeps its code."""
        return self.path / "sources"

    @property
    def services(self) -> Path:
        """Data of backing services (Milvus Lite)."""
        return self.path / "services"

    @property
    def repository(self) -> Path:
        return self.path / "models"

    @property
    def cache(self) -> Path:
        return self.path / "cache"


@dataclass(frozen=True)
class Settings:
    """What ``relight up`` and the commands beside it need to know."""

    home: Home
    repository: str
    """URI of the model repository: ``file:///…`` (default: a folder in home)."""
    cache: Path
    """The node cache, shared by all functions of the machine."""
    functions: Path | None = None
    """The folder that holds the functions named by ``RELIGHT_FUNCTION`` (image ``relight``); None: there are none."""
    schemas: Path | None = None
    """The folder of JSON Schemas (``TYPE.json``) for Brokers that validate; None: only where they name one."""
    host: str = "127.0.0.1"
    """Listeners' address. Local mode listens on loopback only; there is no setting to change it."""
    api_port: int = 8443
    """Kubernetes API, TLS. 0: a free port."""
    functions_port: int = 8080
    """Router of functions. 0: a free port."""
    broker_port: int = 8081
    """Broker ingress. 0: a free port."""
    strict: bool = False
    """Eventing behaves as Knative does, also where that is less kind to functions."""
    resources: Mapping[str, int] = field(default_factory=dict)
    """What the machine has, by resource, instead of what is found: thousandths of a core, bytes, pieces."""
    limits: str = "auto"
    """How memory and CPU limits are kept: ``auto``, control groups where they can be made; ``rlimit``, never those."""
    trace_decisions: Path | None = None
    """Where the autoscaler's decisions are written, as JSON lines; None: nowhere."""
    dead_letters: int = 10_000
    """Events that were given up and are kept for ``relight events replay``; the oldest go."""
    dead_letter_days: int = 30
    """How long such an event is kept."""
    event_history: int = 20_000
    """Deliveries that ``relight events trace`` knows of, and within which a second answer to an event is noticed."""
    log_level: str = "info"
    environ: Mapping[str, str] = field(default_factory=dict)
    """The rest of the environment, for child processes."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None, **overrides: object) -> Settings:
        """Defaults, then the environment, then ``overrides`` that are not None. BadInput names every wrong one."""
        environ = dict(os.environ if environ is None else environ)
        home = Home(Path(str(overrides.pop("home"))).resolve() if overrides.get("home") else default_home(environ))
        overrides.pop("home", None)
        problems: list[Problem] = []
        values: dict[str, object] = {
            "repository": environ.get("RELIGHT_REPOSITORY") or home.repository.as_uri(),
            "cache": Path(environ.get("RELIGHT_CACHE") or home.cache),
        }
        if environ.get("RELIGHT_FUNCTIONS"):
            values["functions"] = Path(environ["RELIGHT_FUNCTIONS"]).resolve()
        if environ.get("RELIGHT_SCHEMAS"):
            values["schemas"] = Path(environ["RELIGHT_SCHEMAS"]).resolve()
        for name in ("api_port", "functions_port", "broker_port"):
            given = overrides.pop(name, None)
            raw = environ.get(f"RELIGHT_{name.upper()}") if given is None else given
            if raw is None or raw == "":
                continue
            if not str(raw).isdecimal() or int(str(raw)) > 65535:
                problems.append(Problem(f"RELIGHT_{name.upper()}", f"expected a port from 0 to 65535, got {raw!r}"))
                continue
            values[name] = int(str(raw))
        strict = environ.get("RELIGHT_STRICT", "").lower()
        if strict not in ("", "0", "1", "false", "true"):
            problems.append(Problem("RELIGHT_STRICT", f"expected true or false, got {strict!r}"))
        values["strict"] = strict in ("1", "true")
        for name in ("dead_letters", "dead_letter_days", "event_history"):
            raw = environ.get(f"RELIGHT_{name.upper()}")
            if not raw:
                continue
            if not (raw.isascii() and raw.isdecimal() and 0 < int(raw) <= 10_000_000):
                problems.append(Problem(f"RELIGHT_{name.upper()}", f"expected a whole number above 0, got {raw!r}"))
                continue
            values[name] = int(raw)
        limits = str(environ.get("RELIGHT_LIMITS") or "auto")
        if limits not in ("auto", "rlimit"):
            problems.append(Problem("RELIGHT_LIMITS", f"expected auto or rlimit, got {limits!r}"))
        values["limits"] = limits
        try:
            values["resources"] = parse_amounts(
                str(overrides.pop("resources", "") or environ.get("RELIGHT_RESOURCES") or "")
            )
        except ValueError as error:
            problems.append(Problem("RELIGHT_RESOURCES", str(error)))
        level = str(overrides.pop("log_level", None) or environ.get("RELIGHT_LOG_LEVEL") or "info").lower()
        if level not in ("debug", "info", "warning", "error"):
            problems.append(Problem("RELIGHT_LOG_LEVEL", f"expected debug, info, warning or error, got {level!r}"))
        values |= {name: value for name, value in overrides.items() if value is not None}
        if "://" not in str(values["repository"]):
            values["repository"] = Path(str(values["repository"])).resolve().as_uri()
        if problems:
            raise BadInput.of(problems)
        return cls(home=home, log_level=level, environ=environ, **values)  # type: ignore[arg-type]
