"""The seam: every store keeps the same promises."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from relight.base.errors import BadInput, NotReady, RelightError
from relight.decide.indexing import IndexPlan
from relight.retrieval.filters import parse_filter
from relight.retrieval.stores import open_store
from relight.retrieval.vectors import Query, Row, Space, VectorStore

from .conftest import STORES

pytestmark = pytest.mark.parametrize("url", STORES, indirect=True)

X, Y, Z = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]
XY = [0.8, 0.6, 0.0]
SPACE = Space(3, "minilm")
HOSTILE = 'a" or document != "" or "\\" == "\\\\\' \n\t{x} [é漢😀] %_ $1 --'


def rows(*vectors: list[float], document: str = "d", **more: Any) -> list[Row]:
    return [Row(document, str(n), f"{document} {n}", vector, **more) for n, vector in enumerate(vectors)]


def names(hits: Any) -> list[str]:
    return [f"{hit.document}#{hit.chunk}" for hit in hits]


def test_before_anything_is_there(store: VectorStore) -> None:
    assert store.space() is None
    assert store.search(X, Query()) == []
    assert store.search_text("words", Query()) == []
    assert (store.count(), store.version(), store.standing(), list(store.scan())) == (0, "", None, [])
    store.delete("d")


def test_what_is_written_is_found_at_once_by_whoever_asks(
    store: VectorStore, another: Callable[[], VectorStore]
) -> None:
    store.ensure(SPACE)
    reader = another()
    for number in range(20):
        store.upsert([Row("d", str(number), f"text number {number}", XY, {"n": number})])
        found = reader.search(X, Query(k=100, where=parse_filter({"n": number})))
        assert names(found) == [f"d#{number}"]
    assert found[0].score == pytest.approx(0.8, abs=1e-5)
    assert (found[0].text, found[0].metadata) == ("text number 19", {"n": 19})


def test_the_nearest_first_page_by_page(store: VectorStore) -> None:
    store.ensure(SPACE)
    angles = np.linspace(0, 1.5, 30)
    store.upsert(rows(*[[float(np.cos(a)), float(np.sin(a)), 0.0] for a in angles]))
    whole = names(store.search(X, Query(k=30)))
    assert whole == [f"d#{n}" for n in range(30)]
    pages = [names(store.search(X, Query(k=7, offset=at))) for at in range(0, 35, 7)]
    assert [name for page in pages for name in page] == whole
    assert names(store.search(X, Query(k=100))) == whole, "more than there are"


def test_writing_the_same_again_changes_nothing(store: VectorStore) -> None:
    store.ensure(SPACE)
    assert store.upsert(rows(X, Y)) == 2
    before = store.version()
    assert store.upsert(rows(X, Y)) == 0
    assert store.version() == before
    assert store.upsert(rows(X, Z)) == 1
    assert store.upsert([Row("d", "0", "other words", X)]) == 1
    assert store.count() == 2
    assert store.version() != before
    assert [hit.text for hit in store.search(X, Query(k=1))] == ["other words"]


def test_a_large_write_has_the_last_of_a_chunk_that_comes_twice(store: VectorStore) -> None:
    store.ensure(SPACE)
    many = [Row(f"d{number}", "0", f"text {number}", XY) for number in range(620)]
    assert store.upsert([*many, Row("d7", "0", "seven again", X)]) == 620
    assert store.count() == 620
    assert [hit.text for hit in store.search(X, Query(k=1))] == ["seven again"]
    before = store.version()
    assert store.upsert([*many[:7], *many[8:]]) == 0
    assert store.version() == before
    assert store.upsert(many) == 1


def test_a_document_is_deleted_and_only_that(store: VectorStore) -> None:
    store.ensure(SPACE)
    store.upsert(rows(X, Y, Z) + rows(X, document="e") + rows(X, document="d", tenant="other"))
    store.delete("d", keep=["1"])
    assert sorted(names(store.search(X, Query(k=10)))) == ["d#1", "e#0"]
    version = store.version()
    store.delete("nobody")
    assert store.version() == version
    store.delete("d")
    assert names(store.search(X, Query(k=10))) == ["e#0"]
    assert names(store.search(X, Query(k=10, tenant="other"))) == ["d#0"]


def test_a_tenant_sees_its_own(store: VectorStore) -> None:
    store.ensure(SPACE)
    for tenant in ("a", "b", HOSTILE):
        store.upsert([Row("d", "0", f"apple of {len(tenant)}", X, {}, tenant)])
    assert store.count() == 3
    for tenant in ("a", "b", HOSTILE):
        for found in (store.search(X, Query(tenant=tenant)), store.search_text("apple", Query(tenant=tenant))):
            assert [hit.text for hit in found] == [f"apple of {len(tenant)}"]
    assert store.search(X, Query(tenant="c")) == []


def test_a_small_tenant_and_a_rare_filter_among_many(store: VectorStore) -> None:
    """An approximate index looks at the nearest first: here these are all somebody else's."""
    store.ensure(SPACE)
    near = np.random.default_rng(2).normal([1.0, 0.0, 0.0], 0.05, size=(1000, 3))
    store.upsert(rows(*near.tolist(), document="near", metadata={"rare": False}))
    store.upsert(rows(Y, Z, tenant="small") + rows(Y, document="far", metadata={"rare": True}))
    assert sorted(names(store.search(X, Query(k=5, tenant="small")))) == ["d#0", "d#1"]
    assert names(store.search(X, Query(k=5, where=parse_filter({"rare": True})))) == ["far#0"]


@pytest.mark.parametrize("value", ["plain", HOSTILE, "", '"', "\\", "' or '1'=='1"], ids=repr)
def test_filters_are_values_and_never_syntax(store: VectorStore, value: str) -> None:
    store.ensure(SPACE)
    store.upsert([Row(value or "empty", "0", "x", X, {"tag": value}), Row("other", "0", "x", X, {"tag": "other"})])
    for where in ({"tag": value}, {"document": value or "empty"}, {"tag": {"in": [value, "nobody"]}}):
        assert names(store.search(X, Query(where=parse_filter(where)))) == [f"{value or 'empty'}#0"], where
    assert store.search(X, Query(where=parse_filter({"tag": f"{value}x"}))) == []


FILTERS: list[tuple[Any, list[str]]] = [
    ({"year": 2020}, ["a"]),
    ({"year": 2020.0}, ["a"]),
    ({"year": {"gte": 2020, "lt": 2022}}, ["a", "b"]),
    ({"year": {"gt": 2020}}, ["b", "c"]),
    ({"year": {"lte": 2020.5}}, ["a"]),
    ({"lang": {"in": ["en", "zh"]}, "year": {"gt": 2000}}, ["a", "c"]),
    ({"open": True}, ["a"]),
    ({"lang": "en", "open": False}, ["c"]),
    ({"a.b-c": "dotted"}, ["b"]),
    ({"year": "2020"}, []),
    ({"nobody": 1}, []),
    ({"document": {"in": ["a", "d"]}}, ["a", "d"]),
]


@pytest.mark.parametrize("number", range(len(FILTERS)), ids=[str(where) for where, _ in FILTERS])
def test_conditions(store: VectorStore, number: int) -> None:
    store.ensure(SPACE)
    metadata: dict[str, dict[str, Any]] = {
        "a": {"year": 2020, "lang": "zh", "open": True},
        "b": {"year": 2021, "lang": "de", "a.b-c": "dotted"},
        "c": {"year": 2024, "lang": "en", "open": False},
        "d": {"year": "2024"},
    }
    store.upsert([Row(name, "0", "apple", X, values) for name, values in metadata.items()])
    where, expected = FILTERS[number]
    query = Query(k=10, where=parse_filter(where))
    assert sorted(hit.document for hit in store.search(X, query)) == expected
    assert sorted(hit.document for hit in store.search_text("apples", query)) == expected


def test_words_rank_by_bm25(store: VectorStore) -> None:
    store.ensure(SPACE)
    texts = {
        "rare": "zeppelin in the common sky",
        "common": "common words in a common sentence of common things",
        "long": "zeppelin " + "filler text that goes on and on " * 40,
        "none": "nothing of it",
        "zh": "向量数据库支持全文检索",
        "zh2": "今天天气很好",
    }
    store.upsert([Row(name, "0", text, X) for name, text in texts.items()])
    assert names(store.search_text("Zeppelins", Query())) == ["rare#0", "long#0"]
    assert names(store.search_text("common zeppelin", Query(k=2)))[0] == "rare#0"
    assert names(store.search_text("全文检索", Query())) == ["zh#0"]
    assert names(store.search_text("天气", Query())) == ["zh2#0"]
    assert store.search_text("the of", Query()) == []
    scores = [hit.score for hit in store.search_text("common zeppelin", Query())]
    assert scores == sorted(scores, reverse=True)
    assert min(scores) > 0
    # Written, changed and deleted words are seen by the next question.
    store.upsert([Row("none", "0", "a second zeppelin", X)])
    assert set(names(store.search_text("zeppelin", Query()))) == {"rare#0", "long#0", "none#0"}
    store.delete("rare")
    assert set(names(store.search_text("zeppelin", Query()))) == {"long#0", "none#0"}


@pytest.mark.parametrize(
    ("space", "sentence", "path"),
    [
        (Space(2, "minilm"), r"a vector of 2 dimensions does not fit collection 't\d+', which has 3", "vector"),
        (Space(3, "bge"), r"collection 't\d+' holds vectors of model 'minilm', and these are of 'bge'", "model"),
        (Space(3, "minilm", "ip"), r"collection 't\d+' compares by cosine, not by ip", "metric"),
    ],
    ids=["dimension", "model", "metric"],
)
def test_other_vectors_are_refused_with_both_values(
    store: VectorStore, another: Callable[[], VectorStore], space: Space, sentence: str, path: str
) -> None:
    store.ensure(SPACE)
    with pytest.raises(BadInput, match=sentence) as caught:
        another().ensure(space)
    assert [problem.path for problem in caught.value.problems] == [path]
    another().ensure(Space(3))
    assert another().space() == SPACE
    for call in (lambda: store.upsert(rows([1.0, 0.0])), lambda: store.search([1.0], Query())):
        with pytest.raises(BadInput, match="dimensions does not fit"):
            call()


def test_the_inner_product(store: VectorStore) -> None:
    store.ensure(Space(3, None, "ip"))
    store.upsert([Row("long", "0", "x", [0.9, 3.0, 0.0]), Row("near", "0", "x", [1.0, 0.0, 0.0])])
    found = store.search([1.0, 1.0, 0.0], Query())
    assert [(hit.document, round(hit.score, 4)) for hit in found] == [("long", 3.9), ("near", 1.0)]


def test_names_that_are_too_long(store: VectorStore) -> None:
    store.ensure(SPACE)
    with pytest.raises(BadInput, match="is too long for a name: at most 1024 bytes"):
        store.upsert([Row("d" * 1025, "0", "x", X)])


def test_all_rows_come_by_batches(store: VectorStore) -> None:
    store.ensure(SPACE)
    written = rows(*[XY] * 25) + rows(X, tenant="other", metadata={"k": [1, {"a": None}]})
    store.upsert(written)
    batches = list(store.scan(batch=10))
    assert [len(batch) for batch in batches] == [10, 10, 6]
    found = {row.key: row for batch in batches for row in batch}
    assert {key: (row.text, dict(row.metadata), row.tenant) for key, row in found.items()} == {
        row.key: (row.text, dict(row.metadata), row.tenant) for row in written
    }
    np.testing.assert_allclose(found[written[0].key].vector, XY, atol=1e-6)


def test_the_index_is_rebuilt_and_nothing_is_missing(store: VectorStore, another: Callable[[], VectorStore]) -> None:
    with pytest.raises(BadInput, match="index something first"):
        store.rebuild(IndexPlan("FLAT"))
    store.ensure(SPACE)
    store.upsert(rows(X, Y, Z) + rows(X, document="e", tenant="other"))
    reader = another()
    assert len(reader.search(X, Query(k=10))) == 3
    for kind in store.kinds():
        store.rebuild(IndexPlan(kind, {"M": 8, "efConstruction": 64} if kind == "HNSW" else {"nlist": 1}))
        standing = store.standing()
        assert standing is not None
        assert (standing.index, standing.rows, standing.space) == (kind, 4, SPACE)
        assert names(reader.search(XY, Query(k=10))) == ["d#0", "d#1", "d#2"]
        store.upsert(rows(X, document=f"after-{kind}"))
        assert f"after-{kind}#0" in names(reader.search(X, Query(k=10)))
        store.delete(f"after-{kind}")
    missing = "IVF_PQ"
    with pytest.raises(BadInput, match=f"does not build {missing}; it builds"):
        store.rebuild(IndexPlan(missing))


def test_searches_and_writes_go_on_during_a_rebuild(
    store: VectorStore, another: Callable[[], VectorStore], url: str
) -> None:
    store.ensure(SPACE)
    random = np.random.default_rng(5)
    store.upsert(rows(*random.normal(size=(600, 3)).tolist(), document="base"))
    reader, writer = another(), another()
    done = threading.Event()
    failed: list[BaseException] = []
    written: list[str] = []

    def search() -> None:
        while not done.is_set():
            assert len(reader.search(X, Query(k=10))) == 10

    def write() -> None:
        number = 0
        while not done.is_set() or number < 5:
            writer.upsert(rows(X, document=f"new{number}"))
            written.append(f"new{number}")
            if number % 3 == 2:
                writer.delete(written.pop(0))
            number += 1

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                failed.append(error)

        return run

    threads = [threading.Thread(target=guarded(work)) for work in (search, write)]
    for thread in threads:
        thread.start()
    try:
        store.rebuild(IndexPlan(store.kinds()[-1], {"M": 8, "efConstruction": 64, "nlist": 4}))
    finally:
        done.set()
        for thread in threads:
            thread.join(30)
    assert failed == []
    there = {row.document for batch in store.scan() for row in batch} - {"base"}
    assert there == set(written)
    assert store.count() == 600 + len(written)


def test_a_store_that_is_not_there(url: str) -> None:
    away = {
        "http": "http://127.0.0.1:9",
        "postgresql": "postgresql://nobody@127.0.0.1:9/x",
        "qdrant": "qdrant://127.0.0.1:9",
    }
    store = open_store(away[url.partition(":")[0]], timeout=0.5)
    with pytest.raises(NotReady, match="does not answer") as caught:
        store.space()
    before = threading.active_count()
    for _ in range(5):
        with pytest.raises(NotReady):
            store.space()
    assert threading.active_count() <= before, "every attempt leaves a thread behind"
    assert isinstance(caught.value, RelightError)
    assert (caught.value.status, caught.value.retryable) == (503, True)
    store.close()
