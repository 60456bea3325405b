"""A document of any format to chunks, as a function is told to cut: by words, tokens, sentences or headings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from relight.base.errors import BadInput, Problem
from relight.retrieval.documents import Document, Piece
from relight.retrieval.extracting import Extracted, Section, extract
from relight.retrieval.splitting import Chunk, split, split_sentences, split_tokens

WAYS = ("words", "tokens", "sentences", "headings")
SIZES = {"words": (120, 20), "tokens": (200, 20), "sentences": (6, 1), "headings": (120, 20)}
"""Size and overlap where nothing is said: all fit the 256 tokens that the shipped encoder reads. ``headings`` cuts at
them, and a section that is too long by words."""

Ends = Callable[[str], Sequence[int]]
"""Where each token of a text ends, in characters."""


@dataclass(frozen=True)
class Cutting:
    """How documents are cut."""

    by: str = "words"
    size: int = SIZES["words"][0]
    overlap: int = SIZES["words"][1]

    @classmethod
    def of(cls, by: str, size: int | None = None, overlap: int | None = None) -> Cutting:
        """With what was not given as is usual. BadInput names what is wrong."""
        if by not in WAYS:
            raise BadInput.of([Problem("by", f"expected {', '.join(WAYS)}, got {by!r}")])
        usual = SIZES[by]
        cutting = cls(by, usual[0] if size is None else size, min(usual[1], (size or usual[0]) - 1))
        cutting = cutting if overlap is None else cls(by, cutting.size, overlap)
        split("", cutting.size, cutting.overlap)  # which says what is wrong with them
        return cutting


def chunks_of(document: Document, cutting: Cutting, token_ends: Ends) -> list[Piece]:
    """The chunks of a document, numbered in its order. Offsets are characters of the source; a PDF's of its text."""
    read = extract(document.text, document.format)
    pieces: list[Piece] = []
    for section in _sections(read, cutting.by):
        text = read.text[section.start : section.end]
        for chunk in _cut(text, cutting, token_ends):
            start, end = read.source(section.start + chunk.start, section.start + chunk.end)
            heading = " > ".join(title for title in section.headings if title) or None
            pieces.append(Piece(str(len(pieces)), chunk.text, start, end, heading=heading, page=section.page))
    return pieces


def _sections(read: Extracted, by: str) -> Sequence[Section]:
    """What chunks do not cross: the sections where it is cut by headings, the pages of a PDF always."""
    if by == "headings" or any(section.page is not None for section in read.sections):
        return read.sections
    return (Section(0, len(read.text)),)


def _cut(text: str, cutting: Cutting, token_ends: Ends) -> list[Chunk]:
    if cutting.by == "tokens":
        return split_tokens(text, token_ends(text), cutting.size, cutting.overlap)
    if cutting.by == "sentences":
        return split_sentences(text, cutting.size, cutting.overlap)
    return split(text, cutting.size, cutting.overlap)


class RepositoryTokenizer:
    """The tokenizer of a model of the repository, fetched when it is first asked for. Safe for several threads."""

    def __init__(self, model: str, environ: Mapping[str, str]) -> None:
        self._model = model
        self._environ = environ
        self._ends: Ends | None = None
        self._loading = threading.Lock()

    def ends(self, text: str) -> Sequence[int]:
        """Where each token ends. MissingWeights where the repository does not have the model."""
        with self._loading:
            if self._ends is None:
                self._ends = self._load()
        return self._ends(text)

    def _load(self) -> Ends:
        from tokenizers import Tokenizer

        from relight.store.cache import NodeCache
        from relight.store.repository import Repository

        uri = self._environ.get("RELIGHT_REPOSITORY")
        if not uri:
            raise BadInput("cutting by tokens needs a model's tokenizer, and RELIGHT_REPOSITORY is not set")
        folder = Path(self._environ.get("RELIGHT_CACHE") or Path.home() / ".cache" / "relight")
        with NodeCache(folder).fetch(Repository.open(uri), self._model) as fetched:
            tokenizer = Tokenizer.from_file(str(fetched.path / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.no_truncation()

        def ends(text: str) -> Sequence[int]:
            return [end for _, end in tokenizer.encode(text, add_special_tokens=False).offsets]

        return ends
