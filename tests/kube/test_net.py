"""Certificates, kubeconfigs and listen sockets."""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from relight.base.errors import BadInput, PlatformError, PortTaken
from relight.net import kubeconfig, tls
from relight.net.listener import bind


def test_files_are_made_once_and_private(tmp_path: Path) -> None:
    pki = tls.ensure(tmp_path / "pki")
    token = pki.token()
    before = {path.name: path.read_bytes() for path in pki.folder.iterdir()}
    assert set(before) == {"ca.crt", "ca.key", "server.crt", "server.key", "token"}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in pki.folder.iterdir())
    assert pki.folder.stat().st_mode & 0o777 == 0o700
    assert tls.ensure(tmp_path / "pki").token() == token
    assert {path.name: path.read_bytes() for path in pki.folder.iterdir()} == before


def test_the_server_certificate_is_renewed_under_the_same_authority(tmp_path: Path) -> None:
    pki = tls.ensure(tmp_path)
    ca, certificate = pki.ca.read_bytes(), pki.certificate.read_bytes()
    tls.ensure(tmp_path, lambda: datetime.now(UTC) + timedelta(days=tls.SERVER_DAYS - tls.RENEW_DAYS + 1))
    assert pki.ca.read_bytes() == ca
    assert pki.certificate.read_bytes() != certificate
    tls.ensure(tmp_path, lambda: datetime.now(UTC) + timedelta(days=tls.CA_DAYS))
    assert pki.ca.read_bytes() != ca


@pytest.mark.parametrize("name", ["ca.crt", "ca.key", "server.crt", "server.key"])
@pytest.mark.parametrize("content", [b"", b"garbage", None], ids=["empty", "garbage", "missing"])
def test_damaged_files_are_made_anew(tmp_path: Path, name: str, content: bytes | None) -> None:
    pki = tls.ensure(tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    tls.ensure(tmp_path)
    pki.server_context()
    context = ssl.create_default_context(cafile=str(pki.ca))
    assert context.cert_store_stats()["x509_ca"] == 1


def test_a_certificate_of_another_authority_is_replaced(tmp_path: Path) -> None:
    pki, other = tls.ensure(tmp_path / "a"), tls.ensure(tmp_path / "b")
    foreign = other.certificate.read_bytes()
    pki.certificate.write_bytes(foreign)
    pki.key.write_bytes(other.key.read_bytes())
    tls.ensure(tmp_path / "a")
    assert pki.certificate.read_bytes() != foreign


def test_kubeconfig_round_trip(tmp_path: Path) -> None:
    pki = tls.ensure(tmp_path / "pki")
    path = tmp_path / "deep" / "kubeconfig"
    kubeconfig.write(path, "https://127.0.0.1:1", pki.ca, "t", namespace="n")
    assert kubeconfig.read(path) == kubeconfig.Context("relight", "https://127.0.0.1:1", "n")
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["kubeconfig"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "there is no kubeconfig at .*; start local mode with: relight up", id="missing"),
        pytest.param("{", "cannot be read as a kubeconfig", id="not-yaml"),
        pytest.param("[]", "an object was expected", id="list"),
        pytest.param("{}", "has no current-context; name one of: none", id="empty"),
        pytest.param("{current-context: a, contexts: [{name: b}]}", "has no context named a; it has: b", id="other"),
        pytest.param(
            "{current-context: a, contexts: [{name: a, context: {cluster: c}}]}", "no cluster named c", id="no-cluster"
        ),
    ],
)
def test_bad_kubeconfigs(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BadInput, match=message):
        kubeconfig.read(path)


def test_contexts_by_name(tmp_path: Path) -> None:
    names = ["a", "b"]
    config = {
        "current-context": "a",
        "contexts": [{"name": name, "context": {"cluster": name}} for name in names],
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}"}} for name in names],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    assert kubeconfig.read(path, "b") == kubeconfig.Context("b", "https://b", "default")


def test_bind() -> None:
    first = bind("127.0.0.1", 0)
    port = first.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        pass
    with pytest.raises(PortTaken, match=f"port {port} on 127.0.0.1 is in use by another program; choose another, or 0"):
        bind("127.0.0.1", port)
    first.close()
    bind("127.0.0.1", port).close()
    with pytest.raises(PlatformError, match=r"cannot listen on 192\.0\.2\.1:0"):
        bind("192.0.2.1", 0)
