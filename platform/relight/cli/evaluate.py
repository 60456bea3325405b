"""``relight eval``: how well each way of searching answers the questions of a data set."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relight.base.errors import BadInput
from relight.base.settings import Settings
from relight.cli.cache import open_cache
from relight.cli.output import Format, note, print_json, print_table, waiting

if TYPE_CHECKING:
    from relight.retrieval.encoder import Encoder
    from relight.retrieval.evaluation import QuerySet
    from relight.retrieval.ranking import Score
    from relight.wire.tensors import Array


def command(
    dataset: Annotated[Path, typer.Argument(help="A folder in BEIR's format.")],
    model: Annotated[str, typer.Option(help="The encoder, by its name in the repository.")] = "minilm",
    reranker: Annotated[str | None, typer.Option(help="A cross-encoder; else the encoder reranks.")] = None,
    mode: Annotated[list[str] | None, typer.Option(help="Only these: bm25, dense, hybrid, hybrid+rerank.")] = None,
    query_set: Annotated[list[str] | None, typer.Option("--set", help="Only these query sets.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Ask only so many questions of a set; 0: all.")] = 0,
    depth: Annotated[int, typer.Option(min=1, max=200, help="How many are reranked.")] = 20,
    vectors: Annotated[Path | None, typer.Option(help="Keep the documents' vectors here (.npy).")] = None,
    output: Annotated[Format, typer.Option("-o", "--output", help="How to print.")] = "table",
) -> None:
    """Measure retrieval: nDCG@10, recall and MRR of BM25, dense, hybrid, reranked.

    Documents are read, embedded with the model of the repository, and searched
    in this process, exactly. Intervals are of 95 %, by bootstrap over questions.

    \b
    relight eval ./scifact
    relight eval ./scifact --set test --mode hybrid --mode dense
    """
    from relight.retrieval.evaluation import difference, read_beir
    from relight.retrieval.ranking import MODES, Corpus, evaluate, sides_of
    from relight.retrieval.reranking import LateInteraction

    modes = tuple(one for one in MODES if one in (mode or MODES))
    if mode and len(modes) != len(set(mode)):
        raise BadInput(f"--mode: expected {', '.join(MODES)}, got {', '.join(mode)}")
    data = read_beir(dataset)
    sets = [_few(one, limit) for one in data.sets if not query_set or one.name in query_set]
    if not sets:
        raise BadInput(f"--set: {dataset} has {', '.join(one.name for one in data.sets)}")
    encoder = _encoder(model)
    closer = _reranker(reranker) if reranker else LateInteraction(encoder)
    with waiting(f"embedding {len(data.documents):,} documents") as said:
        corpus = Corpus.of(data.documents, _embedded(list(data.documents.values()), encoder, vectors, said))
    results: dict[str, Any] = {}
    for asked in sets:
        begun = time.monotonic()
        with waiting(f"asking {len(asked.questions):,} questions of {asked.name}"):
            found, _ = encoder.encode(list(asked.questions.values()))
            sides = sides_of(corpus, asked, found)
            scores = evaluate(corpus, asked, sides, modes, reranker=closer, depth=depth)
        best = max(scores, key=lambda score: score.intervals()["ndcg@10"].mean)
        results[asked.name] = {
            "questions": len(asked.questions),
            "seconds": round(time.monotonic() - begun, 1),
            "best": best.mode,
            "modes": {score.mode: _told(score) for score in scores},
            "behind_best": {
                score.mode: vars(difference(best.values["ndcg@10"], score.values["ndcg@10"]))
                for score in scores
                if score is not best
            },
        }
        if output == "table":
            _print(asked, scores, best)
    if output == "json":
        print_json({"dataset": str(dataset), "documents": len(data.documents), "model": model, "sets": results})


def _print(asked: QuerySet, scores: list[Score], best: Score) -> None:
    from relight.retrieval.evaluation import difference

    print(f"{asked.name}: {len(asked.questions)} questions, mean [95 % interval]")
    rows = []
    for score in scores:
        behind = (
            "best" if score is best else f"{-difference(best.values['ndcg@10'], score.values['ndcg@10']).mean:+.3f}"
        )
        found = score.intervals()
        rows.append((score.mode, found["ndcg@10"], behind, f"{found['recall@10'].mean:.3f}"))
        rows[-1] += (f"{found['recall@100'].mean:.3f}", f"{found['mrr@10'].mean:.3f}")  # type: ignore[assignment]
    print_table(("mode", "ndcg@10", "", "r@10", "r@100", "mrr@10"), rows)


def _told(score: Score) -> dict[str, Any]:
    return {name: vars(found) for name, found in score.intervals().items()}


def _few(asked: QuerySet, limit: int) -> QuerySet:
    """The first ``limit`` questions of a set."""
    from relight.retrieval.evaluation import QuerySet

    if not limit:
        return asked
    return QuerySet(asked.name, dict(list(asked.questions.items())[:limit]), asked.relevant)


def _files(model: str) -> Path:
    from relight.store.repository import Repository

    fetched = open_cache("background").fetch(Repository.open(Settings.from_environ().repository), model)
    note(f"model {model} version {fetched.version}")
    return fetched.path


def _encoder(model: str) -> Encoder:
    from relight.backends.onnxruntime import OnnxRuntime
    from relight.retrieval.encoder import Encoder, read_tokenizer

    files = _files(model)
    return Encoder(files, OnnxRuntime().open(files / "model.onnx"), read_tokenizer(files))


def _reranker(model: str) -> Any:
    from relight.retrieval.reranking import open_reranker

    return open_reranker(_files(model))


def _embedded(texts: list[str], encoder: Encoder, path: Path | None, said: Any) -> Array:
    """The vectors of the documents: from the file where it has as many, else computed, and kept there."""
    import numpy as np

    if path is not None and path.is_file():
        kept: Array = np.load(path)
        if kept.shape == (len(texts), encoder.dimension):
            return kept
        raise BadInput(f"{path} holds {kept.shape[0]} vectors, and there are {len(texts)} documents: remove it")
    parts = []
    for at in range(0, len(texts), 256):
        parts.append(encoder.encode(texts[at : at + 256])[0])
        said.show(f"embedding {at:,} of {len(texts):,} documents")
    found: Array = np.concatenate(parts) if parts else np.zeros((0, encoder.dimension), np.float32)
    if path is not None:
        partial = path.with_suffix(".partial.npy")
        np.save(partial, found)
        partial.replace(path)
    return found
