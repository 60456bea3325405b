"""One version of one repository's model: found and fetched, and loaded from there."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from relight.base.errors import NotFound
from relight.runtime.context import FunctionContext, FunctionSettings
from relight.runtime.repository import RepositoryModel
from relight.store import modelfiles
from relight.store.cache import Fetched, NodeCache
from relight.store.modelfiles import ModelFiles
from relight.store.repository import Repository
from relight.wire import modelconfig_text
from relight.wire.modelconfig import ModelConfig


@dataclass(frozen=True)
class Fetch:
    """A version's files on this node, with the files of its model."""

    name: str
    version: int
    fetched: Fetched
    files: ModelFiles
    seconds: float = 0.0
    """How long it took to have them here."""

    @property
    def key(self) -> str:
        return f"{self.name}/{self.version}"

    @property
    def digest(self) -> str:
        """Of all that makes the loaded model: weights and configuration."""
        config = hashlib.sha256(self.files.config or b"").hexdigest()
        return hashlib.sha256(f"{self.fetched.digest}\n{config}\n{self.files.tag}".encode()).hexdigest()


class Source:
    """The repository as the models of one process are loaded from it. Calls block; for threads."""

    def __init__(self, settings: FunctionSettings) -> None:
        self.settings = settings
        self.cache = settings.cache or Path.home() / ".cache" / "relight"
        self._configs: dict[str, bytes] = {}

    def repository(self) -> Repository:
        if self.settings.repository is None:
            raise NotFound("this process has no model repository: RELIGHT_REPOSITORY is not set")
        return Repository.open(self.settings.repository, self.settings.keys)

    def use_config(self, name: str, config: bytes | None) -> None:
        """Load a model by this ``config.pbtxt`` from now on; None: by its own."""
        if config is None:
            self._configs.pop(name, None)
        else:
            self._configs[name] = config

    def versions(self, name: str, *, fresh: bool = True) -> tuple[list[int], list[int], ModelFiles]:
        """(versions that there are, those of them that are served, the model's files). NotFound for an unknown one.

        Served is what the model's ``version_policy`` says; for ``RELIGHT_MODEL``, ``RELIGHT_MODEL_VERSION`` if that is
        set.
        """
        repository = self.repository()
        there = repository.versions(name)
        if not there:
            raise NotFound(f"there is no model {name!r} in {repository.uri}", param="model")
        files = modelfiles.fetch(repository, name, self.cache, fresh=fresh)
        if name in self._configs:
            given = self._configs[name]
            files = replace(files, config=given, tag=f"{files.tag}+{hashlib.sha256(given).hexdigest()[:16]}")
        pinned = self.settings.model_version if name == self.settings.model else None
        if pinned is None:
            return there, configuration(name, files).version_policy.pick(there), files
        return there, [version for version in there if version == pinned], files

    def fetch(self, name: str, version: int, files: ModelFiles) -> Fetch:
        """A version's files, from the node cache if they are there as the repository has them now."""
        begun = time.monotonic()
        cache = NodeCache(self.cache, self.settings.cache_limit, revalidate=self._revalidate())
        fetched = cache.fetch(self.repository(), name, version)
        return Fetch(name, version, fetched, files, time.monotonic() - begun)

    def open(self, fetch: Fetch) -> tuple[RepositoryModel, Mapping[str, float]]:
        """Load the model and warm it up: the model, and the seconds of each phase.

        Whatever that raises is let through; nothing stays loaded then.
        """
        model = model_of(fetch, self.settings)
        begun = time.monotonic()
        model.load()
        loaded = time.monotonic()
        try:
            model.warmup()
        except BaseException:
            model.unload()
            raise
        return model, {"fetch": fetch.seconds, "load": loaded - begun, "warmup": time.monotonic() - loaded}

    def _revalidate(self) -> str:
        # Which versions there are was asked just now; so it is asked whether somebody changed one of them in place.
        return "always" if self.settings.revalidate == "background" else self.settings.revalidate


def configuration(name: str, files: ModelFiles) -> ModelConfig:
    """What a model's files say of it, which may be nothing."""
    return ModelConfig() if files.config is None else modelconfig_text.decode(files.config, name).config


def model_of(fetch: Fetch, settings: FunctionSettings) -> RepositoryModel:
    """The model, still to be loaded."""
    model = RepositoryModel()
    model.context = FunctionContext(
        name=settings.name or fetch.name,
        source=f"/{settings.namespace or 'functions'}/{settings.name or fetch.name}",
        model=fetch.name,
        version=str(fetch.version),
        env=settings.environ,
        files=fetch.fetched.path,
        digest=fetch.fetched.digest,
        cache=fetch.fetched.made,
        report=lambda part, seconds: None,
        model_files=fetch.files,
        default_max_batch_size=settings.default_max_batch_size,
    )
    return model
