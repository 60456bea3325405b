"""Documents go through the broker, each function from zero; questions are answered over HTTP, and answered well."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import jsonschema
import numpy as np
import onnxruntime
import yaml
from kit import apply_embed, http, post
from rich.console import Console
from tables import ROOT
from tokenizers import Tokenizer

from relight.cli.corpus import documents
from relight.cli.demo import deploy
from relight.cli.encoder import encoder_files
from relight.cli.ingesting import ingest
from relight.net.kube import Kube
from relight.testing.platform import RunningPlatform, running_platform

# Question, and the modules that a Python programmer would accept as its answer.
QUESTIONS = (
    ("parse command line options", {"argparse", "optparse", "getopt"}),
    ("compute a checksum of a file", {"hashlib", "zlib"}),
    ("read and write comma separated files", {"csv"}),
    ("wait for many sockets at once", {"selectors", "select", "asyncore", "asyncio.selector_events"}),
    ("guess the type of a file from its name", {"mimetypes"}),
    ("read JSON data", {"json", "json.decoder"}),
    ("choose a random number", {"random", "secrets"}),
    ("compress data with gzip", {"gzip"}),
    ("send an email through a mail server", {"smtplib"}),
    ("make a temporary file", {"tempfile"}),
    ("mean and median of a list of numbers", {"statistics"}),
    ("rational number arithmetic", {"fractions"}),
    ("run a program and read its output", {"subprocess"}),
    ("write log messages", {"logging", "logging.handlers"}),
    ("read a zip archive", {"zipfile"}),
    ("keep a list sorted while inserting", {"bisect"}),
    ("compare two texts and show the differences", {"difflib"}),
    ("download a web page", {"urllib.request", "http.client"}),
    ("ask for a password without echo", {"getpass"}),
    ("work with IP addresses and networks", {"ipaddress"}),
)
NEEDED = 17
QUIET = Console(quiet=True)


def hits(stack: RunningPlatform, **asked: str) -> int:
    found = 0
    for question, expected in QUESTIONS:
        answer = post(f"{stack.functions}/default/retrieve", {"query": question, "k": 3, **asked})
        assert answer.status == 200, answer.data
        best = [hit["document"] for hit in answer.json()["hits"]]
        assert len(best) <= 3
        found += bool(expected & set(best))
    return found


def index(stack: RunningPlatform, only: set[str] | None = None) -> int:
    """Deploy the chain and send the documents through it; how many."""
    chosen = [document for document in documents() if only is None or document.name in only]
    with Kube.from_kubeconfig(stack.kubeconfig) as kube:
        deploy(kube, ROOT, QUIET)
        ingest(kube, stack.broker, chosen, QUIET)
    return len(chosen)


def apply_searching(stack: RunningPlatform) -> None:
    for name in ("rerank", "search"):
        stack.relight("apply", "-f", str(ROOT / f"manifests/base/{name}.yaml"))


def test_twenty_questions(stack: RunningPlatform) -> None:
    assert index(stack) > 300
    assert hits(stack) >= NEEDED


def test_one_url_searches_and_reranks(stack: RunningPlatform) -> None:
    """After the test above: its documents are there, and retrieve and embed are up or not, as it happens."""
    apply_searching(stack)
    url = f"{stack.functions}/default/search"
    plain = post(url, {"query": "ask for a password without echo", "k": 3}, x_request_id="r1")
    assert plain.status == 200, plain.data
    found = plain.json()
    assert (found["mode"], found["hits"][0]["document"], "degraded" in found) == ("hybrid", "getpass", False)
    better = post(url, {"query": "ask for a password without echo", "k": 3, "rerank": True, "timeout_ms": 60000}).json()
    assert (better["reranker"], len(better["hits"])) == ("late-interaction", 3)
    assert {"embed_ms", "search_ms", "words_ms", "rerank_ms"} <= better["timings"].keys()
    assert post(url, {"query": "", "k": 0}).status == 400


def test_questions_go_by_events_too(stack: RunningPlatform, tmp_path: Path) -> None:
    """retrieve, then rerank, each asked by an event; and search by a Broker, whose answer comes back as an event."""
    index(stack, only={"getpass", "argparse", "zipfile", "random"})
    apply_searching(stack)
    sample = json.loads((ROOT / "events/samples/dev.relight.query.v1.json").read_text())
    asked = {"query": "ask for a password without echo", "k": 4}
    headers = {f"ce-{name}": str(sample[name]) for name in ("specversion", "id", "source", "type")}
    seen = []
    data: Any = asked
    for function in ("retrieve", "rerank"):
        answer = post(f"{stack.functions}/default/{function}", data, **headers)
        assert answer.status == 200, (function, answer.data)
        data = valid(answer.headers["ce-type"], answer.data)
        seen.append((answer.headers["ce-type"], answer.headers["ce-source"], answer.headers["ce-causationid"]))
        headers = {name.lower(): value for name, value in answer.headers.items() if name.lower().startswith("ce-")}
        assert data["hits"][0]["document"] == "getpass"
    assert seen[0] == ("dev.relight.hits.v1", "/default/retrieve", sample["id"])
    assert seen[1][:2] == ("dev.relight.reranked.v1", "/default/rerank")
    assert (data["mode"], data["reranker"], len(data["hits"])) == ("hybrid", "late-interaction", 4)
    assert {"embed_ms", "rerank_ms"} <= data["timings"].keys()

    with heard() as (url, arrived):
        flow = tmp_path / "flow.yaml"
        to_search = {"ref": {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "search"}}
        flow.write_text(
            trigger("ask", {"type": "dev.relight.query.v1"}, to_search)
            + trigger("answers", {"type": "dev.relight.hits.v1", "source": "/default/search"}, {"uri": url})
        )
        stack.relight("apply", "-f", str(flow))
        sent = {f"ce-{name}": str(sample[name]) for name in ("specversion", "source", "type")}
        url = f"{stack.broker}/default/default"
        assert post(url, {**asked, "rerank": True}, **sent, ce_id="asked-by-event").status == 202
        came, body = arrived.get(timeout=60)
        found = valid(came["ce-type"], body)
        assert (came["ce-causationid"], found["reranker"]) == ("asked-by-event", "late-interaction")
        assert found["hits"][0]["document"] == "getpass"
        stack.relight("delete", "-f", str(flow))


def valid(kind: str, body: bytes) -> Any:
    """The JSON of an event, which is as the catalogue has its type."""
    data = json.loads(body)
    jsonschema.validate(data, json.loads((ROOT / f"events/schemas/{kind}.json").read_text()))
    return data


def trigger(name: str, exact: dict[str, str], subscriber: dict[str, Any]) -> str:
    spec = {"broker": "default", "filters": [{"exact": exact}], "subscriber": subscriber}
    kind = {"apiVersion": "eventing.knative.dev/v1", "kind": "Trigger"}
    return f"---\n{yaml.safe_dump({**kind, 'metadata': {'name': name}, 'spec': spec})}"


@contextmanager
def heard() -> Iterator[tuple[str, Queue[tuple[dict[str, str], bytes]]]]:
    """A listener on loopback, and what comes to it."""
    arrived: Queue[tuple[dict[str, str], bytes]] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            arrived.put(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(202)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", arrived
        finally:
            server.shutdown()
            thread.join(10)


def test_zeroed_weights_fail_the_twenty_questions(tmp_path: Path) -> None:
    """The test above must be able to fail: with a model that has lost its weights its dense side does.

    Its words alone answer most of the questions over the small corpus.
    """
    folder = tmp_path / "zeroed"
    folder.mkdir()
    files = encoder_files()
    (folder / "tokenizer.json").write_bytes(files["tokenizer.json"].read_bytes())
    (folder / "model.onnx").write_bytes(zeroed(files["model.onnx"].read_bytes()))
    home = tmp_path / "home"
    # A small corpus is enough to fail on, and one in which guessing would be easier.
    accepted = set().union(*(expected for _, expected in QUESTIONS))
    with running_platform(home, functions=ROOT / "functions") as platform:
        platform.relight("model", "push", str(folder), "minilm")
        index(platform, only=accepted)
        assert hits(platform, mode="dense") < NEEDED


def zeroed(model: bytes) -> bytes:
    """The model with all large initializers set to zero: the same graph, nothing learned."""
    data = bytearray(model)
    for start, end in fields(model, 0, len(model), 7):  # ModelProto.graph
        for first, last in fields(model, start, end, 5):  # GraphProto.initializer
            for begin, stop in fields(model, first, last, 9):  # TensorProto.raw_data
                if stop - begin >= 1024:
                    data[begin:stop] = bytes(stop - begin)
    return bytes(data)


def fields(data: bytes, at: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
    """Where the length-delimited fields of a protobuf message with a number begin and end."""
    while at < end:
        tag, at = varint(data, at)
        if tag & 7 == 0:
            _, at = varint(data, at)
        elif tag & 7 == 2:
            length, at = varint(data, at)
            if tag >> 3 == wanted:
                yield at, at + length
            at += length
        else:
            at += 8 if tag & 7 == 1 else 4


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at


def test_the_encoder_agrees_with_a_direct_run(stack: RunningPlatform) -> None:
    files = encoder_files()
    tokenizer = Tokenizer.from_file(str(files["tokenizer.json"]))
    tokenizer.no_padding()
    session = onnxruntime.InferenceSession(files["model.onnx"])
    apply_embed(stack)
    texts = ["parse command line options", "Ein Satz mit Umlauten: größer"]
    answer = post(f"{stack.functions}/default/embed/v1/embeddings", {"model": "minilm", "input": texts})
    assert answer.status == 200, answer.data
    for text, row in zip(texts, answer.json()["data"], strict=True):
        ids = np.array([tokenizer.encode(text).ids])
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        (states,) = session.run(None, feeds)
        mean = states[0].mean(axis=0)
        np.testing.assert_allclose(row["embedding"], mean / np.linalg.norm(mean), atol=1e-5)


def test_each_hop_is_an_event_of_its_own(stack: RunningPlatform) -> None:
    """split, embed and index answer one after another, each with its own id and source, linked to what caused it."""
    url = f"{stack.functions}/default"
    sample = json.loads((ROOT / "events/samples/dev.relight.document.v1.json").read_text())
    seen: list[tuple[str, str, str]] = []
    event, body = sample, json.dumps(sample["data"])
    headers = {f"ce-{name}": str(event[name]) for name in ("specversion", "id", "source", "type")}
    for function in ("split", "embed", "index"):
        answer = http.request(
            "POST", f"{url}/{function}", body=body, headers={**headers, "content-type": "application/json"}
        )
        assert answer.status == 200, (function, answer.data)
        answered = {name: value for name, value in answer.headers.items() if name.lower().startswith("ce-")}
        headers = {name.lower(): value for name, value in answered.items()}
        seen.append((headers["ce-type"], headers["ce-source"], headers["ce-id"]))
        assert headers["ce-causationid"]
        body = answer.data.decode()
    assert [one[0] for one in seen] == ["dev.relight.chunks.v1", "dev.relight.embedded.v1", "dev.relight.indexed.v1"]
    assert [one[1] for one in seen] == ["/default/split", "/default/embed", "/default/index"]
    assert len({sample["id"], *(one[2] for one in seen)}) == 4


def test_every_event_type_has_a_schema_and_a_sample() -> None:
    schemas = {one.stem: json.loads(one.read_text()) for one in (ROOT / "events/schemas").glob("*.json")}
    samples = {one.stem: json.loads(one.read_text()) for one in (ROOT / "events/samples").glob("*.json")}
    assert schemas.keys() == samples.keys()
    for name, sample in samples.items():
        assert sample["type"] == name
        jsonschema.validate(sample["data"], schemas[name])
