"""New versions under load: each takes over when it is ready, and no request fails meanwhile."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from modelrepo.conftest import Door
from modelrepo.load import calling
from modelrepo.tiny import put, scaling
from programs.hosting import until

from relight.base.errors import NotReady

Open = Callable[..., AbstractContextManager[Door]]
POLL = {"RELIGHT_REPOSITORY_POLL": "0.05"}


def test_a_new_version_takes_over_under_load(repository: Path, door: Open) -> None:
    put(repository, "m", 1, scaling(1))
    with door(**POLL) as open_door, calling(open_door, "m", "m", "m") as callers:
        callers.wait_for(5, (1.0, "1"))
        for version in (2, 3, 4):
            put(repository, "m", version, scaling(version))
            callers.wait_for(5, (float(version), str(version)))
        assert callers.failed == []
        assert set(open_door.index()) == {("m", "4")}
        until(lambda: open_door.metric("relight_models_loaded") == 1, "the old ones are gone", 10)
        versions = [version for _, (_, version) in callers.answers]
        assert versions == sorted(versions) or len(set(versions)) == 4


def test_a_version_that_cannot_be_loaded_does_not_take_over(repository: Path, door: Open) -> None:
    put(repository, "m", 1, scaling(1))
    with door(**POLL) as open_door, calling(open_door, "m") as callers:
        callers.wait_for(3, (1.0, "1"))
        put(repository, "m", 2, b"half a file")
        until(lambda: "cannot be loaded" in open_door.index()["m", "2"][1], "its failure is told in the index", 10)
        callers.wait_for(3, (1.0, "1"))
        # Its other half comes.
        put(repository, "m", 2, scaling(2))
        callers.wait_for(3, (2.0, "2"))
        assert callers.failed == []


def test_a_version_that_is_changed_in_place_is_loaded_anew(repository: Path, door: Open) -> None:
    put(repository, "m", 1, scaling(1))
    with door(**POLL) as open_door, calling(open_door, "m") as callers:
        callers.wait_for(3, (1.0, "1"))
        put(repository, "m", 1, scaling(7, width=4) + b"")
        callers.wait_for(3, (7.0, "1"))
        assert callers.failed == []


def test_a_configuration_that_changes_is_taken_up(repository: Path, door: Open) -> None:
    put(repository, "m", 1, scaling(1))
    put(repository, "m", 2, scaling(2))
    with door(**POLL) as open_door, calling(open_door, "m") as callers:
        callers.wait_for(3, (2.0, "2"))
        (repository / "m" / "config.pbtxt").write_text("version_policy { specific { versions: 1 } }")
        callers.wait_for(3, (1.0, "1"))
        (repository / "m" / "config.pbtxt").write_text("version_policy { all { } }")
        callers.wait_for(3, (2.0, "2"))
        assert open_door.infer("m/versions/1") == (200, (1.0, "1"))
        assert callers.failed == []


def test_a_model_that_is_removed_goes(repository: Path, door: Open) -> None:
    put(repository, "m", 1, scaling(1))
    put(repository, "n", 1, scaling(1))
    with door(**POLL) as open_door:
        assert open_door.infer("m")[0] == 200
        shutil.rmtree(repository / "m")
        until(lambda: open_door.infer("m")[0] == 404, "it is gone", 10)
        assert set(open_door.index()) == {("n", "1")}
        put(repository, "m", 1, scaling(3))
        until(lambda: open_door.infer("m") == (200, (3.0, "1")), "it is back", 10)


def test_without_a_poll_changes_wait_for_load(repository: Path, door: Open) -> None:
    put(repository, "m", 1, scaling(1))
    with door() as open_door, calling(open_door, "m", "m") as callers:
        callers.wait_for(3, (1.0, "1"))
        put(repository, "m", 2, scaling(2))
        callers.wait_for(10, (1.0, "1"))
        assert open_door.ask("POST", "/v2/repository/models/m/load")[0] == 200
        assert open_door.infer("m") == (200, (2.0, "2")), "answered when it had taken over"
        assert callers.failed == []


def test_load_brings_all_versions_of_the_policy(repository: Path, door: Open) -> None:
    for version in (1, 2, 3):
        put(repository, "m", version, scaling(version), "version_policy { latest { num_versions: 2 } }")
    with door() as open_door:
        assert open_door.ask("POST", "/v2/repository/models/m/load")[0] == 200
        assert {key: state for key, (state, _) in open_door.index().items()} == {
            ("m", "2"): "READY",
            ("m", "3"): "READY",
        }


def test_an_old_version_that_is_broken_keeps_the_newest_from_nobody(repository: Path, door: Open) -> None:
    put(repository, "m", 1, b"junk", "version_policy { all { } }")
    put(repository, "m", 2, scaling(2))
    with door() as open_door:
        status, answer = open_door.ask("POST", "/v2/repository/models/m/load")
        assert (status, "cannot read" in answer["error"]) == (500, True)
        assert open_door.infer("m") == (200, (2.0, "2"))
        assert {version: state for (_, version), (state, _) in open_door.index().items()} == {
            "1": "UNAVAILABLE",
            "2": "READY",
        }


def test_the_end_during_a_load_is_not_waited_for(repository: Path, door: Open) -> None:
    put(repository, "m", 1, scaling(1))
    held, answers = threading.Event(), []
    with door(**POLL) as open_door:
        assert open_door.infer("m")[0] == 200
        loads = open_door.residents.loads
        loads._loader.submit(lambda: held.wait(20))
        put(repository, "m", 2, scaling(2))
        asked = threading.Thread(target=lambda: answers.append(loads.reload("m", everything=True).exception(20)))
        asked.start()
        until(lambda: loads._loader.queued, "the reload waits", 10)
        threading.Timer(0.1, held.set).start()
    asked.join(20)
    assert isinstance(answers[0], NotReady)


@pytest.mark.parametrize("times", [8])
def test_loads_and_unloads_of_many_at_once_end_in_order(times: int, repository: Path, door: Open) -> None:
    put(repository, "m", 1, scaling(1))
    with door() as open_door, calling(open_door, "m", "m") as callers:
        for _ in range(times):
            assert open_door.ask("POST", "/v2/repository/models/m/unload")[0] == 200
            assert open_door.ask("POST", "/v2/repository/models/m/load")[0] == 200
        callers.wait_for(2, (1.0, "1"))
        assert {status for status, _ in callers.answers} <= {200, 503}
        assert all("was unloaded" in error for status, error in callers.failed), "the only reason there is"
