"""How good rankings are: the usual measures for one question, and means with intervals over many.

Data sets are BEIR's: a folder with ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/NAME.tsv``, one query set each.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relight.base.errors import BadInput

MEASURES = ("ndcg@10", "recall@10", "recall@100", "mrr@10")
RESAMPLES = 2000
SEED = 20260101


@dataclass(frozen=True)
class QuerySet:
    """Questions by id, and for each the documents that answer it with their grade (above 0)."""

    name: str
    questions: Mapping[str, str]
    relevant: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Dataset:
    """Documents by id: title and text together, as they are indexed."""

    documents: Mapping[str, str]
    sets: tuple[QuerySet, ...]


@dataclass(frozen=True)
class Interval:
    """A mean over questions, and the 95 % bootstrap interval of it."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def read_beir(folder: Path) -> Dataset:
    """Read a data set. BadInput names the file and the line that is wrong, or what is missing."""
    documents = {
        _text(row, "_id", where): f"{row.get('title') or ''}\n{_text(row, 'text', where)}".strip()
        for where, row in _lines(folder / "corpus.jsonl")
    }
    questions = {_text(row, "_id", where): _text(row, "text", where) for where, row in _lines(folder / "queries.jsonl")}
    paths = sorted((folder / "qrels").glob("*.tsv"))
    if not paths:
        raise BadInput(f"{folder / 'qrels'} has no .tsv file: expected one for each query set, such as test.tsv")
    return Dataset(documents, tuple(_query_set(path, questions, documents) for path in paths))


def measure(ranking: Sequence[str], relevant: Mapping[str, int]) -> dict[str, float]:
    """MEASURES of one ranking of document ids.

    nDCG has linear gains and logarithmic discounts, as trec_eval, with which BEIR's figures are made.
    """
    gains = [relevant.get(document, 0) for document in ranking[:10]]
    ideal = sorted(relevant.values(), reverse=True)[:10]
    first = next((rank for rank, gain in enumerate(gains, 1) if gain > 0), None)
    return {
        "ndcg@10": _dcg(gains) / _dcg(ideal) if ideal else 0.0,
        "recall@10": len(relevant.keys() & set(ranking[:10])) / max(1, len(relevant)),
        "recall@100": len(relevant.keys() & set(ranking[:100])) / max(1, len(relevant)),
        "mrr@10": 1.0 / first if first is not None else 0.0,
    }


def interval(values: Sequence[float]) -> Interval:
    """The mean of per-question values; resampled with a fixed seed, so that the same values give the same interval."""
    array = np.asarray(values, np.float64)
    if not len(array):
        return Interval(0.0, 0.0, 0.0)
    random = np.random.default_rng(SEED)
    means = [float(array[random.integers(0, len(array), len(array))].mean()) for _ in range(RESAMPLES)]
    low, high = np.percentile(means, [2.5, 97.5])
    return Interval(float(array.mean()), float(low), float(high))


def difference(better: Sequence[float], worse: Sequence[float]) -> Interval:
    """The mean difference question by question: its interval is far narrower than those of the two means."""
    return interval(np.asarray(better, np.float64) - np.asarray(worse, np.float64))  # type: ignore[arg-type]


def _dcg(gains: Sequence[int]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))


def _query_set(path: Path, questions: Mapping[str, str], documents: Mapping[str, str]) -> QuerySet:
    relevant: dict[str, dict[str, int]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        parts = line.split("\t")
        if number == 1 and len(parts) == 3 and not parts[2].strip().lstrip("-").isdigit():
            continue  # the heads: query-id, corpus-id, score
        if len(parts) != 3 or not parts[2].strip().lstrip("-").isdigit():
            raise BadInput(f"{path}:{number}: expected query-id, corpus-id and a whole number, with tabs between")
        question, document, grade = parts[0], parts[1], int(parts[2])
        if question not in questions:
            raise BadInput(f"{path}:{number}: queries.jsonl has no {question!r}")
        if document not in documents:
            raise BadInput(f"{path}:{number}: corpus.jsonl has no {document!r}")
        if grade > 0:
            relevant.setdefault(question, {})[document] = grade
    return QuerySet(path.stem, {one: questions[one] for one in relevant}, relevant)


def _lines(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not path.is_file():
        raise BadInput(f"there is no {path}: expected a data set in BEIR's format")
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    row = json.loads(line)
                except ValueError:
                    row = None
                if not isinstance(row, dict):
                    raise BadInput(f"{path}:{number}: expected an object of JSON")
                yield f"{path}:{number}", row


def _text(row: Mapping[str, Any], name: str, where: str) -> str:
    if not isinstance(row.get(name), str):
        raise BadInput(f"{where}: expected a string as {name}")
    return str(row[name])
