"""S3 as it behaves: busy, cut off, gone, and not quite the server one thought."""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store.conftest import quick
from store.proxy import Asked, Fault, Proxy

from relight.base.errors import CorruptWeights, StoreError, Unreachable
from relight.store.cache import NodeCache
from relight.store.keys import Keys
from relight.store.manifest import CHUNK
from relight.store.repository import Repository
from relight.store.s3 import S3

MODEL = "bert/1/model.onnx"


@pytest.fixture
def far(proxy: Proxy, bucket: str) -> Repository:
    """A repository behind the proxy."""
    return Repository(quick(bucket))


@pytest.fixture
def bert(far: Repository, proxy: Proxy, make: Callable[..., Path]) -> bytes:
    """A model of 20 MB; what its file holds."""
    source = make(20_000_000)
    far.push(source, "bert")
    proxy.asked.clear()
    return (source / "model.onnx").read_bytes()


def once(when: Callable[[Asked], bool], fault: Fault, times: int = 1) -> Callable[[Asked], Fault | None]:
    """A fault that happens to the first requests of a kind."""
    left = [fault] * times

    def decide(asked: Asked) -> Fault | None:
        return left.pop() if left and when(asked) else None

    return decide


def reads(asked: Asked) -> bool:
    return asked.method == "GET" and asked.key.endswith("model.onnx")


def second_chunk(asked: Asked) -> bool:
    return reads(asked) and asked.range.startswith(f"{CHUNK}-")


def test_a_read_that_is_cut_goes_on_where_it_was(cache: NodeCache, far: Repository, proxy: Proxy, bert: bytes) -> None:
    proxy.fault = once(second_chunk, Fault(cut=5_000_000))
    with cache.fetch(far, "bert") as fetched:
        assert (fetched.path / "model.onnx").read_bytes() == bert
    expected = [f"{at}-{min(at + CHUNK, 20_000_000) - 1}" for at in range(0, 20_000_000, CHUNK)]
    assert sorted(proxy.gets("model.onnx")) == sorted([*expected, f"{CHUNK + 5_000_000}-{2 * CHUNK - 1}"])


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(status=503), id="busy"),
        pytest.param(Fault(status=500), id="failing"),
        pytest.param(Fault(lost=True), id="no-answer"),
        pytest.param(Fault(cut=0), id="no-body"),
    ],
)
def test_what_passes_is_waited_out(cache: NodeCache, far: Repository, proxy: Proxy, bert: bytes, fault: Fault) -> None:
    proxy.fault = once(reads, fault, times=3)
    with cache.fetch(far, "bert") as fetched:
        assert (fetched.path / "model.onnx").read_bytes() == bert


def test_what_does_not_pass_is_told_and_the_rest_is_kept(
    cache: NodeCache, far: Repository, proxy: Proxy, bert: bytes
) -> None:
    def busy(asked: Asked) -> Fault | None:
        return Fault(status=503) if second_chunk(asked) else None

    proxy.fault = busy
    with pytest.raises(Unreachable, match=rf"cannot read {far.uri}/{MODEL}: the server answered 503"):
        cache.fetch(far, "bert")
    (part,) = (cache.path / "fetching").iterdir()
    arrived = len((part / "journal").read_text().splitlines())
    proxy.fault = lambda asked: None
    proxy.asked.clear()
    with cache.fetch(far, "bert") as fetched:
        assert (fetched.path / "model.onnx").read_bytes() == bert
    assert len(proxy.gets("model.onnx")) == 3 - arrived


def test_a_flipped_byte_is_never_used(cache: NodeCache, far: Repository, proxy: Proxy, bert: bytes) -> None:
    proxy.fault = once(second_chunk, Fault(flip=1000))
    with pytest.raises(CorruptWeights, match=rf"{far.uri}/{MODEL} is corrupt: bytes {CHUNK} to {2 * CHUNK}"):
        cache.fetch(far, "bert")
    assert not list((cache.path / "entries").glob("*"))


def test_a_server_without_ranges(cache: NodeCache, far: Repository, proxy: Proxy, bert: bytes) -> None:
    proxy.fault = lambda asked: Fault(ignore_range=True) if reads(asked) else None
    with pytest.raises(StoreError, match=rf"cannot read {far.uri}/{MODEL}: the server does not answer ranged reads"):
        cache.fetch(far, "bert")


@pytest.mark.parametrize(
    ("status", "kind", "sentence"),
    [
        (403, StoreError, "access denied to the credentials that were found"),
        (501, StoreError, "does not support a header that is needed"),
        (503, Unreachable, "Service Unavailable"),
    ],
)
def test_refusals_name_the_place(
    far: Repository, proxy: Proxy, status: int, kind: type[StoreError], sentence: str
) -> None:
    proxy.fault = lambda asked: Fault(status=status)
    with pytest.raises(kind, match=rf"cannot list {far.uri}/bert: .*{sentence}"):
        far.versions("bert")


def test_a_bucket_that_is_not_there(bucket: str) -> None:
    with pytest.raises(StoreError, match="cannot list s3://no-such-bucket/m/bert: there is no bucket 'no-such-bucket'"):
        Repository.open("s3://no-such-bucket/m").versions("bert")


def test_a_server_that_is_not_there(bucket: str, aws: Callable[[str], None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    aws(f"http://127.0.0.1:{port}")
    # The client's own waits between its tries are real ones: two tries are enough to see what is told.
    with pytest.raises(Unreachable, match=rf"cannot list s3://{bucket}/m/bert: .*127.0.0.1:{port}"):
        Repository(S3(bucket, "m", backoff=quick(bucket)._backoff.__class__(tries=2))).versions("bert")


def test_no_credentials(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(StoreError, match=rf"cannot open s3://{bucket}/team/models: Unable to locate credentials"):
        Repository(quick(bucket)).versions("bert")


@pytest.mark.parametrize("key", ["claim.json", "manifest.json", "model.onnx"])
def test_a_lost_answer_to_a_write_is_no_conflict(
    far: Repository, proxy: Proxy, make: Callable[..., Path], key: str
) -> None:
    proxy.fault = once(lambda asked: asked.method == "PUT" and asked.key.endswith(key), Fault(lost=True))
    assert far.push(make(100), "bert") == 1
    assert far.versions("bert") == [1]


def test_a_push_that_fails_leaves_no_parts(
    far: Repository, proxy: Proxy, client: Any, bucket: str, make: Callable[..., Path]
) -> None:
    proxy.fault = lambda asked: (
        Fault(status=403) if asked.method == "PUT" and asked.key.endswith("model.onnx") else None
    )
    with pytest.raises(StoreError, match=rf"cannot write {far.uri}/{MODEL}: access denied"):
        far.push(make(2 * CHUNK), "bert")
    assert "Uploads" not in client.list_multipart_uploads(Bucket=bucket)
    assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


PUSH = """
import os, signal, sys
from relight.store import uploading
from relight.store.keys import Keys
from relight.store.repository import Repository
repository = Repository.open(sys.argv[1], Keys.from_environ(os.environ))
send = uploading._send
def die(client, where, parts, stored):
    send(client, where, [next(parts) for _ in range(2)], stored)
    os.kill(os.getpid(), signal.SIGKILL)
uploading._send = die
repository.push(sys.argv[2], "bert")
"""


def test_parts_of_a_push_that_was_killed_are_cleaned(
    s3: S3, client: Any, bucket: str, make: Callable[..., Path]
) -> None:
    argv = [sys.executable, "-c", PUSH, s3.uri, str(make(2 * CHUNK))]
    assert subprocess.run(argv, timeout=60, check=False).returncode == -signal.SIGKILL
    repository = Repository(s3)
    assert repository.versions("bert") == []
    assert s3.clean(0.0) == 1
    assert "Uploads" not in client.list_multipart_uploads(Bucket=bucket)


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_parts_of_a_push_that_was_killed_are_not_sent_again(
    far: Repository,
    proxy: Proxy,
    client: Any,
    bucket: str,
    make: Callable[..., Path],
    encrypted: bool,
    cache: NodeCache,
) -> None:
    source = make(2 * CHUNK + 5)
    key = {"RELIGHT_ENCRYPTION_KEY": base64.b64encode(bytes(32)).decode()} if encrypted else {}
    argv = [sys.executable, "-c", PUSH, far.uri, str(source)]
    assert subprocess.run(argv, timeout=60, check=False, env=os.environ | key).returncode == -signal.SIGKILL
    assert len([asked for asked in proxy.asked if asked.method == "PUT" and asked.key.endswith(MODEL)]) == 2
    proxy.asked.clear()
    repository = Repository(far.objects, Keys.from_environ(key))
    assert repository.push(source, "bert") == 1
    assert len([asked for asked in proxy.asked if asked.method == "PUT" and asked.key.endswith(MODEL)]) == 1
    with cache.fetch(repository, "bert") as fetched:
        assert (fetched.path / "model.onnx").read_bytes() == (source / "model.onnx").read_bytes()
    assert "Uploads" not in client.list_multipart_uploads(Bucket=bucket)


START = """
import sys
from relight.store.cache import NodeCache
from relight.store.repository import Repository
version = int(sys.argv[3]) if len(sys.argv) > 3 else None
fetched = NodeCache(sys.argv[2]).fetch(Repository.open(sys.argv[1]), "bert", version)
print(fetched.version, fetched.hit, "boto3" in sys.modules)
"""


@pytest.mark.parametrize("version", [(), ("1",)], ids=["latest", "by-number"])
def test_a_second_start_needs_no_server(
    cache: NodeCache, far: Repository, proxy: Proxy, bert: bytes, version: tuple[str, ...]
) -> None:
    argv = [sys.executable, "-c", START, far.uri, str(cache.path.parent), *version]
    first = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert first.stdout == "1 False True\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nowhere = f"http://127.0.0.1:{listener.getsockname()[1]}"
    env = {**os.environ, "AWS_ENDPOINT_URL": nowhere}
    second = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True, env=env)
    assert second.stdout == "1 True False\n"


def test_processes_at_once_read_each_chunk_once(cache: NodeCache, far: Repository, proxy: Proxy, bert: bytes) -> None:
    argv = [sys.executable, "-c", START, far.uri, str(cache.path.parent), "1"]
    processes = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = [process.communicate(timeout=60)[0].split()[1] for process in processes]
    assert sorted(said) == ["False", "True", "True", "True"]
    assert len(proxy.gets("model.onnx")) == len(set(proxy.gets("model.onnx"))) == 3


def test_a_fork_has_connections_of_its_own(s3: S3) -> None:
    s3.put("a", [b"12345678"])
    buffer = bytearray(8)
    assert s3.read_into("a", 0, memoryview(buffer)) == 8
    child = os.fork()
    if child == 0:
        mine = bytearray(4)
        os._exit(0 if s3.read_into("a", 4, memoryview(mine)) == 4 and mine == b"5678" else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert s3.read_into("a", 0, memoryview(buffer)) == 8


def test_a_proxy_of_the_environment_is_used(
    s3: S3, s3_server: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, aws: Callable[[str], None]
) -> None:
    """Ranged reads then go through the client, for what reads them otherwise speaks to servers only."""
    s3.put("a/b", [b"0123456789"])
    aws("http://storage.invalid")
    monkeypatch.setenv("http_proxy", proxy.url)
    far, buffer = quick(s3.bucket), bytearray(4)
    assert far.read_into("a/b", 3, memoryview(buffer)) == 4
    assert bytes(buffer) == b"3456"
    assert far.read_into("a/b", 8, memoryview(buffer)) == 2
    assert far.read_into("a/b", 10, memoryview(buffer)) == 0
