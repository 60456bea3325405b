"""What a version of a model is made of: ``NAME/VERSION/.relight/manifest.json``, format 1.

Every file is cut into chunks of 8 MiB, each with its SHA-256, so that several can be fetched and checked at once and a
flipped byte is found before the file is used. The manifest's own digest covers paths, sizes and chunks: it names the
content, whatever the model is called and wherever it is kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from relight.base.errors import BadInput, CorruptWeights, StoreError
from relight.store.objects import clean_key

FORMAT = 1
CHUNK = 8 * 2**20
"""Bytes per digest: large enough for ranged reads to run at full speed, small enough to read several at once."""


@dataclass(frozen=True, slots=True)
class File:
    """One file of a version. ``chunks``: hexadecimal SHA-256 of each 8 MiB; None where nobody ever computed them."""

    path: str
    size: int
    chunks: tuple[str, ...] | None

    def ranges(self) -> Iterable[tuple[int, int, int]]:
        """(number, offset, length) of each chunk; none for an empty file."""
        for number, offset in enumerate(range(0, self.size, CHUNK)):
            yield number, offset, min(CHUNK, self.size - offset)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of one version, sorted by path, and the digest that names them."""

    files: tuple[File, ...]
    digest: str

    @classmethod
    def of(cls, files: Iterable[File]) -> Manifest:
        ordered = tuple(sorted(files, key=lambda file: file.path))
        return cls(ordered, _digest([[file.path, file.size, *(file.chunks or ())] for file in ordered]))

    @classmethod
    def listed(cls, uri: str, files: Iterable[tuple[str, int, str]]) -> Manifest:
        """For a version that somebody else laid there: (path, size, tag) are all that is known of each file.

        The digest then names the place and its tags, not the content: a changed tag is another version of the truth.
        """
        ordered = sorted(files)
        return cls(tuple(File(path, size, None) for path, size, _ in ordered), _digest([uri, *map(list, ordered)]))

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def is_checked(self) -> bool:
        """Whether every byte has a digest to be checked against."""
        return all(file.chunks is not None for file in self.files)

    def encode(self) -> bytes:
        files = [{"path": f.path, "size": f.size, "chunks": list(f.chunks or ())} for f in self.files]
        return json.dumps(
            {"format": FORMAT, "digest": self.digest, "chunk": CHUNK, "files": files}, indent=1, ensure_ascii=False
        ).encode()

    @classmethod
    def decode(cls, data: bytes, uri: str) -> Manifest:
        """From bytes; ``uri`` is named in errors. CorruptWeights if torn, StoreError if of a newer format."""
        value = read_format(data, uri)
        try:
            if value["chunk"] != CHUNK:
                raise CorruptWeights(f"{uri} is corrupt: chunks of {value['chunk']!r} bytes, expected {CHUNK}")
            files = [File(clean_key(f["path"]), int(f["size"]), tuple(map(str, f["chunks"]))) for f in value["files"]]
            manifest = cls.of(files)
            torn = value["digest"] != manifest.digest or any(
                file.size < 0 or len(file.chunks or ()) != -(-file.size // CHUNK) for file in files
            )
        except (KeyError, TypeError, ValueError, BadInput) as error:
            raise CorruptWeights(f"{uri} is corrupt: it is no manifest ({type(error).__name__}: {error})") from error
        if torn:
            raise CorruptWeights(f"{uri} is corrupt: its digest does not fit the files it lists")
        return manifest


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


def chunk_digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _digest(rows: list[Any]) -> str:
    return "sha256:" + hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()
