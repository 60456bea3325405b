"""``relight model`` and ``relight cache``, on a folder and on S3."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from relight.cli import main
from relight.store.cache import NodeCache
from relight.store.repository import Repository


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def relight(
    tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ran]:
    """The command line, told by its environment about the repository and a node cache."""
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()

    def relight(*arguments: str, **environ: str) -> Ran:
        known = {"RELIGHT_HOME": str(tmp_path / "home"), "RELIGHT_REPOSITORY": repository.uri}
        with monkeypatch.context() as patch:
            for name, value in (known | {"RELIGHT_CACHE": str(tmp_path / "cache"), "COLUMNS": "80"} | environ).items():
                patch.setenv(name, value)
            code = main.guard(lambda: main.run(arguments))
        said = capsys.readouterr()
        return Ran(code, said.out, said.err)

    return relight


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A model of a few kilobytes, for it is pushed over and over."""
    folder = tmp_path / "small"
    (folder / "assets").mkdir(parents=True)
    (folder / "model.onnx").write_bytes(os.urandom(3000))
    (folder / "assets" / "words.txt").write_text("a b c")
    return folder


def test_the_way_of_a_model(
    relight: Callable[..., Ran], repository: Repository, storage: Any, small: Path, tmp_path: Path, read_all: Any
) -> None:
    pushed = relight("model", "push", str(small), f"{repository.uri}/bert", "-o", "json", RELIGHT_REPOSITORY="")
    assert (pushed.code, pushed.json["version"]) == (0, 1), pushed.err
    assert "bert version 2 pushed" in relight("model", "push", str(small), "bert").out
    pulled = relight("model", "pull", "bert", "copy", "--version", "1")
    assert pulled.out == "bert version 1 (3.0 kB) pulled into copy\n", pulled.err
    assert read_all(tmp_path / "copy") == read_all(small)
    assert os.access(tmp_path / "copy" / "model.onnx", os.W_OK)
    again = relight("model", "pull", "bert", "copy")
    assert (again.code, again.err) == (
        5,
        "error: copy exists: pull into a folder that does not exist yet, or is empty\n",
    )

    assert [row["result"] for row in relight("model", "verify", "-o", "json").json] == ["ok", "ok"]
    storage.edit("bert/2/model.onnx", lambda data: b"x" + data[1:])
    verified = relight("model", "verify", "bert")
    assert verified.code == 1
    assert f"{repository.uri}/bert/2/model.onnx is corrupt: bytes 0 to 3000" in verified.out
    assert "bert    1         ok" in verified.out

    removed = relight("model", "rm", "bert", "--version", "2", "-o", "json")
    assert removed.json["removed"] == [2], removed.err
    assert repository.versions("bert") == [1]
    assert relight("model", "rm", "bert", "--version", "2").code == 4
    assert relight("model", "rm", "bert").code == 7
    # Its number is not used again, for a node may know what it was.
    assert "bert version 3 pushed" in relight("model", "push", str(small), "bert").out
    assert relight("model", "gc", "--keep", "1", "-o", "json").json["removed"] == [{"model": "bert", "version": 1}]
    assert relight("model", "rm", "bert", "--all").code == 0
    assert relight("model", "list").err.startswith("no models in ")
    claims = ("claim-1.json", "claim.json")
    assert sorted(storage.all()) == [f"bert/{number}/.relight/{claim}" for number in (1, 2, 3) for claim in claims]


def test_the_cache_of_a_node(
    relight: Callable[..., Ran], repository: Repository, make: Callable[..., Path], tmp_path: Path
) -> None:
    for name in ("bert", "minilm"):
        repository.push(make(3_000_000), name)
    repository.push(make(10), "minilm")
    assert relight("cache", "ls").err.startswith("nothing in ")
    fetched = relight("cache", "prefetch", "bert", "minilm/1", "minilm")
    assert fetched.out.splitlines() == [
        "bert version 1 fetched",
        "minilm version 1 fetched",
        "minilm version 2 fetched",
    ], fetched.err
    assert [row["hit"] for row in relight("cache", "prefetch", "bert", "-o", "json").json] == [True]
    listed = relight("cache", "ls").out.splitlines()
    assert listed[0].split() == ["MODEL", "SIZE", "MADE", "UNUSED", "STATE", "DIGEST"]
    assert [line.split()[0] for line in listed[1:]] == ["minilm/1", "minilm/2", "bert/1"]

    cache = NodeCache(tmp_path / "cache", revalidate="never")
    with cache.fetch(repository, "bert") as held:
        assert {row["models"][0]: row["state"] for row in relight("cache", "ls", "-o", "json").json} == {
            "minilm/1": "idle",
            "minilm/2": "idle",
            "bert/1": "in use",
        }
        busy = relight("cache", "evict", "bert", "minilm/2")
        assert (busy.code, busy.out) == (5, "1 evicted, 10 B free again\n")
        assert busy.err == "error: bert/1: in use, and not evicted\n"
        (held.path / "model.onnx").chmod(0o644)
        (held.path / "model.onnx").write_bytes(bytes(3_000_000))
        assert "damaged, in use" in relight("cache", "verify").out
    verified = relight("cache", "verify")
    assert verified.code == 1
    assert "bert/1     removed" in verified.out
    assert "minilm/1   ok" in verified.out
    assert relight("cache", "verify").code == 0
    assert relight("cache", "evict", "bert").code == 4
    assert relight("cache", "evict", "--all").out == "1 evicted, 3.0 MB free again\n"


def test_a_limit_of_the_cache(relight: Callable[..., Ran], repository: Repository, make: Callable[..., Path]) -> None:
    repository.push(make(3_000_000), "bert")
    refused = relight("cache", "prefetch", "bert", RELIGHT_CACHE_LIMIT="2Mi")
    assert refused.code == 1
    assert "bert/1 takes 3.0 MB, and the node cache" in refused.err
    assert "is limited to 2.1 MB" in refused.err
    wrong = relight("cache", "ls", RELIGHT_CACHE_LIMIT="2 boxes")
    assert (wrong.code, wrong.err) == (
        7,
        "error: RELIGHT_CACHE_LIMIT: expected a quantity of bytes such as 20Gi, got '2 boxes'\n",
    )


def test_keys(relight: Callable[..., Ran], small: Path, tmp_path: Path, read_all: Any) -> None:
    one, other = (base64.b64encode(os.urandom(32)).decode() for _ in range(2))
    (tmp_path / "secret").write_text(f"{one}\n")
    pushed = relight("model", "push", str(small), "bert", RELIGHT_ENCRYPTION_KEY_FILE=str(tmp_path / "secret"))
    assert pushed.out.endswith(", encrypted\n"), pushed.err
    refused = relight("cache", "prefetch", "bert")
    assert refused.code == 1
    assert "bert/1 is encrypted with the key " in refused.err
    assert refused.err.endswith("and RELIGHT_ENCRYPTION_KEY is not set\n")
    refused = relight("cache", "prefetch", "bert", RELIGHT_ENCRYPTION_KEY=other)
    assert "and RELIGHT_ENCRYPTION_KEY holds " in refused.err
    assert relight("model", "verify", "bert").code == 0
    assert relight("cache", "prefetch", "bert", RELIGHT_ENCRYPTION_KEY=one).code == 0
    assert relight("model", "pull", "bert", "copy", RELIGHT_ENCRYPTION_KEY=f"{other} {one}").code == 0
    assert read_all(tmp_path / "copy") == read_all(small)


@pytest.mark.parametrize(
    "name", [*(f"model {name}" for name in ("push", "pull", "verify", "rm", "gc")), "cache ls", "cache prefetch"]
)
def test_help_fits_on_a_terminal(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main.run([*name.split(), "--help"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []
