"""Texts to the terms that BM25 counts, the same for documents and questions and for every store.

Scripts with spaces: words, folded (compatibility forms, case, accents) and brought to their stem by Snowball's English
stemmer where they are plain ASCII; names such as ``utf-8`` count whole and in parts. Scripts without spaces (Chinese,
Japanese, Thai): overlapping pairs of characters, as Lucene's CJK analysis has them, and single ones that stand alone;
no dictionary is needed, and none can be out of date. Terms hold letters and digits only: analysers of servers, which
cut at anything else, leave them whole.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

import Stemmer

_UNSPACED = r"\u0e00-\u0e7f\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_RUN = re.compile(rf"[{_UNSPACED}]+|[^\W_{_UNSPACED}]+(?:[-_.+'][^\W_{_UNSPACED}]+)*")
_UNSPACED_RUN = re.compile(rf"[{_UNSPACED}]")
_PART = re.compile(r"[^\W_]+")
_LONGEST = 40
"""Characters of a term: what is longer is a blob that nobody asks for."""
_STOP = (
    "a an and are as at be but by for from if in into is it no not of on or such that the their then there these they "
    "this to was were will with"
)
STOP = frozenset(_STOP.split(" "))
"""Lucene's English stop words."""


def terms(text: str) -> list[str]:
    """The terms of a text, in order, repetitions included."""
    return [term for run in _RUN.findall(_folded(text)) for term in _terms(run)]


def _terms(run: str) -> Iterator[str]:
    if _UNSPACED_RUN.match(run):
        if len(run) == 1:
            yield run
        for at in range(len(run) - 1):
            yield run[at : at + 2]
        return
    parts = _PART.findall(run)
    if len(parts) > 1:
        if parts[-1] in ("s", "t") and "'" in run:
            parts.pop()
        else:
            yield "".join(parts)[:_LONGEST]
    for part in parts:
        if part not in STOP:
            yield _stem(part)[:_LONGEST]


def _folded(text: str) -> str:
    if text.isascii():
        return text.lower()
    apart = unicodedata.normalize("NFKD", text.casefold())
    return unicodedata.normalize("NFC", "".join(letter for letter in apart if not _is_accent(letter)))


def _is_accent(letter: str) -> bool:
    """Accents of Latin, Greek and Cyrillic letters; those of other scripts are part of their letters."""
    return "\u0300" <= letter <= "\u036f"


@lru_cache(maxsize=50_000)
def _stem(word: str) -> str:
    # A stemmer keeps state between calls and is not to be shared by threads; making one costs some microseconds.
    return str(Stemmer.Stemmer("english").stemWord(word)) if word.isascii() else word
