"""Does searching by words and meaning together answer better than either, and what does a closer look at the best cost?

Quality, on texts that every Debian machine has (``corpora.py``): each mode with 95 % intervals, per corpus; which one
the figures pick as the default; and whether a planted fault in either side of the hybrid is seen by them. Speed: the
index's throughput against raw inserts of the same vectors, and searches, warm and from zero, step by step.

    python benchmarks/retrieval.py --folder ~/.cache/relight-benchmark             # sample of 20,000 packages
    python benchmarks/retrieval.py --folder … --documents 0 --questions 3000       # all of them
    python benchmarks/retrieval.py --folder … --speed all --documents 100000
    python benchmarks/retrieval.py --check
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import corpora
import embedding
import numpy as np

from relight.retrieval.evaluation import QuerySet, difference
from relight.retrieval.lexical import Bm25
from relight.retrieval.ranking import MODES, Corpus, Score, Sides, evaluate, sides_of
from relight.retrieval.reranking import LateInteraction
from relight.retrieval.searching import Fusion
from relight.wire.tensors import Array

SEED = 7
FUSIONS = {
    "rrf": Fusion("rrf"),
    "rrf, dense 2": Fusion("rrf", {"dense": 2.0, "bm25": 1.0}),
    "rrf, bm25 2": Fusion("rrf", {"dense": 1.0, "bm25": 2.0}),
    "weighted": Fusion("weighted"),
    "weighted, dense 2": Fusion("weighted", {"dense": 2.0, "bm25": 1.0}),
    "weighted, bm25 2": Fusion("weighted", {"dense": 1.0, "bm25": 2.0}),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="keeps apt's lists and all vectors between runs")
    parser.add_argument("--documents", type=int, default=20_000, help="of the packages; 0: all")
    parser.add_argument("--questions", type=int, default=2000, help="of each corpus")
    parser.add_argument("--reranked", type=int, default=300, help="questions of each corpus that are reranked too")
    parser.add_argument("--speed", choices=("all", "index", "memory", "search"), help="instead of the quality part")
    parser.add_argument("--check", action="store_true", help="a small corpus: the figures must still tell modes apart")
    asked = parser.parse_args()
    print(f"bm25s {version('bm25s')}, onnxruntime {version('onnxruntime')}, numpy {version('numpy')}", flush=True)
    if asked.check:
        with tempfile.TemporaryDirectory() as folder:
            return check(Path(folder))
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="relight-retrieval-"))
    if asked.speed:
        import retrieval_speed

        return retrieval_speed.main(folder, asked.documents, asked.speed)
    model = embedding.encoder(folder / "encoder", threads=1)
    wrong = 0
    for corpus in (corpora.library(), corpora.packages(folder)):
        texts = chosen(corpus, asked.documents if corpus.name == "packages" else 0)
        questions = sampled(corpus, texts, asked.questions)
        wrong += quality(corpus.name, texts, questions, model, folder / "vectors", asked.reranked)
    return 1 if wrong else 0


def chosen(corpus: corpora.Corpus, limit: int) -> dict[str, str]:
    """All documents in a shuffled order that is always the same, or the first of them."""
    names = list(corpus.documents)
    if corpus.name == "packages":
        random.Random(SEED).shuffle(names)
    return {name: corpus.documents[name] for name in names[: limit or None]}


def sampled(corpus: corpora.Corpus, texts: dict[str, str], count: int) -> dict[str, str]:
    """Some questions whose answers are among the documents."""
    once = corpora.asked_once(corpus)
    # The same sample whatever the number of documents is, so that its vectors are kept once.
    picked = random.Random(SEED).sample(sorted(once), min(3000, len(once)))
    if len(texts) < len(corpus.documents):
        picked = [name for name in sorted(once) if name in texts]
        picked = random.Random(SEED).sample(picked, min(count, len(picked)))
    return {name: once[name] for name in picked[:count]}


def quality(
    name: str, texts: dict[str, str], questions: dict[str, str], model: embedding.Encoder, kept: Path, reranked: int
) -> int:
    """Print the figures of one corpus; the number of planted faults that they do not show."""
    vectors = embedding.embedded(list(texts.values()), model, kept)
    queries = embedding.embedded(list(questions.values()), model, kept)
    assert vectors is not None
    assert queries is not None
    corpus = Corpus.of(texts, vectors)
    asked = QuerySet(name, questions, {one: {one: 1} for one in questions})
    print(f"\n{name}: {len(questions)} questions over {len(texts)} documents; mean [95 % interval]")
    sides = sides_of(corpus, asked, queries)
    scores = {score.mode: score for score in evaluate(corpus, asked, sides, MODES[:3])}
    for score in scores.values():
        show(score)
    print("  ways to fuse, nDCG@10 against the default, question by question:")
    for way, fusion in FUSIONS.items():
        found = evaluate(corpus, asked, sides, ["hybrid"], fusion=fusion)[0]
        print(f"    {way:18} {found.intervals()['ndcg@10']}  {gain(found, scores['hybrid'])}", flush=True)
    rerank(corpus, asked, sides[:reranked], model)
    return faults(corpus, asked, queries, scores["hybrid"])


def rerank(corpus: Corpus, asked: QuerySet, sides: list[Sides], model: embedding.Encoder) -> None:
    """What a closer look brings and costs, against the default mode, by how many of the best it is given to."""
    some = QuerySet(asked.name, dict(list(asked.questions.items())[: len(sides)]), asked.relevant)
    looked = Looked(LateInteraction(model))
    base = evaluate(corpus, some, sides, ["hybrid"])[0]
    for depth in (10, 20):
        found = evaluate(corpus, some, sides, ["hybrid+rerank"], reranker=looked, depth=depth)[0]
        each = looked.seconds / max(1, len(some.questions)) * 1000
        print(
            f"  reranked, best {depth}, {len(some.questions)} questions: {found.intervals()['ndcg@10']} "
            f"({gain(found, base)} against the default), {each:.0f} ms a question",
            flush=True,
        )


class Looked:
    """A reranker that scores each pair once: those of a deeper list are those of a shorter one and some more."""

    kind = "kept"

    def __init__(self, reranker: LateInteraction) -> None:
        self._reranker = reranker
        self._scores: dict[tuple[str, str], float] = {}
        self.seconds = 0.0

    def score(self, question: str, texts: Sequence[str]) -> list[float]:
        begun = time.perf_counter()
        new = [text for text in texts if (question, text) not in self._scores]
        scores = self._reranker.score(question, new) if new else []
        self._scores.update({(question, text): score for text, score in zip(new, scores, strict=True)})
        self.seconds += time.perf_counter() - begun
        return [self._scores[question, text] for text in texts]


def faults(corpus: Corpus, asked: QuerySet, queries: Array, whole: Score) -> int:
    """Plant a fault in each side of the hybrid. It is seen where the interval of the difference lies above 0."""
    shuffled = np.random.default_rng(SEED).permutation(corpus.vectors)
    unread = Bm25.of((name, text[: len(text) // 10]) for name, text in corpus.texts.items())
    planted = {
        "vectors of other documents": Corpus(corpus.texts, shuffled, corpus.words),
        "nine tenths of the words unread": Corpus(corpus.texts, corpus.vectors, unread),
    }
    missed = 0
    for fault, broken in planted.items():
        found = evaluate(broken, asked, sides_of(broken, asked, queries), ["hybrid"])[0]
        lost = difference(whole.values["ndcg@10"], found.values["ndcg@10"])
        missed += lost.low <= 0
        print(f"  planted: {fault}: hybrid loses {lost}: {'seen' if lost.low > 0 else 'NOT SEEN'}", flush=True)
    return missed


def show(score: Score) -> None:
    found = score.intervals()
    print(f"  {score.mode:14} " + "  ".join(f"{name} {value}" for name, value in found.items()), flush=True)


def gain(found: Score, base: Score) -> str:
    lead = difference(found.values["ndcg@10"], base.values["ndcg@10"])
    return f"{lead.mean:+.3f} [{lead.low:+.3f}, {lead.high:+.3f}]"


def check(folder: Path) -> int:
    """On 150 documents of the standard library: both sides find, and each fault is seen."""
    corpus = corpora.library()
    few = dict(list(corpus.documents.items())[:150])
    once = {name: text for name, text in corpora.asked_once(corpus).items() if name in few}
    model = embedding.encoder(folder / "encoder")
    short = {name: text[:300] for name, text in few.items()}
    return quality("library, 150 documents", short, once, model, folder / "vectors", 5)


if __name__ == "__main__":
    sys.exit(main())
