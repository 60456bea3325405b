"""Text to chunks that fit an encoder: at paragraphs and sentences where there are some, with exact offsets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from relight.base.errors import BadInput, Problem

# One word: a character of a script that is written without spaces, or a run of other visible characters. A run is cut
# after 40, so that a URL or a blob of base64 counts for more than one word, as it does for an encoder.
_SCRIPTS = r"\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_SCRIPTS}][\u3001\u3002\uff01\uff0c\uff1f]*|[^\s{_SCRIPTS}]{{1,40}}")
_SENTENCE_END = re.compile(r"[.!?\u2026\u3002\uff01\uff1f][\"'\u2019\u201d)\]\u300d]*\Z")
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n|\r\n[^\S\n]*\r\n|\u2029")

_WORD_ENDS, _LINE_ENDS, _SENTENCE_ENDS, _PARAGRAPH_ENDS = range(4)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a text: ``text == whole[start:end]``, in characters."""

    start: int
    end: int
    text: str


def split(text: str, size: int = 120, overlap: int = 20) -> list[Chunk]:
    """Chunks of at most ``size`` words, in order; every word of the text is in at least one.

    A chunk ends at the last paragraph end in its second half, else at the last sentence end there, else at a line's
    end, else between two words. The next one repeats at most ``overlap`` words, beginning with a sentence where it can.
    A text without a word has no chunk.
    """
    _check(size, overlap, "word")
    words = [match.span() for match in _WORD.finditer(text)]
    breaks = [_break(text, words, number) for number in range(len(words))]
    chunks, first, end = [], 0, 0
    while end < len(words):
        end = _end(breaks, first, size, end)
        start, stop = words[first][0], words[end - 1][1]
        chunks.append(Chunk(start, stop, text[start:stop]))
        first = _begin(breaks, max(end - overlap, first + 1), end)
    return chunks


def split_sentences(text: str, size: int = 5, overlap: int = 1) -> list[Chunk]:
    """Chunks of at most ``size`` sentences; the next one repeats ``overlap`` of them."""
    _check(size, overlap, "sentence")
    words = [match.span() for match in _WORD.finditer(text)]
    ends = [at for at in range(len(words)) if _break(text, words, at) >= _SENTENCE_ENDS]
    firsts = [0, *(at + 1 for at in ends)]
    sentences = [(words[first][0], words[last][1]) for first, last in zip(firsts, ends, strict=False)]
    chunks = []
    for at in range(0, max(1, len(sentences) - overlap), size - overlap) if sentences else ():
        start, end = sentences[at][0], sentences[min(at + size, len(sentences)) - 1][1]
        chunks.append(Chunk(start, end, text[start:end]))
    return chunks


def split_tokens(text: str, ends: Sequence[int], size: int = 160, overlap: int = 20) -> list[Chunk]:
    """Chunks of at most ``size`` tokens of an encoder, cut between words where there are some.

    ``ends``: where each token of the text ends, in characters. A word of more than ``size`` tokens is cut within.
    """
    _check(size, overlap, "token")
    chunks, first = [], 0
    while first < len(ends):
        last = min(first + size, len(ends))
        start = ends[first - 1] if first else 0
        if last < len(ends):
            last = next((at for at in range(last, first + size // 2, -1) if _is_between(text, ends[at - 1])), last)
        piece = text[start : ends[last - 1]]
        start += len(piece) - len(piece.lstrip())
        if piece.strip():
            chunks.append(Chunk(start, ends[last - 1], text[start : ends[last - 1]]))
        if last >= len(ends):
            break
        back = max(first + 1, last - overlap)
        first = next((at for at in range(back, last) if _is_between(text, ends[at - 1])), last)
    return chunks


def _is_between(text: str, at: int) -> bool:
    return at >= len(text) or text[at].isspace() or text[at - 1].isspace()


def _check(size: int, overlap: int, unit: str) -> None:
    problems = []
    if size < 1:
        problems.append(Problem("size", f"expected at least 1 {unit}, got {size}"))
    if not 0 <= overlap < max(size, 1):
        problems.append(Problem("overlap", f"expected 0 to size - 1 {unit}s, got {overlap}"))
    if problems:
        raise BadInput.of(problems)


def _break(text: str, words: list[tuple[int, int]], number: int) -> int:
    """How good a place the gap after a word is to end a chunk at."""
    start, end = words[number]
    gap = text[end : words[number + 1][0]] if number + 1 < len(words) else "\n\n"
    if _BLANK_LINE.search(gap):
        return _PARAGRAPH_ENDS
    spaced = bool(gap) or "\u3000" <= text[end - 1] <= "\uffef"
    if spaced and _SENTENCE_END.search(text[start:end]):
        return _SENTENCE_ENDS
    return _LINE_ENDS if "\n" in gap else _WORD_ENDS


def _end(breaks: list[int], first: int, size: int, before: int) -> int:
    """One past the last word of the chunk that begins at ``first``; more than ``before``, where the last one ended."""
    last = first + size
    if last >= len(breaks):
        return len(breaks)
    earliest = max(first + (size + 1) // 2, before + 1)
    return max(range(earliest, last + 1), key=lambda end: (breaks[end - 1], end))


def _begin(breaks: list[int], earliest: int, end: int) -> int:
    """The first word of the next chunk: where a sentence begins, else as early as allowed."""
    for first in range(earliest, end + 1):
        if breaks[first - 1] >= _SENTENCE_ENDS:
            return first
    return earliest
