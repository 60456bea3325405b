"""A repository (in a folder, and on S3) and a node cache, weights to push, and storage that does as it is told."""

from __future__ import annotations

import gc
import os
import secrets
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from store.faulty import Faulty
from store.proxy import Proxy, proxying

from relight.store.cache import NodeCache
from relight.store.files import Files
from relight.store.manifest import CHUNK
from relight.store.objects import Objects
from relight.store.repository import Repository
from relight.store.retrying import Backoff
from relight.store.s3 import S3


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of an S3 server."""
    argv = [sys.executable, str(Path(__file__).with_name("s3_server.py"))]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.communicate(timeout=30)


@pytest.fixture(autouse=True)
def no_open_connections() -> Iterator[None]:
    """boto3's clients have no end that their owner could bring about: their sockets close when they are collected."""
    yield
    if "boto3" in sys.modules:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Sets the usual environment for a server, and nothing of the developer's own."""

    def use(url: str) -> None:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))

    return use


@pytest.fixture(scope="session")
def client(s3_server: str) -> Any:
    """A client of the S3 server, as any other tool has one."""
    import boto3

    access = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
    return boto3.client("s3", endpoint_url=s3_server, **access)


@pytest.fixture
def bucket(client: Any, s3_server: str, aws: Callable[[str], None]) -> str:
    """A new bucket; the environment leads to its server."""
    aws(s3_server)
    name = f"models-{secrets.token_hex(6)}"
    client.create_bucket(Bucket=name)
    return name


def quick(bucket: str, prefix: str = "team/models") -> S3:
    """A driver that does not wait between its tries."""
    return S3(bucket, prefix, Backoff(tries=4, sleep=lambda seconds: None))


@pytest.fixture
def s3(bucket: str) -> S3:
    return quick(bucket)


@pytest.fixture
def proxy(s3_server: str, bucket: str, aws: Callable[[str], None]) -> Iterator[Proxy]:
    """Between every client that is made from now on and the S3 server."""
    with proxying(s3_server) as proxy:
        aws(proxy.url)
        yield proxy


@pytest.fixture(params=["file", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    """Each kind of storage."""
    if request.param == "file":
        return Files(tmp_path / "repository")
    found: S3 = request.getfixturevalue("s3")
    return found


@pytest.fixture
def storage(objects: Objects) -> Faulty:
    return Faulty(objects)


@pytest.fixture
def repository(storage: Faulty) -> Repository:
    return Repository(storage)


@pytest.fixture
def cache(tmp_path: Path) -> NodeCache:
    return NodeCache(tmp_path / "cache")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A model of three files: of two chunks and a bit, of a few bytes, and empty."""
    folder = tmp_path / "weights"
    (folder / "assets").mkdir(parents=True)
    (folder / "model.onnx").write_bytes(os.urandom(1024) * (2 * CHUNK // 1024) + b"the end")
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    (folder / "assets" / "empty.txt").touch()
    return folder


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """``make(size)``: a one-file model of random bytes."""

    def make(size: int, fill: bytes | None = None) -> Path:
        folder = tmp_path / f"make-{os.urandom(4).hex()}"
        folder.mkdir()
        (folder / "model.onnx").write_bytes(os.urandom(size) if fill is None else fill * size)
        return folder

    return make


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def read_all() -> Callable[[Path], dict[str, bytes]]:
    return contents
