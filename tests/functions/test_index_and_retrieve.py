"""index and retrieve on a real Milvus Lite server: what is indexed is found, whatever happens in between."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from relight.base.errors import BadInput, Deadline, Failed, NotReady, RelightError
from relight.retrieval.milvus import Milvus
from relight.retrieval.vectors import Space
from relight.wire import openai


class EmbedServer:
    """The embed function's OpenAI endpoint, or whatever ``answer`` says instead."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.vectors: dict[str, list[float]] = {}
        self.answer: tuple[int, bytes] | None = None
        self.close_after = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                peer = self.client_address[1]
                outer.seen.append({"path": self.path, "peer": peer, **{k.lower(): v for k, v in self.headers.items()}})
                status, answer = outer.answer or outer.embed(body)
                self.send_response(status)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
                self.close_connection = outer.close_after

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def embed(self, body: bytes) -> tuple[int, bytes]:
        asked = openai.decode_embeddings(body)
        vectors = np.array([self.vectors[text] for text in asked.texts], np.float32)
        return 200, openai.encode_embeddings(asked, vectors, 1)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@pytest.fixture
def embed_server() -> Iterator[EmbedServer]:
    with closing(EmbedServer()) as server:
        yield server


NAMES = iter(range(1000))


@pytest.fixture
def env(milvus: Any, embed_server: EmbedServer) -> dict[str, str]:
    """Each test has a collection of its own."""
    return {
        "MILVUS_URI": milvus.ensure(),
        "MILVUS_COLLECTION": f"test_{next(NAMES)}",
        "RETRIEVE_MODE": "dense",
        "EMBED_URL": f"http://{embed_server.address}/default/embed",
    }


@pytest.fixture
def index(start: Callable[..., Any], env: dict[str, str]) -> Iterator[Any]:
    function = start("index", env)
    yield function
    function.unload()


@pytest.fixture
def retrieve(start: Callable[..., Any], env: dict[str, str]) -> Iterator[Any]:
    function = start("retrieve", env)
    yield function
    function.unload()


def embedded(document: str, vectors: list[list[float]], **more: Any) -> dict[str, Any]:
    chunks = [{"id": str(n), "text": f"{document} {n}", "vector": vector} for n, vector in enumerate(vectors)]
    return {"document": document, "chunks": chunks, **more}


def documents(answer: dict[str, Any]) -> list[str]:
    return [f"{hit['document']}#{hit['chunk']}" for hit in answer["hits"]]


X, Y, Z = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]
XY = [0.8, 0.6, 0.0]


def test_what_is_indexed_is_found_at_once_and_ranked(index: Any, retrieve: Any, embed_server: EmbedServer) -> None:
    assert index.run(embedded("d", [X, Y], title="T", metadata={"lang": "en"}), None) == {"document": "d", "chunks": 2}
    assert index.run(embedded("e", [Z]), None) == {"document": "e", "chunks": 1}
    embed_server.vectors["question"] = XY
    answer = retrieve.run({"query": "question", "k": 2}, None)
    assert documents(answer) == ["d#0", "d#1"]
    assert answer["query"] == "question"
    assert [hit["score"] for hit in answer["hits"]] == pytest.approx([0.8, 0.6], abs=1e-5)
    assert answer["hits"][0] == {
        "document": "d",
        "chunk": "0",
        "text": "d 0",
        "score": answer["hits"][0]["score"],
        "metadata": {"lang": "en", "title": "T"},
    }
    assert set(answer["timings"]) == {"embed_ms", "search_ms", "total_ms"}
    json.dumps(answer)
    for chosen, more in ((["text"], {"text": "d 0"}), (["lang"], {"metadata": {"lang": "en"}}), ([], {})):
        (hit,) = retrieve.run({"query": "question", "k": 1, "output_fields": chosen}, None)["hits"]
        assert hit == {"document": "d", "chunk": "0", "score": hit["score"], **more}


def test_the_same_event_twice_changes_nothing(index: Any, env: dict[str, str]) -> None:
    for _ in range(3):
        index.run(embedded("d", [X, Y]), None)
    assert index.store.count() == 2


def test_a_document_that_became_shorter_is_replaced(index: Any, retrieve: Any, embed_server: EmbedServer) -> None:
    index.run(embedded("d", [X, Y, Z]), None)
    index.run(embedded("other", [Y]), None)
    index.run(embedded("d", [Z]), None)
    embed_server.vectors["q"] = X
    assert sorted(documents(retrieve.run({"query": "q", "k": 10}, None))) == ["d#0", "other#0"]
    assert index.run(embedded("d", []), None) == {"document": "d", "chunks": 0}
    assert documents(retrieve.run({"query": "q", "k": 10}, None)) == ["other#0"]


def test_nothing_was_ever_indexed(index: Any, retrieve: Any, embed_server: EmbedServer) -> None:
    embed_server.vectors["q"] = X
    assert retrieve.run({"query": "q"}, None)["hits"] == []
    assert index.run(embedded("d", []), None) == {"document": "d", "chunks": 0}
    index.run(embedded("d", [X]), None)
    assert documents(retrieve.run({"query": "q"}, None)) == ["d#0"]


HOSTILE = 'a" or document != "" or "\\" == "\\\\\' \n\t{x} [é漢😀] %_'


@pytest.mark.parametrize("value", ["plain", HOSTILE, "", '"', "\\", "' or '1'=='1"], ids=repr)
def test_filters_are_values_and_never_syntax(index: Any, retrieve: Any, embed_server: EmbedServer, value: str) -> None:
    embed_server.vectors["q"] = X
    index.run(embedded(value or "empty", [X], metadata={"tag": value}), None)
    index.run(embedded("other", [Y], metadata={"tag": "other", "n": 5}), None)
    for where in ({"tag": value}, {"document": value or "empty"}, {"tag": value, "document": value or "empty"}):
        assert documents(retrieve.run({"query": "q", "filter": where}, None)) == [f"{value or 'empty'}#0"]
    assert documents(retrieve.run({"query": "q", "filter": {"n": 5}}, None)) == ["other#0"]
    assert documents(retrieve.run({"query": "q", "filter": {"tag": f"{value}x"}}, None)) == []


@pytest.mark.parametrize(
    ("data", "paths"),
    [
        (None, []),
        ({}, ["query"]),
        ({"query": "  ", "k": 0}, ["query", "k"]),
        ({"query": "q", "k": True, "filter": 1, "more": 1}, ["k", "filter", "more"]),
        ({"query": "q", "k": 101}, ["k"]),
        ({"query": "q", "filter": {'a"]': 1}}, ['filter.a"]']),
        ({"query": "q", "filter": {"a": [1], "b": None}}, ["filter.a", "filter.b"]),
    ],
    ids=str,
)
def test_every_mistake_of_a_question_is_named(
    retrieve: Any, embed_server: EmbedServer, data: Any, paths: list[str]
) -> None:
    embed_server.vectors["q"] = X
    with pytest.raises(BadInput) as caught:
        retrieve.run(data, None)
    assert [problem.path for problem in caught.value.problems] == paths


def test_a_vector_of_another_dimension_is_refused(index: Any, retrieve: Any, embed_server: EmbedServer) -> None:
    index.run(embedded("d", [X]), None)
    sentence = r"a vector of 2 dimensions does not fit collection 'test_\d+', which has 3"
    with pytest.raises(BadInput, match=sentence):
        index.run(embedded("e", [[1.0, 0.0]]), None)
    embed_server.vectors["q"] = [1.0, 0.0]
    with pytest.raises(BadInput, match=sentence):
        retrieve.run({"query": "q"}, None)


@pytest.mark.parametrize(
    ("data", "paths"),
    [
        ({"document": "d", "chunks": [{"id": "0", "text": "x"}]}, ["chunks[0].vector"]),
        ({"document": "d", "chunks": [{"id": "0", "text": "x", "vector": []}]}, ["chunks[0].vector"]),
        ({"document": "d", "chunks": [{"id": "0", "text": "x", "vector": [1, "2"]}]}, ["chunks[0].vector"]),
        (embedded("d", [[1.0], [1.0, 2.0]]), ["chunks"]),
    ],
    ids=["none", "empty", "text", "lengths"],
)
def test_every_mistake_of_an_embedded_document_is_named(index: Any, data: Any, paths: list[str]) -> None:
    with pytest.raises(BadInput) as caught:
        index.run(data, None)
    assert [problem.path for problem in caught.value.problems] == paths


def test_milvus_goes_and_comes_back(
    index: Any, retrieve: Any, milvus: Any, embed_server: EmbedServer, env: dict[str, str]
) -> None:
    embed_server.vectors["q"] = X
    index.run(embedded("d", [X, Y]), None)
    assert documents(retrieve.run({"query": "q", "k": 1}, None)) == ["d#0"]
    milvus.kill()
    for call in (lambda: retrieve.run({"query": "q"}, None), lambda: index.run(embedded("e", [Z]), None)):
        with pytest.raises(NotReady, match=f"Milvus at {env['MILVUS_URI']} does not answer") as caught:
            call()
        assert (caught.value.status, caught.value.retryable) == (503, True)
    assert milvus.ensure() == env["MILVUS_URI"]
    # The same functions, at their first attempt, with all that was there before the kill -9.
    assert documents(retrieve.run({"query": "q", "k": 1}, None)) == ["d#0"]
    assert index.run(embedded("e", [Z]), None) == {"document": "e", "chunks": 1}
    assert index.store.count() == 3


def test_a_server_that_never_answers_is_not_waited_for_long() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        store = Milvus(uri, timeout=0.3)
        with pytest.raises(NotReady, match=f"Milvus at {uri} does not answer"):
            store.count()


def test_a_collection_that_is_dropped_is_made_anew(index: Any, env: dict[str, str]) -> None:
    index.run(embedded("d", [X]), None)
    from pymilvus import MilvusClient

    client = MilvusClient(env["MILVUS_URI"])
    client.drop_alias(env["MILVUS_COLLECTION"])
    client.drop_collection(f"{env['MILVUS_COLLECTION']}__1")
    client.close()
    with pytest.raises(NotReady, match="was dropped: try again"):
        index.run(embedded("d", [X]), None)
    assert index.run(embedded("d", [X, Y]), None)["chunks"] == 2


def test_the_call_of_embed(retrieve: Any, embed_server: EmbedServer) -> None:
    embed_server.vectors["q"] = X
    for _ in range(2):
        retrieve.run({"query": "q"}, None)
    first, second = embed_server.seen
    assert first["path"] == "/default/embed/v1/embeddings"
    assert first["peer"] == second["peer"]
    assert first["x-request-id"] != second["x-request-id"]


def test_a_connection_that_was_closed_meanwhile(retrieve: Any, embed_server: EmbedServer) -> None:
    embed_server.vectors["q"] = X
    embed_server.close_after = True
    for _ in range(3):
        assert retrieve.run({"query": "q"}, None)["hits"] == []
    assert len({seen["peer"] for seen in embed_server.seen}) == 3


def test_names_of_a_cluster_go_to_the_router(
    start: Callable[..., Any], env: dict[str, str], embed_server: EmbedServer
) -> None:
    name = "embed.default.svc.cluster.local"
    function = start("retrieve", {**env, "EMBED_URL": f"http://{name}", "RELIGHT_ROUTER": embed_server.address})
    embed_server.vectors["q"] = X
    assert function.run({"query": "q"}, None)["hits"] == []
    assert embed_server.seen[0]["host"] == name
    function.unload()


@pytest.mark.parametrize(
    ("answer", "status", "sentence"),
    [
        ((500, b'{"error": {"message": "it broke"}}'), 502, "step embed answered 500: it broke"),
        ((400, b'{"error": "too long"}'), 502, "step embed answered 400: too long"),
        ((503, b"not json"), 502, "step embed answered 503: no reason given"),
        ((504, b'{"error": "slow"}'), 504, "step embed did not finish in time: slow"),
        ((200, b"{}"), 502, "step embed answered something else than an embedding"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_a_step_that_fails_is_named(
    retrieve: Any, embed_server: EmbedServer, answer: tuple[int, bytes], status: int, sentence: str
) -> None:
    embed_server.answer = answer
    with pytest.raises(RelightError, match=sentence) as caught:
        retrieve.run({"query": "q"}, None)
    assert caught.value.status == status


def test_a_step_that_is_not_there(start: Callable[..., Any], env: dict[str, str]) -> None:
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        function = start("retrieve", {**env, "EMBED_URL": url})
        with pytest.raises(RelightError, match=f"step embed cannot be reached at {url}: Connection refused") as caught:
            function.run({"query": "q"}, None)
    assert caught.value.status == 502


def test_a_step_that_never_answers(start: Callable[..., Any], env: dict[str, str]) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        function = start("retrieve", {**env, "EMBED_URL": f"http://127.0.0.1:{silent.getsockname()[1]}"})
        function.encoder._timeout = 0.2
        with pytest.raises(Deadline, match=r"step embed did not answer within 0\.2 s") as caught:
            function.run({"query": "q"}, None)
    assert caught.value.status == 504


def test_a_collection_of_somebody_else_is_refused(index: Any, env: dict[str, str]) -> None:
    from pymilvus import MilvusClient

    client = MilvusClient(env["MILVUS_URI"])
    client.create_collection(env["MILVUS_COLLECTION"], dimension=3)
    client.close()
    with pytest.raises(BadInput, match="was not made by relight: its fields differ"):
        index.run(embedded("d", [X]), None)


def test_what_milvus_refuses_is_a_sentence(env: dict[str, str]) -> None:
    store = Milvus(env["MILVUS_URI"], env["MILVUS_COLLECTION"])
    store.ensure(Space(3))
    with pytest.raises(Failed, match=r"Milvus at .* refused a request: "):
        store._call(lambda client: client.query(env["MILVUS_COLLECTION"], filter="nonsense ((("))
    store.close()


def words(document: str, text: str, vector: list[float]) -> dict[str, Any]:
    return {"document": document, "chunks": [{"id": "0", "text": text, "vector": vector}], "model": "minilm"}


@pytest.fixture
def hybrid(start: Callable[..., Any], env: dict[str, str]) -> Iterator[Any]:
    function = start("retrieve", {**env, "RETRIEVE_MODE": "hybrid"})
    yield function
    function.unload()


def test_hybrid_finds_by_words_what_vectors_do_not(index: Any, hybrid: Any, embed_server: EmbedServer) -> None:
    index.run(words("near", "something else", X), None)
    index.run(words("named", "the zeppelin of 全文检索", Z), None)
    index.run(words("far", "nothing", Y), None)
    embed_server.vectors |= {"zeppelin": X, "全文": X}
    answer = hybrid.run({"query": "zeppelin", "k": 2}, None)
    assert (answer["mode"], sorted(documents(answer))) == ("hybrid", ["named#0", "near#0"])
    assert set(answer["timings"]) == {"embed_ms", "search_ms", "words_ms", "fuse_ms", "total_ms"}
    assert documents(hybrid.run({"query": "全文", "mode": "bm25"}, None)) == ["named#0"]
    assert documents(hybrid.run({"query": "zeppelin", "mode": "dense", "k": 1}, None)) == ["near#0"]
    assert documents(hybrid.run({"query": "zeppelin", "mode": "dense", "k": 1, "offset": 1}, None)) == ["named#0"]


def test_without_embed_a_hybrid_goes_on_by_words(index: Any, hybrid: Any, embed_server: EmbedServer) -> None:
    index.run(words("named", "a zeppelin", Z), None)
    embed_server.answer = (500, b'{"error": "it broke"}')
    answer = hybrid.run({"query": "zeppelin"}, None)
    assert (documents(answer), answer["mode"]) == (["named#0"], "bm25")
    assert answer["degraded"] == {"dense": "step embed answered 500: it broke"}
    with pytest.raises(NotReady, match="a side of the search failed: step embed answered 500"):
        hybrid.run({"query": "zeppelin", "degrade": False}, None)
    # It was not kept: with embed back, the whole answer.
    embed_server.answer = None
    embed_server.vectors["zeppelin"] = Z
    assert hybrid.run({"query": "zeppelin"}, None)["mode"] == "hybrid"


def test_answers_are_kept_until_something_is_written(index: Any, hybrid: Any, embed_server: EmbedServer) -> None:
    index.run(words("one", "a zeppelin", X), None)
    embed_server.vectors |= {"Zeppelin": X, "zeppelin  ": X}
    first = hybrid.run({"query": "Zeppelin"}, None)
    again = hybrid.run({"query": "zeppelin  "}, None)
    assert ("cached" in first, again["cached"]) == (False, True)
    assert again["hits"] == first["hits"]
    assert len(embed_server.seen) == 1
    assert "cached" not in hybrid.run({"query": "Zeppelin", "k": 6}, None)
    index.run(words("one", "a zeppelin", X), None)
    assert hybrid.run({"query": "Zeppelin"}, None)["cached"], "the same again was no write"
    index.run(words("two", "another zeppelin", X), None)
    fresh = hybrid.run({"query": "Zeppelin"}, None)
    assert ("cached" in fresh, sorted(documents(fresh))) == (False, ["one#0", "two#0"])


def test_tenants_are_apart(index: Any, hybrid: Any, embed_server: EmbedServer) -> None:
    for tenant in ("acme", "other"):
        index.run({**words("doc", f"zeppelin of {tenant}", X), "tenant": tenant}, None)
    embed_server.vectors["zeppelin"] = X
    for tenant in ("acme", "other"):
        answer = hybrid.run({"query": "zeppelin", "tenant": tenant}, None)
        assert [hit["text"] for hit in answer["hits"]] == [f"zeppelin of {tenant}"]
    index.run({**words("doc", "", X), "tenant": "acme", "chunks": []}, None)
    assert hybrid.run({"query": "zeppelin", "tenant": "acme"}, None)["hits"] == []
    assert len(hybrid.run({"query": "zeppelin", "tenant": "other"}, None)["hits"]) == 1
    assert hybrid.run({"query": "zeppelin"}, None)["hits"] == []


def test_vectors_of_another_model_are_refused_with_both_names(
    start: Callable[..., Any], index: Any, env: dict[str, str], embed_server: EmbedServer
) -> None:
    index.run(words("doc", "zeppelin", X), None)
    with pytest.raises(BadInput, match=r"holds vectors of model 'minilm', and these are of 'bge'"):
        index.run({**words("doc", "zeppelin", X), "model": "bge"}, None)
    embed_server.vectors["zeppelin"] = X
    function = start("retrieve", {**env, "EMBED_MODEL": "bge", "RETRIEVE_MODE": "hybrid"})
    with pytest.raises(BadInput, match=r"holds vectors of model 'minilm', and these are of 'bge'"):
        function.run({"query": "zeppelin"}, None)
    function.unload()


def test_the_recall_of_the_index_is_exported(
    start: Callable[..., Any], index: Any, env: dict[str, str], embed_server: EmbedServer
) -> None:
    index.run(embedded("d", [X, Y, Z]), None)
    embed_server.vectors["q"] = XY
    function = start("retrieve", {**env, "RECALL_EVERY": "0.05"})
    told: dict[str, float] = {}
    fresh = threading.Event()

    def gauge(name: str, help_text: str, value: float) -> None:
        told[name] = value
        if told.get("relight_index_recall_questions"):
            fresh.set()

    object.__setattr__(function.context, "gauge", gauge)
    function.run({"query": "q"}, None)
    assert fresh.wait(20)
    assert told == {"relight_index_recall": 1.0, "relight_index_recall_questions": 1}
    function.unload()
