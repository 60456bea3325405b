"""Encryption at rest: weights are stored in a form that only a holder of the key can read or make.

AES-256-GCM per chunk, with a 96-bit nonce each that stands in the manifest. It is derived from the chunk and its
place, by a key of its own: no two chunks share one but by the chance that two random ones would, and a push that was
cut off makes the same bytes again, so that it can go on. What a chunk is bound to (the
model's name, the version, the file, its size and the chunk's number) is authenticated with it, so that no stored chunk
can be put in another's place; the manifest carries a seal over its digest, so that no file can be added, cut or left
out.
The digests of an encrypted version's manifest are those of the stored bytes: they can be checked without the key, and
say nothing about the weights. On a node the files lie as they are: what protects them there is the node's disk.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import blake3

from relight.base.errors import BadInput, CorruptWeights, Forbidden, PlatformError

if TYPE_CHECKING:
    from relight.store.manifest import Encryption, File, Manifest

ALGORITHM = "AES-256-GCM"
TAG = 16
"""Bytes that every encrypted chunk is longer by."""
NONCE = 12
VARIABLE = "RELIGHT_ENCRYPTION_KEY"
_SIZE = 32


@dataclass(frozen=True)
class Keys:
    """Keys by which weights are stored and read: the first one seals what is pushed, any opens what it sealed.

    So a key is changed: put the new one in front, and take the old one away when nothing is stored with it any more.
    """

    keys: tuple[bytes, ...] = field(default=(), repr=False)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Keys:
        """From ``RELIGHT_ENCRYPTION_KEY`` (base64 of 32 bytes), or the file ``RELIGHT_ENCRYPTION_KEY_FILE`` names.

        Either may hold several keys with white space between. BadInput says what was expected, and never shows a key.
        """
        text, source = environ.get(VARIABLE, ""), VARIABLE
        if not text and (path := environ.get(f"{VARIABLE}_FILE")):
            source = f"{VARIABLE}_FILE"
            try:
                text = Path(path).read_text(encoding="ascii")
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is no text"
                raise BadInput(f"{source}: cannot read {path}: {reason}", param=source) from None
            if not text.strip():
                raise BadInput(f"{source}: {path} holds no key", param=source)
        return cls(tuple(_key(word, source) for word in text.split()))

    def __bool__(self) -> bool:
        return bool(self.keys)

    def sealer(self) -> Sealer:
        """To store with the first key."""
        return Sealer(self.keys[0])

    def opener(self, encryption: Encryption, uri: str) -> Sealer:
        """To read what was stored with the key that a manifest names; Forbidden says which key is missing."""
        for key in self.keys:
            if key_id(key) == encryption.key:
                return Sealer(key)
        have = ", ".join(map(key_id, self.keys))
        raise Forbidden(
            f"{uri} is encrypted with the key {encryption.key}, and "
            + (f"{VARIABLE} holds {have}" if have else f"{VARIABLE} is not set")
        )


class Sealer:
    """One key at work."""

    def __init__(self, key: bytes) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise PlatformError("weights cannot be encrypted or decrypted here: install relight[s3]") from None
        self.key_id = key_id(key)
        self._cipher = AESGCM(key)
        self._naming = hmac.digest(key, b"relight nonces", "sha256")
        self._sealing = hmac.digest(key, b"relight manifest", "sha256")

    def seal_chunk(self, data: bytes, place: bytes) -> tuple[str, bytes]:
        """(nonce in hexadecimal, what to store)."""
        digest = blake3.blake3(data).digest()
        nonce = hmac.digest(self._naming, digest + place, "sha256")[:NONCE]
        return nonce.hex(), self._cipher.encrypt(nonce, data, place)

    def open_chunk(self, nonce: str, data: memoryview, place: bytes, uri: str) -> bytes:
        """The chunk as it was; CorruptWeights if it is not the one that was stored in this place with this key."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(bytes.fromhex(nonce), data, place)
        except (InvalidTag, ValueError) as error:
            raise CorruptWeights(f"{uri} is corrupt: it was not stored in this place with the key {self.key_id}") from (
                error
            )

    def seal(self, name: str, version: int, digest: str) -> str:
        """The seal of a manifest: only a holder of the key can make it."""
        text = json.dumps([name, version, digest]).encode()
        return hmac.digest(self._sealing, text, "sha256").hex()

    def check(self, name: str, version: int, manifest: Manifest, uri: str) -> None:
        """CorruptWeights if somebody without the key made or moved a manifest."""
        seal = manifest.encryption.seal if manifest.encryption else ""
        if not hmac.compare_digest(seal, self.seal(name, version, manifest.digest)):
            raise CorruptWeights(f"{uri} is corrupt: its manifest was not made with the key {self.key_id}")


def place(name: str, version: int, file: File | tuple[str, int], number: int) -> bytes:
    """What a chunk is bound to. ``file``: or its (path, size) while it is being stored."""
    path, size = file if isinstance(file, tuple) else (file.path, file.size)
    fields: list[Any] = [name, version, path, size, number]
    return json.dumps(fields).encode()


def key_id(key: bytes) -> str:
    """A name for a key that gives nothing of it away."""
    return hashlib.sha256(b"relight key id\0" + key).hexdigest()[:16]


def _key(word: str, source: str) -> bytes:
    try:
        key = base64.b64decode(word, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != _SIZE:
        raise BadInput(f"{source}: expected the base64 of {_SIZE} bytes ('openssl rand -base64 32')", param=source)
    return key
