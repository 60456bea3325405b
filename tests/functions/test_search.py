"""rerank and search: steps of which one may be missing, within one deadline."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relight.base.errors import BadInput, Deadline, NotReady, RelightError
from relight.retrieval.reranking import CrossEncoder
from relight.runtime.calls import working_on
from relight.wire.http import Headers, Request
from relight.wire.tensors import TensorSpec


class Step:
    """A function over HTTP that answers what a test says, and remembers how it was asked."""

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, str], Any]] = []
        self.answer: Callable[[Any], tuple[int, Any]] = lambda data: (200, {})
        self.hold = threading.Event()
        self.hold.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                data = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.seen.append(({name.lower(): value for name, value in self.headers.items()}, data))
                status, answer = outer.answer(data)
                outer.hold.wait(20)
                body = json.dumps(answer).encode()
                try:
                    self.send_response(status)
                    self.send_header("content-length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    self.close_connection = True  # whoever asked has gone

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.hold.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


def hits(*names: str) -> list[dict[str, Any]]:
    return [{"document": name, "chunk": "0", "text": name, "score": 1.0} for name in names]


@pytest.fixture
def retrieve() -> Iterator[Step]:
    with closing(Step()) as step:
        answer = {"mode": "hybrid", "hits": hits("a", "b", "c", "d"), "timings": {"embed_ms": 1}}
        step.answer = lambda data: (200, answer)
        yield step


@pytest.fixture
def rerank() -> Iterator[Step]:
    with closing(Step()) as step:
        step.answer = lambda data: (200, {"hits": data["hits"][::-1], "reranker": "cross-encoder"})
        yield step


@pytest.fixture
def search(start: Callable[..., Any], retrieve: Step, rerank: Step) -> Iterator[Any]:
    function = start("search", {"RETRIEVE_URL": retrieve.url, "RERANK_URL": rerank.url})
    yield function
    function.unload()


def names(answer: dict[str, Any]) -> list[str]:
    return [hit["document"] for hit in answer["hits"]]


def test_the_two_steps(search: Any, retrieve: Step, rerank: Step) -> None:
    plain = search.run({"query": "q", "k": 2, "filter": {"a": 1}, "tenant": "t"}, None)
    assert (names(plain), plain["mode"], "degraded" in plain) == (["a", "b", "c", "d"], "hybrid", False)
    assert retrieve.seen[-1][1] == {"query": "q", "k": 2, "filter": {"a": 1}, "tenant": "t"}
    assert rerank.seen == []
    better = search.run({"query": "q", "k": 2, "rerank": True}, None)
    assert (names(better), better["reranker"]) == (["d", "c"], "cross-encoder")
    assert retrieve.seen[-1][1] == {"query": "q", "k": 20, "offset": 0}
    assert rerank.seen[-1][1]["query"] == "q"
    assert set(better["timings"]) == {"embed_ms", "retrieve_ms", "rerank_ms"}
    second = search.run({"query": "q", "k": 2, "offset": 2, "rerank": True}, None)
    assert names(second) == ["b", "a"]
    deep = search.run({"query": "q", "k": 15, "offset": 10, "rerank": True}, None)
    assert retrieve.seen[-1][1] == {"query": "q", "k": 15, "offset": 10}
    assert deep["degraded"] == {"rerank": "only the best 20 are reranked, and k + offset asks for more"}


def test_rerank_reads_texts_that_the_caller_does_not_want(search: Any, retrieve: Step, rerank: Step) -> None:
    found = [{**hit, "metadata": {"lang": "en", "page": 3}} for hit in hits("a", "b")]
    retrieve.answer = lambda data: (200, {"mode": "hybrid", "hits": found})
    answer = search.run({"query": "q", "rerank": True, "output_fields": ["page", "nothing"]}, None)
    assert "output_fields" not in retrieve.seen[-1][1]
    assert [hit["text"] for hit in rerank.seen[-1][1]["hits"]] == ["a", "b"]
    assert answer["hits"][0] == {"document": "b", "chunk": "0", "score": 1.0, "metadata": {"page": 3}}
    search.run({"query": "q", "output_fields": ["text"]}, None)
    assert retrieve.seen[-1][1]["output_fields"] == ["text"]
    with pytest.raises(BadInput, match="output_fields"):
        search.run({"query": "q", "output_fields": "text"}, None)


def test_deadline_trace_and_id_go_on(search: Any, retrieve: Step, rerank: Step) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = Headers([("x-request-id", "r1"), ("traceparent", trace), ("relight-timeout-ms", "4000")])
    with working_on(Request("POST", "/", headers), None):
        search.run({"query": "q", "rerank": True, "timeout_ms": 9000}, None)
    for step in (retrieve, rerank):
        seen = step.seen[-1][0]
        assert (seen["x-request-id"], seen["traceparent"]) == ("r1", trace)
        assert 0 < int(seen["relight-timeout-ms"]) <= 4000
    # With nothing given, an id of its own, the same for both.
    search.run({"query": "q", "rerank": True}, None)
    assert retrieve.seen[-1][0]["x-request-id"] == rerank.seen[-1][0]["x-request-id"]


def test_a_slow_or_broken_rerank_is_left_out_and_told(search: Any, rerank: Step) -> None:
    rerank.answer = lambda data: (500, {"error": "it broke"})
    answer = search.run({"query": "q", "k": 2, "rerank": True}, None)
    assert names(answer) == ["a", "b"]
    assert answer["degraded"] == {"rerank": "step rerank answered 500: it broke"}
    rerank.answer = lambda data: (200, {})
    rerank.hold.clear()
    begun = time.monotonic()
    answer = search.run({"query": "q", "k": 2, "rerank": True, "timeout_ms": 400}, None)
    assert time.monotonic() - begun < 3
    assert names(answer) == ["a", "b"]
    assert answer["degraded"]["rerank"].startswith("step rerank did not answer within 0.")
    with pytest.raises(Deadline, match="step rerank did not answer within"):
        search.run({"query": "q", "rerank": True, "timeout_ms": 300, "degrade": False}, None)


def test_without_retrieve_there_is_no_answer(search: Any, retrieve: Step) -> None:
    retrieve.answer = lambda data: (503, {"error": "Milvus does not answer"})
    with pytest.raises(NotReady, match="step retrieve answered 503: Milvus does not answer") as caught:
        search.run({"query": "q"}, None)
    assert caught.value.status == 502
    retrieve.answer = lambda data: (400, {"error": "filter.a: expected a string"})
    with pytest.raises(BadInput, match="expected a string"):
        search.run({"query": "q"}, None)
    retrieve.hold.clear()
    with pytest.raises(Deadline, match=r"step retrieve did not answer within 0\.") as late:
        search.run({"query": "q", "timeout_ms": 200}, None)
    assert late.value.status == 504


def test_what_retrieve_lacked_is_passed_on(search: Any, retrieve: Step) -> None:
    retrieve.answer = lambda data: (200, {"mode": "bm25", "hits": [], "degraded": {"dense": "step embed is down"}})
    answer = search.run({"query": "q", "rerank": True}, None)
    assert (answer["hits"], answer["mode"], answer["degraded"]) == ([], "bm25", {"dense": "step embed is down"})


@pytest.mark.parametrize(
    ("data", "paths"),
    [
        ({"query": ""}, ["query"]),
        ({"query": "q", "rerank": 1, "timeout_ms": 0}, ["rerank", "timeout_ms"]),
        ({"query": "q", "mode": "best", "more": 1, "tenant": ""}, ["tenant", "mode", "more"]),
        ({"query": "q", "filter": {"y": {"above": 1, "gt": "x"}}}, ["filter.y.above", "filter.y.gt"]),
    ],
    ids=str,
)
def test_every_mistake_is_named(search: Any, data: Any, paths: list[str]) -> None:
    with pytest.raises(BadInput) as caught:
        search.run(data, None)
    assert [problem.path for problem in caught.value.problems] == paths


def test_rerank_by_late_interaction(start: Callable[..., Any], encoder_files: Path) -> None:
    function = start("rerank", files=encoder_files)
    function.warmup()
    texts = ["boil pasta in salted water", "reading the members of a ZIP archive", "the weather of tomorrow"]
    given = [{"text": text, "document": str(n), "score": 0.5} for n, text in enumerate(texts)]
    answer = function.run({"query": "how to open a zip file", "hits": given, "k": 2}, None)
    assert answer["reranker"] == "late-interaction"
    assert answer["hits"][0]["document"] == "1"
    assert len(answer["hits"]) == 2
    assert answer["hits"][0]["score"] == 0.5
    # A text's score is its own: the same alone and among others, and the best possible for the question itself.
    alone = function.run({"query": "how to open a zip file", "hits": given[1:2]}, None)["hits"][0]["rerank_score"]
    assert alone == pytest.approx(answer["hits"][0]["rerank_score"], abs=1e-5)
    itself = function.run({"query": "how to open a zip file", "hits": [{"text": "how to open a zip file"}]}, None)
    assert itself["hits"][0]["rerank_score"] == pytest.approx(1.0, abs=1e-5)
    assert function.run({"query": "q", "hits": []}, None)["hits"] == []
    with pytest.raises(BadInput) as caught:
        function.run({"query": " ", "hits": [{"text": "x"}, {}], "k": 0}, None)
    assert [problem.path for problem in caught.value.problems] == ["query", "hits[1].text", "k"]


class Pairs:
    """A cross-encoder's session: its number is how often the second text's first token stands in the first text."""

    inputs = (TensorSpec("input_ids", "INT64", [-1, -1]), TensorSpec("token_type_ids", "INT64", [-1, -1]))
    outputs = (TensorSpec("logits", "FP32", [-1, 1]),)

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        ids, types = inputs["input_ids"][0], inputs["token_type_ids"][0]
        return {"logits": np.array([[np.isin(ids[types == 0], ids[types == 1]).sum()]], np.float32)}


def test_a_cross_encoder_reads_pairs(encoder_files: Path) -> None:
    from relight.retrieval.reranking import read_pair_tokenizer

    reranker = CrossEncoder(Pairs(), read_pair_tokenizer(encoder_files))
    scores = reranker.score("open a zip file", ["zip", "open the zip file", "nothing " * 2000])
    assert scores[1] > scores[0] > scores[2]


def test_a_step_that_is_not_there(start: Callable[..., Any], retrieve: Step) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        function = start("search", {"RETRIEVE_URL": retrieve.url, "RERANK_URL": url})
        answer = function.run({"query": "q", "k": 1, "rerank": True}, None)
        assert names(answer) == ["a"]
        assert "step rerank cannot be reached" in answer["degraded"]["rerank"]
        function.unload()
    function = start("search", {"RETRIEVE_URL": url})
    with pytest.raises(RelightError, match="step retrieve cannot be reached"):
        function.run({"query": "q"}, None)
    function.unload()
