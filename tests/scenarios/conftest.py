"""One platform for all scenarios that only need one, with the encoder in its repository."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tables import ROOT

from relight.cli.encoder import encoder_files, push_encoder
from relight.testing.platform import RunningPlatform, running_platform


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    home = tmp_path_factory.mktemp("home")
    push_encoder((home / "models").as_uri(), lambda text: None)
    with running_platform(home, functions=ROOT / "functions") as platform:
        yield platform


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """A folder with the encoder's files, as a user would push it."""
    folder = tmp_path / "encoder"
    folder.mkdir()
    for name, path in encoder_files().items():
        os.symlink(path, folder / name)
    return folder
