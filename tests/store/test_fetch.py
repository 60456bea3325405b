"""The node cache: right or not there, once for all processes, within its limit, never from under somebody's feet."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from relight.base.errors import BadInput, CorruptWeights, Deadline, MissingWeights, NoSpace, StoreError, Unreachable
from relight.store.cache import NodeCache
from relight.store.manifest import CHUNK
from relight.store.repository import Repository

MB = 10**6


@pytest.fixture
def pushed(repository: Repository, weights: Path) -> str:
    """bert, version 1; its key in the repository."""
    repository.push(weights, "bert")
    return "bert/1"


def leftovers(cache: NodeCache, but: str = "") -> list[str]:
    """What of a failed fetch lies around."""
    return [
        str(path.relative_to(cache.path))
        for folder in {"entries", "fetching", "trash"} - {but}
        for path in (cache.path / folder).rglob("*")
    ]


def test_what_is_fetched_is_what_was_pushed(
    cache: NodeCache, repository: Repository, pushed: str, weights: Path, read_all: Callable[[Path], dict[str, bytes]]
) -> None:
    told: list[tuple[int, int]] = []
    with cache.fetch(repository, "bert", on_progress=lambda done, total: told.append((done, total))) as fetched:
        assert read_all(fetched.path) == read_all(weights)
        assert (fetched.version, fetched.hit, fetched.digest) == (1, False, repository.manifest("bert", 1).digest)
        assert not os.access(fetched.path / "model.onnx", os.W_OK) or os.geteuid() == 0
    assert told[-1] == (2 * CHUNK + 25, 2 * CHUNK + 25)


ASKS = ["list bert", "read manifest.json"]


@pytest.mark.parametrize(
    ("revalidate", "version", "reads"),
    [
        # A folder is asked, where that can matter: it takes microseconds.
        ("background", 1, {"file": [], "s3": []}),
        ("never", 1, {"file": [], "s3": []}),
        ("never", None, {"file": [], "s3": []}),
        ("background", None, {"file": ASKS, "s3": []}),
        ("always", 1, {"file": ASKS[1:], "s3": ASKS[1:]}),
        ("always", None, {"file": ASKS, "s3": ASKS}),
    ],
)
def test_a_second_fetch_reads_no_weights(
    tmp_path: Path,
    repository: Repository,
    storage: Any,
    pushed: str,
    revalidate: str,
    version: int | None,
    reads: dict[str, list[str]],
) -> None:
    cache = NodeCache(tmp_path / "cache", revalidate=revalidate)
    cache.fetch(repository, "bert", version).close()
    storage.calls.clear()
    with cache.fetch(repository, "bert", version) as fetched:
        assert (fetched.hit, fetched.version) == (True, 1)
    expected = reads[storage.uri.partition(":")[0]]
    assert [call.replace("bert/1/.relight/", "") for call in storage.calls] == expected
    assert fetched.asked == bool(expected)
    # What was used unasked is asked about later, unless it cannot change or nobody wants to know.
    assert fetched.settled == bool(expected or version or revalidate == "never")


def test_a_version_that_is_pushed_later_is_the_latest(
    cache: NodeCache, repository: Repository, pushed: str, make: Callable[..., Path]
) -> None:
    first = cache.fetch(repository, "bert")
    repository.push(make(10), "bert")
    if repository.objects.remote:
        # A start waits for nobody: it has what was the latest, and the next one what is asked for behind it.
        assert (stale := cache.fetch(repository, "bert")).version == 1
        assert cache.revalidate(repository, "bert", None, stale)
    assert cache.fetch(repository, "bert").version == 2
    assert cache.fetch(repository, "bert", 1).path == first.path


def test_equal_content_is_kept_once(cache: NodeCache, repository: Repository, pushed: str, weights: Path) -> None:
    repository.push(weights, "twin")
    first, second = cache.fetch(repository, "bert"), cache.fetch(repository, "twin")
    assert first.path == second.path
    assert second.hit


def flip(at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("spoil", "error", "sentence"),
    [
        pytest.param(
            lambda data: data[: CHUNK + 5],
            CorruptWeights,
            f"it has {CHUNK + 5} bytes, its manifest says {2 * CHUNK + 7}",
            id="cut",
        ),
        pytest.param(lambda data: b"", CorruptWeights, "it has 0 bytes", id="empty"),
        pytest.param(flip(CHUNK), CorruptWeights, f"bytes {CHUNK} to {2 * CHUNK}", id="first-of-chunk"),
        pytest.param(flip(2 * CHUNK + 6), CorruptWeights, "do not have the digest", id="last"),
        pytest.param(lambda data: None, MissingWeights, "is missing", id="gone"),
    ],
)
def test_damaged_weights_are_never_published(
    cache: NodeCache,
    repository: Repository,
    storage: Any,
    pushed: str,
    weights: Path,
    spoil: Callable[[bytes], bytes | None],
    error: type[StoreError],
    sentence: str,
) -> None:
    storage.edit("bert/1/model.onnx", spoil)
    with pytest.raises(error, match=rf"\w+://.*/bert/1/model.onnx .*{sentence}"):
        cache.fetch(repository, "bert")
    assert leftovers(cache) == []
    storage.inner.put("bert/1/model.onnx", [(weights / "model.onnx").read_bytes()])
    assert not cache.fetch(repository, "bert").hit


@pytest.mark.parametrize(
    ("name", "version", "sentence"),
    [
        ("bert", 9, "model 'bert' has no version 9 in \\w+://.*; it has 1$"),
        ("ber", None, "no model 'ber' in \\w+://.*; it has bert$"),
        ("ber", 1, "no model 'ber' in \\w+://.*; it has bert$"),
    ],
)
def test_what_is_missing_is_named(
    cache: NodeCache, repository: Repository, pushed: str, name: str, version: int | None, sentence: str
) -> None:
    with pytest.raises(MissingWeights, match=sentence):
        cache.fetch(repository, name, version)


def test_an_empty_repository(cache: NodeCache, repository: Repository) -> None:
    with pytest.raises(MissingWeights, match="it has no model at all"):
        cache.fetch(repository, "bert")


@pytest.mark.parametrize("version", [0, -1])
def test_versions_begin_with_one(cache: NodeCache, repository: Repository, pushed: str, version: int) -> None:
    with pytest.raises(BadInput, match="expected a whole number from 1"):
        cache.fetch(repository, "bert", version)


def test_an_entry_that_was_cut_is_fetched_again(
    cache: NodeCache, repository: Repository, pushed: str, weights: Path
) -> None:
    with cache.fetch(repository, "bert") as fetched:
        (fetched.path / "model.onnx").chmod(0o644)
        os.truncate(fetched.path / "model.onnx", 100)
    again = cache.fetch(repository, "bert")
    assert not again.hit
    assert (again.path / "model.onnx").read_bytes() == (weights / "model.onnx").read_bytes()


def test_threads_that_want_the_same_fetch_it_once(
    cache: NodeCache, repository: Repository, storage: Any, pushed: str
) -> None:
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda _: cache.fetch(repository, "bert"), range(6)))
    assert sum(not fetched.hit for fetched in results) == 1
    assert storage.calls.count("read bert/1/model.onnx") == 3


FETCH = """
import os, signal, sys
from relight.store.cache import NodeCache
from relight.store.repository import Repository
repository = Repository.open(sys.argv[1])
read_into = repository.objects.read_into
def watched(key, offset, buffer, tag=None):
    got = read_into(key, offset, buffer, tag)
    if key.endswith("model.onnx"):
        os.write(1, b"fetching\\n")
        if sys.argv[3] == "die" and offset:
            os.kill(os.getpid(), signal.SIGKILL)
    return got
repository.objects.read_into = watched
fetched = NodeCache(sys.argv[2]).fetch(repository, "bert")
os.write(1, b"hit\\n" if fetched.hit else b"miss\\n")
sys.stdin.read()
"""


def start_fetch(repository: Repository, cache: NodeCache, mode: str = "live") -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", FETCH, repository.uri, str(cache.path.parent), mode]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_processes_that_want_the_same_fetch_it_once(cache: NodeCache, repository: Repository, pushed: str) -> None:
    processes = [start_fetch(repository, cache) for _ in range(3)]
    said = [process.communicate(timeout=60)[0].split() for process in processes]
    assert sorted(lines[-1] for lines in said) == ["hit", "hit", "miss"]
    assert sum(lines.count("fetching") for lines in said) == 3


def test_a_fetch_that_is_killed_is_never_used_and_gone_on_with(
    cache: NodeCache, repository: Repository, storage: Any, pushed: str, weights: Path, read_all: Any
) -> None:
    with start_fetch(repository, cache, "die") as process:
        process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL
    assert not (cache.path / "entries").exists()
    (part,) = (cache.path / "fetching").iterdir()
    arrived = (part / "journal").read_text().splitlines()
    storage.calls.clear()
    with cache.fetch(repository, "bert") as fetched:
        assert not fetched.hit
        assert read_all(fetched.path) == read_all(weights)
    # Three chunks and tokenizer.json; what is in the journal was not read again.
    reads = [call for call in storage.calls if call in ("read bert/1/model.onnx", "read bert/1/tokenizer.json")]
    assert len(reads) == 4 - len(arrived)
    assert leftovers(cache, but="entries") == []


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda part: flip_file(part / "files" / "model.onnx", 3), id="a-chunk-that-never-hit-the-disk"),
        pytest.param(lambda part: cut(part / "journal", 20), id="a-line-cut-off"),
        pytest.param(lambda part: (part / "journal").write_bytes(b"\0" * 100), id="a-journal-of-zeros"),
        pytest.param(lambda part: (part / "journal").unlink(), id="no-journal"),
        pytest.param(lambda part: cut(part / "files" / "model.onnx", 5), id="a-file-cut-off"),
        pytest.param(lambda part: (part / "files" / "model.onnx").unlink(), id="no-file"),
        pytest.param(lambda part: (part / "size").write_text("5"), id="another-size"),
    ],
)
def test_what_a_crash_left_is_not_believed(
    cache: NodeCache,
    repository: Repository,
    storage: Any,
    pushed: str,
    weights: Path,
    read_all: Any,
    spoil: Callable[[Path], object],
) -> None:
    def fail(verb: str, key: str) -> None:
        if verb == "read" and key.endswith("tokenizer.json"):
            raise Unreachable("storage is gone for a moment")

    storage.before = fail
    with pytest.raises(Unreachable, match="gone for a moment"):
        cache.fetch(repository, "bert")
    (part,) = (cache.path / "fetching").iterdir()
    assert (part / "journal").stat().st_size
    spoil(part)
    storage.before = lambda verb, key: None
    with cache.fetch(repository, "bert") as fetched:
        assert read_all(fetched.path) == read_all(weights)


def flip_file(path: Path, at: int) -> None:
    path.chmod(0o644)
    path.write_bytes(flip(at)(path.read_bytes()))


def cut(path: Path, count: int) -> None:
    path.chmod(0o644)
    os.truncate(path, count)


def test_what_nobody_goes_on_with_makes_room(
    tmp_path: Path, cache: NodeCache, repository: Repository, pushed: str, make: Callable[..., Path]
) -> None:
    repository.push(make(100), "small")
    repository.push(make(MB), "large")
    with start_fetch(repository, cache, "die") as process:
        process.communicate(timeout=30)
    tight = NodeCache(tmp_path / "cache", 2 * CHUNK + 200)
    tight.fetch(repository, "small").close()
    assert len(list((cache.path / "fetching").iterdir())) == 1
    tight.fetch(repository, "large").close()
    assert list((cache.path / "fetching").iterdir()) == []
    assert tight.fetch(repository, "small").hit
    assert not tight.fetch(repository, "bert").hit


def test_waiting_for_another_process_has_an_end(
    cache: NodeCache, repository: Repository, storage: Any, pushed: str
) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def pause(verb: str, key: str) -> None:
        if verb == "read" and key.endswith("model.onnx"):
            reached.set()
            assert go_on.wait(30)

    storage.before = pause
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(cache.fetch, repository, "bert")
        try:
            assert reached.wait(30)
            with pytest.raises(Deadline, match=r"bert/1 is still being fetched by another process, and nothing of it"):
                cache.fetch(repository, "bert", timeout=0.01)
        finally:
            go_on.set()
        assert not first.result(30).hit


@pytest.fixture
def models(repository: Repository, make: Callable[..., Path]) -> list[str]:
    """Models a, b and c of 1 MB each."""
    for name in "abc":
        repository.push(make(MB), name)
    return list("abc")


def held(cache: NodeCache, repository: Repository, names: list[str], storage: Any) -> set[str]:
    """Which of the models are in the cache, found out without fetching one."""

    def refuse(verb: str, key: str) -> None:
        if verb == "read" and key.endswith("model.onnx"):
            raise StoreError("not now")

    storage.before = refuse
    found = set()
    for name in names:
        try:
            NodeCache(cache.path.parent).fetch(repository, name, 1).close()
            found.add(name)
        except StoreError:
            continue
    storage.before = lambda verb, key: None
    return found


def test_the_least_recently_used_goes(tmp_path: Path, repository: Repository, storage: Any, models: list[str]) -> None:
    cache = NodeCache(tmp_path / "cache", 2 * MB)
    for name in ("a", "b", "a", "c"):
        cache.fetch(repository, name, 1).close()
    assert held(cache, repository, models, storage) == {"a", "c"}


def test_what_is_in_use_stays(tmp_path: Path, repository: Repository, storage: Any, models: list[str]) -> None:
    cache = NodeCache(tmp_path / "cache", 2 * MB)
    first = cache.fetch(repository, "a")
    cache.fetch(repository, "b").close()
    cache.fetch(repository, "c").close()
    assert held(cache, repository, models, storage) == {"a", "c"}
    assert (first.path / "model.onnx").stat().st_size == MB


def test_a_lease_goes_with_its_process(
    tmp_path: Path, repository: Repository, pushed: str, make: Callable[..., Path]
) -> None:
    cache = NodeCache(tmp_path / "cache", 2 * CHUNK + 100)
    repository.push(make(MB), "a")
    with start_fetch(repository, cache) as process:
        assert process.stdout is not None
        while process.stdout.readline() not in ("miss\n", ""):
            pass
        with pytest.raises(NoSpace, match=r"a/1 takes 1.0 MB; of the node cache .*, 17 MB are in use"):
            cache.fetch(repository, "a")
        process.kill()
    assert not cache.fetch(repository, "a").hit


def test_no_room_is_told_before_anything_is_read(
    tmp_path: Path, repository: Repository, storage: Any, models: list[str]
) -> None:
    cache = NodeCache(tmp_path / "cache", 2 * MB)
    cache.fetch(repository, "a").close()
    keep = cache.fetch(repository, "b"), cache.fetch(repository, "c")
    storage.calls.clear()
    with pytest.raises(NoSpace, match=r"a/1 takes 1.0 MB; of the node cache .*, limited to 2.0 MB, 2.0 MB are in use"):
        cache.fetch(repository, "a")
    assert not any(call.endswith("model.onnx") for call in storage.calls)
    # What could not make enough room was not thrown away for nothing.
    keep[0].close()
    cache.fetch(repository, "a").close()


def test_more_than_the_whole_cache(tmp_path: Path, repository: Repository, storage: Any, models: list[str]) -> None:
    NodeCache(tmp_path / "cache").fetch(repository, "b").close()
    cache = NodeCache(tmp_path / "cache", MB - 1)
    with pytest.raises(NoSpace, match=r"a/1 takes 1.0 MB, and the node cache .* is limited to 1000 kB"):
        cache.fetch(repository, "a")
    assert held(cache, repository, models, storage) == {"b"}


DISK_FULL = """
import resource, sys
from relight.base.errors import NoSpace
from relight.store.cache import NodeCache
from relight.store.repository import Repository
resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6))
try:
    NodeCache(sys.argv[2]).fetch(Repository.open(sys.argv[1]), "bert")
except NoSpace as error:
    print(error)
"""


def test_a_disk_that_fills_up(cache: NodeCache, repository: Repository, pushed: str) -> None:
    argv = [sys.executable, "-c", DISK_FULL, repository.uri, str(cache.path.parent)]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout
    assert said.startswith(f"cannot keep {repository.uri}/bert/1 in the node cache {cache.path}: ")
    assert leftovers(cache) == []


def test_a_folder_that_cannot_be_used(tmp_path: Path, repository: Repository, pushed: str) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(StoreError, match=r"cannot keep \w+://.*/bert in the node cache"):
        NodeCache(tmp_path / "cache").fetch(repository, "bert")


def test_weights_are_used_though_nothing_more_can_be_noted(
    cache: NodeCache, repository: Repository, pushed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk that is full to the last block; also after the start, when the repository is asked again."""
    write = Path.write_text

    def full(self: Path, text: str, *args: Any, **options: Any) -> int:
        if "refs" in self.parts:
            self.touch()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(self, text, *args, **options)

    monkeypatch.setattr(Path, "write_text", full)
    with cache.fetch(repository, "bert") as fetched:
        assert (fetched.path / "model.onnx").is_file()
        assert not cache.revalidate(repository, "bert", None, fetched)
    assert [path for path in (cache.path / "refs").rglob("*") if path.is_file()] == []
    assert cache.evict(fetched.digest.removeprefix("sha256:")), "nobody holds it"


def test_an_unknown_way_to_revalidate(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="RELIGHT_REVALIDATE: expected background, always, never, got 'sometimes'"):
        NodeCache(tmp_path, revalidate="sometimes")


def test_the_store_is_light_to_import() -> None:
    code = (
        "import sys, relight.store.cache; print(*sorted({'numpy', 'boto3', 'asyncio', 'msgspec'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == ""
