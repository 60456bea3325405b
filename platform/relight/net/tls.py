"""A certificate authority and a server certificate for this machine's loopback, made at first start.

Files live in one folder: ``ca.crt``, ``ca.key``, ``server.crt``, ``server.key``, ``token``; all are 0600. The authority
signs nothing but ``localhost``, ``127.0.0.1`` and ``::1``, and says so in its own name constraints, so that trusting it
trusts nothing else.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address, ip_network
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_DAYS = 3650
SERVER_DAYS = 365
RENEW_DAYS = 30
"""A certificate with less than this left is replaced at the next start."""
_ADDRESSES = ("127.0.0.1", "::1")


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Pki:
    """Where the files are."""

    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def certificate(self) -> Path:
        return self.folder / "server.crt"

    @property
    def key(self) -> Path:
        return self.folder / "server.key"

    @property
    def token_file(self) -> Path:
        return self.folder / "token"

    def token(self) -> str:
        """The bearer token that the API accepts; made when there is none."""
        with contextlib.suppress(FileNotFoundError):
            found = self.token_file.read_text().strip()
            if found:
                return found
        made = secrets.token_urlsafe(32)
        write_private(self.token_file, made.encode())
        return made

    def server_context(self) -> ssl.SSLContext:
        """TLS 1.2 and newer, with the server's certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        context.set_alpn_protocols(["http/1.1"])
        return context


def ensure(folder: Path, now: Callable[[], datetime] = _utc_now) -> Pki:
    """The files of a folder, made or renewed where they are missing, unreadable or about to expire."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    pki, at = Pki(folder), now()
    authority = _load(pki.ca, folder / "ca.key", at)
    if authority is None:
        authority = _make_authority(at)
        _store(pki.ca, folder / "ca.key", *authority)
        pki.certificate.unlink(missing_ok=True)
    server = _load(pki.certificate, pki.key, at)
    if server is None or server[0].issuer != authority[0].subject or not _signed(server[0], authority[0]):
        _store(pki.certificate, pki.key, *_make_server(*authority, at))
    return pki


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


_Pair = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


def _load(certificate: Path, key: Path, at: datetime) -> _Pair | None:
    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
        private = serialization.load_pem_private_key(key.read_bytes(), None)
    except (OSError, ValueError):
        return None
    if not isinstance(private, ec.EllipticCurvePrivateKey) or private.public_key() != found.public_key():
        return None
    fresh = found.not_valid_before_utc <= at < found.not_valid_after_utc - timedelta(days=RENEW_DAYS)
    return (found, private) if fresh else None


def _signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _store(certificate: Path, key: Path, made: x509.Certificate, private: ec.EllipticCurvePrivateKey) -> None:
    encoded = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_private(key, encoded)
    write_private(certificate, made.public_bytes(serialization.Encoding.PEM))


def _builder(name: str, public: ec.EllipticCurvePublicKey, at: datetime, days: int) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - timedelta(hours=1))
        .not_valid_after(at + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _make_authority(at: datetime) -> _Pair:
    private = ec.generate_private_key(ec.SECP256R1())
    name = f"relight local mode {secrets.token_hex(4)}"
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    permitted: list[x509.GeneralName] = [x509.DNSName("localhost")]
    permitted += [x509.IPAddress(ip_network(address)) for address in _ADDRESSES]
    made = (
        _builder(name, private.public_key(), at, CA_DAYS)
        .issuer_name(subject)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.NameConstraints(permitted, None), critical=True)
        .add_extension(_usage(sign=True), critical=True)
        .sign(private, hashes.SHA256())
    )
    return made, private


def _make_server(authority: x509.Certificate, authority_key: ec.EllipticCurvePrivateKey, at: datetime) -> _Pair:
    private = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [x509.DNSName("localhost")]
    names += [x509.IPAddress(ip_address(address)) for address in _ADDRESSES]
    made = (
        _builder("localhost", private.public_key(), at, SERVER_DAYS)
        .issuer_name(authority.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .add_extension(_usage(sign=False), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    return made, private


def _usage(*, sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign,
        crl_sign=sign,
        encipher_only=False,
        decipher_only=False,
    )
