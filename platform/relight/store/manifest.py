"""What a version of a model is made of: ``NAME/VERSION/.relight/manifest.json``, format 1.

Every file is cut into chunks of 8 MiB, each with its digest, so that several can be fetched and checked at once and a
flipped byte is found before the file is used. The manifest's own digest covers paths, sizes and chunks: it names the
content, whatever the model is called and wherever it is kept.

The digests are BLAKE3: 0.2 s of a processor for a gigabyte where SHA-256 takes 0.8, even with the processor's own
instructions for it, which was more than all the rest of a fetch. A manifest that names no hash has SHA-256.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import blake3

from relight.base.errors import BadInput, CorruptWeights, StoreError
from relight.store.keys import ALGORITHM, NONCE, TAG
from relight.store.objects import clean_key

FORMAT = 1
CHUNK = 8 * 2**20
"""Bytes per digest: large enough for ranged reads to run at full speed, small enough to read several at once."""
HASH = "blake3"
"""Of what is written from now on."""
_UNNAMED = "sha256"
_HASHES: Mapping[str, Callable[[bytes | memoryview], str]] = {
    "blake3": lambda data: blake3.blake3(data).hexdigest(),
    "sha256": lambda data: hashlib.sha256(data).hexdigest(),
}


class Piece(NamedTuple):
    """One chunk of a file: its number, where it is in the file, and where in the stored object."""

    number: int
    offset: int
    length: int
    stored_at: int
    stored: int


@dataclass(frozen=True, slots=True)
class File:
    """One file of a version.

    ``chunks``: hexadecimal digest of each chunk as it is stored; None where nobody ever computed them. ``nonces``: one
    per chunk where the file is stored encrypted. ``tag``: what storage said of a file without digests when it was
    listed.
    """

    path: str
    size: int
    chunks: tuple[str, ...] | None
    nonces: tuple[str, ...] | None = None
    tag: str | None = None

    @property
    def stored(self) -> int:
        """Bytes that it takes in storage."""
        return self.size + TAG * len(self.nonces or ())

    def pieces(self) -> Iterable[Piece]:
        """Its chunks; none for an empty file."""
        more = TAG if self.nonces is not None else 0
        for number, offset in enumerate(range(0, self.size, CHUNK)):
            length = min(CHUNK, self.size - offset)
            yield Piece(number, offset, length, offset + number * more, length + more)


@dataclass(frozen=True, slots=True)
class Encryption:
    """How a version is encrypted: the id of its key, and the seal that only the key's holder can make."""

    key: str
    seal: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of one version, sorted by path, and the digest that names them."""

    files: tuple[File, ...]
    digest: str
    encryption: Encryption | None = None
    hash: str = HASH
    """Of the chunks."""

    @classmethod
    def of(cls, files: Iterable[File], hash: str = HASH) -> Manifest:
        ordered = tuple(sorted(files, key=lambda file: file.path))
        rows = [[file.path, file.size, *(file.chunks or ()), *(file.nonces or ())] for file in ordered]
        return cls(ordered, _digest(rows), hash=hash)

    @classmethod
    def listed(cls, uri: str, files: Iterable[tuple[str, int, str]]) -> Manifest:
        """For a version that somebody else laid there: (path, size, tag) are all that is known of each file.

        The digest then names the place and its tags, not the content: a changed tag is another version of the truth.
        """
        ordered = sorted(files)
        found = tuple(File(path, size, None, tag=tag) for path, size, tag in ordered)
        return cls(found, _digest([uri, *map(list, ordered)]))

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def is_checked(self) -> bool:
        """Whether every byte has a digest to be checked against."""
        return all(file.chunks is not None for file in self.files)

    def encode(self) -> bytes:
        value: dict[str, Any] = {"format": FORMAT, "digest": self.digest, "chunk": CHUNK, "hash": self.hash}
        if self.encryption is not None:
            value["encryption"] = {
                "algorithm": ALGORITHM,
                "key": self.encryption.key,
                "seal": self.encryption.seal,
            }
        value["files"] = [_encoded(file) for file in self.files]
        return json.dumps(value, indent=1, ensure_ascii=False).encode()

    @classmethod
    def decode(cls, data: bytes, uri: str) -> Manifest:
        """From bytes; ``uri`` is named in errors. CorruptWeights if torn, StoreError if of a newer format."""
        value = read_format(data, uri)
        try:
            if value["chunk"] != CHUNK:
                raise CorruptWeights(f"{uri} is corrupt: chunks of {value['chunk']!r} bytes, expected {CHUNK}")
            if (name := str(value.get("hash", _UNNAMED))) not in _HASHES:
                raise StoreError(f"{uri} has digests by {name!r}, and this relight knows {' and '.join(_HASHES)}")
            encryption = _encryption(value.get("encryption"), uri)
            files = [_decoded(item) for item in value["files"]]
            manifest = cls.of(files, name)
            torn = value["digest"] != manifest.digest or not all(_fits(file, encryption) for file in files)
            torn |= len({file.path for file in files}) != len(files)
        except (KeyError, TypeError, ValueError, BadInput) as error:
            raise CorruptWeights(f"{uri} is corrupt: it is no manifest ({type(error).__name__}: {error})") from error
        if torn:
            raise CorruptWeights(f"{uri} is corrupt: its digest does not fit the files it lists")
        return cls(manifest.files, manifest.digest, encryption, name)


def read_format(data: bytes, uri: str) -> dict[str, Any]:
    """A JSON object that carries ``format``: an older or the present one is returned, a newer one refused by name."""
    try:
        value = json.loads(data)
    except ValueError as error:
        raise CorruptWeights(f"{uri} is corrupt: it is not JSON") from error
    number = value.get("format") if isinstance(value, dict) else None
    if type(number) is not int or number < 1:
        raise CorruptWeights(f"{uri} is corrupt: it has no format number")
    if number > FORMAT:
        raise StoreError(f"{uri} is of format {number}, and this relight reads format {FORMAT}: upgrade relight")
    return dict(value)


def chunk_digest(data: bytes | memoryview, hash: str = HASH) -> str:
    """In hexadecimal; 64 digits, whatever the hash."""
    return _HASHES[hash](data)


def _encoded(file: File) -> dict[str, Any]:
    value: dict[str, Any] = {"path": file.path, "size": file.size, "chunks": list(file.chunks or ())}
    if file.nonces is not None:
        value["nonces"] = list(file.nonces)
    return value


def _decoded(value: dict[str, Any]) -> File:
    nonces = tuple(map(str, value["nonces"])) if "nonces" in value else None
    return File(clean_key(value["path"]), int(value["size"]), tuple(map(str, value["chunks"])), nonces)


def _encryption(value: dict[str, Any] | None, uri: str) -> Encryption | None:
    if value is None:
        return None
    if value["algorithm"] != ALGORITHM:
        raise StoreError(f"{uri} is encrypted by {value['algorithm']!r}, and this relight reads {ALGORITHM}")
    return Encryption(str(value["key"]), str(value["seal"]))


def _fits(file: File, encryption: Encryption | None) -> bool:
    """Whether there is a digest, and a nonce if and only if the version is encrypted, for each chunk."""
    count = -(-file.size // CHUNK)
    nonces = all(len(bytes.fromhex(nonce)) == NONCE for nonce in file.nonces or ())
    sealed = file.nonces is not None and len(file.nonces) == count and nonces
    return file.size >= 0 and len(file.chunks or ()) == count and (sealed if encryption else file.nonces is None)


def _digest(rows: list[Any]) -> str:
    return "sha256:" + hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()
