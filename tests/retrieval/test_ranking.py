"""Analysis, BM25, fusion, measures: against tables and against other people's arithmetic."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relight.base.errors import BadInput, NotReady
from relight.retrieval.analysis import terms
from relight.retrieval.caching import ResultCache, cache_key
from relight.retrieval.evaluation import QuerySet, difference, interval, measure, read_beir
from relight.retrieval.fusion import fuse
from relight.retrieval.lexical import Bm25, LexicalIndex, top
from relight.retrieval.ranking import Corpus, evaluate, sides_of
from relight.retrieval.searching import Fusion, Searcher
from relight.retrieval.vectors import Hit, Query


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Running the parsers", ["run", "parser"]),
        ("utf-8 C++ don't user's", ["utf8", "utf", "8", "c", "don", "user"]),
        ("Größe CAFÉ ﬁle", ["gross", "cafe", "file"]),
        ("全文检索", ["全文", "文检", "检索"]),
        ("中", ["中"]),
        ("Milvus数据库2.5", ["milvus", "数据", "据库", "25", "2", "5"]),
        ("ひらがなとカタカナ", ["ひら", "らが", "がな", "なと", "とカ", "カタ", "タカ", "カナ"]),
        ("привет мир", ["привет", "мир"]),
        ("the of and", []),
        ("", []),
        ("snake_case x" + "y" * 100, ["snakecas", "snake", "case", "x" + "y" * 39]),
    ],
    ids=lambda value: str(value)[:20],
)
def test_terms(text: str, expected: list[str]) -> None:
    found = terms(text)
    if text.startswith("snake"):
        assert found[1:] == expected[1:]
    else:
        assert found == expected


def test_terms_are_whole_for_analysers_that_cut_at_punctuation() -> None:
    text = "utf-8 a_b c.d e+f don't 全文检索 ünïcode x/y 3.14"
    assert all(term.isalnum() for term in terms(text))


def test_bm25_is_the_textbooks() -> None:
    texts = {"a": "red apple red", "b": "green apple tree", "c": "red fox", "d": "nothing"}
    found = dict(Bm25.of(texts.items()).best("red apples", 10))
    lengths = {name: len(terms(text)) for name, text in texts.items()}
    mean = sum(lengths.values()) / len(lengths)
    for name, text in texts.items():
        counted = Counter(terms(text))
        score = 0.0
        for term in ("red", terms("apple")[0]):
            having = sum(term in terms(other) for other in texts.values())
            rarity = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
            score += rarity * counted[term] / (counted[term] + 1.2 * (0.25 + 0.75 * lengths[name] / mean))
        assert found.get(name, 0.0) == pytest.approx(score, abs=1e-5)


def test_bm25_of_nothing() -> None:
    assert Bm25.of([]).best("x", 3) == []
    assert Bm25.of([("a", ""), ("b", "the")]).best("x", 3) == []
    assert Bm25.of([("a", "apple")]).best("the", 3) == []
    assert Bm25.of([("a", "apple")]).best("unheard", 3) == []


def test_the_top_keeps_the_order_of_equal_ones() -> None:
    assert top(np.array([1.0, 3.0, 3.0, 2.0, 3.0], np.float32), 2) == [1, 2]
    assert top(np.array([1.0, 3.0], np.float32), 9) == [1, 0]
    assert top(np.array([], np.float32), 3) == []


def ranked(*names: str) -> list[Hit]:
    return [Hit(name, "0", name, 10.0 - at) for at, name in enumerate(names)]


def test_fusion_by_ranks() -> None:
    both = {"dense": ranked("a", "b", "c"), "bm25": ranked("c", "a", "d")}
    found = fuse(both, 10, {"dense": 1.0, "bm25": 1.0})
    assert [hit.document for hit in found] == ["a", "c", "b", "d"]
    assert found[0].score == pytest.approx(1 / 61 + 1 / 62)
    assert [hit.document for hit in fuse(both, 2, {"dense": 0.0, "bm25": 1.0})] == ["c", "a"]


def test_fusion_by_scores() -> None:
    dense = [Hit("a", "0", "", 0.9), Hit("b", "0", "", 0.8), Hit("c", "0", "", 0.1)]
    words = [Hit("b", "0", "", 20.0), Hit("c", "0", "", 10.0)]
    found = fuse({"dense": dense, "bm25": words}, 3, {"dense": 0.5, "bm25": 0.5}, "weighted")
    assert [(hit.document, round(hit.score, 4)) for hit in found] == [("b", 0.9375), ("a", 0.5), ("c", 0.0)]
    assert fuse({"dense": [], "bm25": [Hit("a", "0", "", 3.0)]}, 3, {}, "weighted")[0].score == 1.0


class Sides:
    """A store whose two sides answer or fail as told."""

    def __init__(self, dense: Any, words: Any) -> None:
        self.dense, self.words = dense, words

    def search(self, vector: Any, query: Query) -> list[Hit]:
        return self._answer(self.dense, query)

    def search_text(self, text: str, query: Query) -> list[Hit]:
        return self._answer(self.words, query)

    def _answer(self, side: Any, query: Query) -> list[Hit]:
        if isinstance(side, Exception):
            raise side
        return list(side[query.offset : query.offset + query.k])


def searcher(dense: Any, words: Any) -> Searcher:
    return Searcher(Sides(dense, words), lambda text: [1.0], Fusion("rrf"))  # type: ignore[arg-type]


def test_hybrid_goes_on_with_one_side_and_says_so() -> None:
    down = NotReady("it is down")
    whole = searcher(ranked("a", "b"), ranked("b", "c")).search("q", Query(k=2))
    assert ([hit.document for hit in whole.hits], whole.mode, whole.missing) == (["b", "a"], "hybrid", {})
    assert set(whole.timings) == {"embed", "search", "words", "fuse"}
    words = searcher(down, ranked("b", "c")).search("q", Query(k=2))
    assert ([hit.document for hit in words.hits], words.mode) == (["b", "c"], "bm25")
    assert words.missing == {"dense": "it is down"}
    assert searcher(ranked("a"), down).search("q", Query()).missing == {"bm25": "it is down"}
    with pytest.raises(NotReady, match="it is down"):
        searcher(down, down).search("q", Query())
    with pytest.raises(BadInput, match="wrong"):
        searcher(BadInput("wrong"), ranked("a")).search("q", Query())


def test_pages_of_a_hybrid_are_of_one_order() -> None:
    names = [f"n{number}" for number in range(60)]
    one = searcher(ranked(*names), ranked(*reversed(names)))
    whole = [hit.document for hit in one.search("q", Query(k=60)).hits]
    pages = [hit.document for at in range(0, 60, 7) for hit in one.search("q", Query(k=7, offset=at)).hits]
    assert pages == whole


@pytest.mark.parametrize(
    ("ranking", "relevant", "ndcg", "recall", "mrr"),
    [
        (["a", "b"], {"a": 1}, 1.0, 1.0, 1.0),
        (["b", "a"], {"a": 1}, 1 / math.log2(3), 1.0, 0.5),
        (["x", "y"], {"a": 1}, 0.0, 0.0, 0.0),
        ([], {"a": 1}, 0.0, 0.0, 0.0),
        (["b", "a"], {"a": 2, "b": 1, "c": 1}, (1 + 2 / math.log2(3)) / (2 + 1 / math.log2(3) + 0.5), 2 / 3, 1.0),
        (["x"] * 10 + ["a"], {"a": 1}, 0.0, 0.0, 0.0),
    ],
)
def test_measures(ranking: list[str], relevant: dict[str, int], ndcg: float, recall: float, mrr: float) -> None:
    found = measure(ranking, relevant)
    assert (found["ndcg@10"], found["recall@10"], found["mrr@10"]) == pytest.approx((ndcg, recall, mrr))


def test_intervals_hold_the_mean_and_shrink_with_questions() -> None:
    random = np.random.default_rng(0)
    few, many = (list(random.random(count)) for count in (20, 2000))
    assert interval(few) == interval(few)
    assert interval(few).low < interval(few).mean < interval(few).high
    assert interval(many).high - interval(many).low < (interval(few).high - interval(few).low) / 3
    # The means' intervals overlap, and yet one is better at every question.
    better = [value + 0.01 for value in many]
    assert interval(better).low < interval(many).high
    assert difference(better, many).low == pytest.approx(0.01)


def beir(folder: Path, qrels: str) -> Path:
    (folder / "qrels").mkdir(parents=True)
    corpus = [{"_id": "1", "title": "T", "text": "apple"}, {"_id": "2", "text": "pear"}]
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, corpus)))
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "fruit"}\n')
    (folder / "qrels" / "test.tsv").write_text(qrels)
    return folder


def test_beirs_format(tmp_path: Path) -> None:
    data = read_beir(beir(tmp_path, "query-id\tcorpus-id\tscore\nq\t1\t2\nq\t2\t0\n"))
    assert data.documents == {"1": "T\napple", "2": "pear"}
    assert data.sets == (QuerySet("test", {"q": "fruit"}, {"q": {"1": 2}}),)


@pytest.mark.parametrize(
    ("qrels", "sentence"),
    [
        ("q 1 1\n", "test.tsv:1: expected query-id, corpus-id and a whole number"),
        ("q\t9\t1\n", "test.tsv:1: corpus.jsonl has no '9'"),
        ("x\t1\t1\n", "test.tsv:1: queries.jsonl has no 'x'"),
    ],
    ids=["spaces", "document", "question"],
)
def test_a_wrong_data_set_names_file_and_line(tmp_path: Path, qrels: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        read_beir(beir(tmp_path, qrels))


def test_a_missing_data_set(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"there is no .*corpus\.jsonl: expected a data set in BEIR's format"):
        read_beir(tmp_path)


def test_an_evaluation_sees_each_side(tmp_path: Path) -> None:
    """Documents that words find and vectors do not, and the other way round: only the hybrid finds all."""
    random = np.random.default_rng(1)
    names = [f"d{number}" for number in range(40)]
    vectors = random.normal(size=(40, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    texts = {name: f"word{number} filler" for number, name in enumerate(names)}
    asked, relevant, queries = {}, {}, []
    for number, name in enumerate(names):
        by_words = number % 2 == 0
        asked[f"q{number}"] = f"word{number}" if by_words else "unheard"
        relevant[f"q{number}"] = {name: 1}
        queries.append(-vectors[number] if by_words else vectors[number])
    corpus, questions = Corpus.of(texts, vectors), QuerySet("s", asked, relevant)
    scores = evaluate(corpus, questions, sides_of(corpus, questions, np.array(queries)), ("bm25", "dense", "hybrid"))
    found = {score.mode: score.intervals()["ndcg@10"].mean for score in scores}
    assert found["bm25"] < 0.6
    assert found["dense"] < 0.6
    assert found["hybrid"] > 0.8


def test_the_cache_forgets_with_the_version() -> None:
    cache: ResultCache[str] = ResultCache(entries=2)
    key = cache_key("  How  To\tＳｅａｒｃｈ ", {"k": 5})
    assert key == cache_key("how to search", {"k": 5})
    assert key != cache_key("how to search", {"k": 6})
    cache.put(key, "v1", "answer")
    assert (cache.get(key, "v1"), cache.get(key, "v2")) == ("answer", None)
    cache.put("b", "v1", "b")
    cache.get(key, "v1")
    cache.put("c", "v1", "c")
    assert (cache.get("b", "v1"), cache.get(key, "v1")) == (None, "answer")
    cache.put("d", "", "of no collection")
    assert cache.get("d", "") is None


def test_an_index_of_words_is_kept_for_the_next_process(tmp_path: Path) -> None:
    texts = {"a": "red apple", "b": "green apple", "c": "a fox"}
    version, scans = ["v1"], []

    def scan() -> list[tuple[str, str]]:
        scans.append(version[0])
        return list(texts.items())

    def fetch(keys: Any, query: Query) -> dict[str, Hit]:
        return {key: Hit(key, "0", texts[key], 0.0) for key in keys}

    def ask(text: str) -> list[str]:
        index = LexicalIndex(lambda: version[0], scan, fetch, tmp_path / "words")
        return [hit.document for hit in index.search(text, Query())]

    assert ask("apples") == ["a", "b"]
    assert ask("red") == ["a"]
    assert scans == ["v1"]
    texts["d"], version[0] = "yellow apple", "v2"
    assert ask("yellow") == ["d"]
    assert ask("yellow") == ["d"]
    assert scans == ["v1", "v2"]
    assert [path.name for path in (tmp_path / "words").iterdir()] == ["v2"]
    (tmp_path / "words" / "v2" / "params.index.json").write_text("{torn")
    assert ask("yellow") == ["d"]
    assert ask("yellow") == ["d"]
    assert scans == ["v1", "v2", "v2"], "it was made again, once"
