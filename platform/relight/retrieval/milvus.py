"""Milvus as a vector store: a server, or Milvus Lite in server mode. The only file that imports pymilvus.

pymilvus takes most of a second to import and opens gRPC channels, which do not survive a fork: it is imported by the
first call, not before, and connects then.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from relight.base.errors import BadInput, Failed, NotReady, Problem
from relight.retrieval.vectors import Hit, Row, Scalar

T = TypeVar("T")

TEXT_BYTES = 65535
"""The longest VARCHAR of Milvus. Longer texts are cut for the answer; their vectors are of the whole text."""
DOCUMENT_BYTES = 1024
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_COLLECTION = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_NO_COLLECTION = 100
_NOT_LOADED = 101
_UNREACHABLE = 2
_OUTPUT = ["document", "chunk", "text", "metadata"]
_HNSW = {"M": 16, "efConstruction": 200}
_CHANNEL = {
    # Without these a Milvus that is back is not seen for seconds: channels to one address share a growing backoff.
    "grpc.use_local_subchannel_pool": 1,
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.min_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 500,
}
_MAX_K = 16384
"""Milvus's own bound on the number of results."""


class Milvus:
    """One collection at a Milvus URI. Safe to call from several threads; after a restart of Milvus it works again.

    ``timeout``: seconds for each call, the connecting included.
    """

    def __init__(self, uri: str, collection: str = "documents", *, timeout: float = 10.0) -> None:
        if not _COLLECTION.fullmatch(collection):
            raise BadInput(f"{collection!r} is no name for a collection: expected letters, digits and '_'")
        self.uri = uri
        self.collection = collection
        self.timeout = timeout
        self._client: Any = None
        self._dimension: int | None = None
        self._connecting = threading.Lock()

    def ensure(self, dimension: int) -> None:
        if self._known_dimension() is None:
            self._call(lambda client: self._create(client, dimension))
        self._check(dimension)

    def upsert(self, rows: Sequence[Row]) -> int:
        if not rows:
            return 0
        for row in rows:
            self._check(len(row.vector))
        values = [
            {
                "id": _key(row.document, row.chunk),
                "document": _bounded(row.document),
                "chunk": _bounded(row.chunk),
                "text": _cut(row.text),
                "vector": [float(value) for value in row.vector],
                "metadata": dict(row.metadata),
            }
            for row in rows
        ]
        self._call(lambda client: client.upsert(self.collection, values, timeout=self.timeout))
        return len(values)

    def search(self, vector: Sequence[float], k: int, where: Mapping[str, Scalar] | None = None) -> list[Hit]:
        if not 1 <= k <= _MAX_K:
            raise BadInput(f"k: expected 1 to {_MAX_K}, got {k}", param="k")
        expression = _expression(where or {})
        if self._known_dimension() is None:
            return []
        self._check(len(vector))
        found = self._call(
            lambda client: client.search(
                self.collection,
                [[float(value) for value in vector]],
                limit=k,
                filter=expression,
                output_fields=_OUTPUT,
                consistency_level="Strong",
                timeout=self.timeout,
            )
        )
        return [
            Hit(
                hit["entity"]["document"],
                hit["entity"]["chunk"],
                hit["entity"]["text"],
                float(hit["distance"]),
                hit["entity"].get("metadata") or {},
            )
            for hit in (found[0] if found else [])
        ]

    def delete(self, document: str, keep: Sequence[str] = ()) -> None:
        if self._known_dimension() is None:
            return
        expression = f"document == {_literal(document)}"
        if keep:
            expression += f" and id not in [{', '.join(_literal(_key(document, chunk)) for chunk in keep)}]"
        self._call(lambda client: client.delete(self.collection, filter=expression, timeout=self.timeout))

    def count(self) -> int:
        if self._known_dimension() is None:
            return 0
        found = self._call(
            lambda client: client.query(
                self.collection,
                filter="",
                output_fields=["count(*)"],
                consistency_level="Strong",
                timeout=self.timeout,
            )
        )
        return int(found[0]["count(*)"])

    def close(self) -> None:
        with self._connecting:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _create(self, client: Any, dimension: int) -> None:
        from pymilvus import DataType, MilvusClient

        schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=64)
        schema.add_field("document", DataType.VARCHAR, max_length=DOCUMENT_BYTES)
        schema.add_field("chunk", DataType.VARCHAR, max_length=DOCUMENT_BYTES)
        schema.add_field("text", DataType.VARCHAR, max_length=TEXT_BYTES)
        schema.add_field("metadata", DataType.JSON)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dimension)
        index = MilvusClient.prepare_index_params()
        index.add_index("vector", index_type="HNSW", metric_type="COSINE", params=_HNSW)
        try:
            client.create_collection(
                self.collection, schema=schema, index_params=index, consistency_level="Strong", timeout=self.timeout
            )
        except Exception:
            # Another replica may have made it at the same moment.
            if not client.has_collection(self.collection, timeout=self.timeout):
                raise

    def _known_dimension(self) -> int | None:
        """The collection's dimension; None where there is no collection. Only a dimension is remembered."""
        if self._dimension is None:
            described = self._call(self._describe)
            if described is not None:
                fields = {field["name"]: field for field in described["fields"]}
                if "vector" not in fields or not {"id", *_OUTPUT} <= set(fields):
                    raise BadInput(
                        f"collection {self.collection!r} at {self.uri} was not made by relight: its fields differ"
                    )
                self._dimension = int(fields["vector"]["params"]["dim"])
        return self._dimension

    def _describe(self, client: Any) -> dict[str, Any] | None:
        if not client.has_collection(self.collection, timeout=self.timeout):
            return None
        described: dict[str, Any] = client.describe_collection(self.collection, timeout=self.timeout)
        return described

    def _check(self, dimension: int) -> None:
        have = self._known_dimension()
        if have is not None and have != dimension:
            raise BadInput(
                f"a vector of {dimension} dimensions does not fit collection {self.collection!r}, which has {have}",
                problems=[Problem("vector", f"expected {have} dimensions, got {dimension}")],
            )

    def _call(self, call: Callable[[Any], T]) -> T:
        """Run ``call`` with the client; what pymilvus raises becomes one of our sentences."""
        from grpc import RpcError
        from pymilvus.exceptions import MilvusException

        def attempt(repeated: bool) -> T:
            client = self._connect()
            try:
                return call(client)
            except MilvusException as error:
                if error.code != _NOT_LOADED or repeated:
                    raise
                # A collection has to be loaded to be searched, and Milvus Lite forgets that when it starts again.
                client.load_collection(self.collection, timeout=self.timeout)
                return attempt(repeated=True)

        try:
            return attempt(repeated=False)
        except MilvusException as error:
            if error.code == _NO_COLLECTION:
                self._dimension = None  # dropped by somebody since we looked
                gone = f"collection {self.collection!r} at {self.uri} was dropped: try again"
                raise NotReady(gone, retry_after=1) from error
            if error.code != _UNREACHABLE:
                raise Failed(f"Milvus at {self.uri} refused a request: {_first_line(error)}") from error
            raise self._silent(error) from error
        except RpcError as error:
            raise self._silent(error) from error

    def _silent(self, error: Exception) -> NotReady:
        return NotReady(f"Milvus at {self.uri} does not answer: {_first_line(error)}", retry_after=1)

    def _connect(self) -> Any:
        with self._connecting:
            if self._client is None:
                # Its own log writes a traceback for every refused call; each becomes one sentence of ours instead.
                logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
                from pymilvus import MilvusClient

                self._client = MilvusClient(self.uri, timeout=self.timeout, dedicated=True, grpc_options=_CHANNEL)
            return self._client


def _key(document: str, chunk: str) -> str:
    """The primary key of a chunk: of one length, and the same for the same (document, chunk)."""
    return hashlib.sha256(f"{len(document)}:{document}{chunk}".encode()).hexdigest()[:40]


def _expression(where: Mapping[str, Scalar]) -> str:
    """A filter of Milvus. Names come from a short alphabet and values are written as literals: none can be syntax.

    Milvus Lite does not know Milvus's own filter parameters.
    """
    problems, terms = [], []
    for name, value in where.items():
        if not _FIELD.fullmatch(name):
            problems.append(Problem(f"filter.{name}", "expected letters, digits, '_', '.' and '-' in a field's name"))
        elif not isinstance(value, str | int | float):
            problems.append(Problem(f"filter.{name}", "expected a string, a number or a boolean"))
        else:
            field = name if name == "document" else f'metadata["{name}"]'
            terms.append(f"{field} == {_literal(value)}")
    if problems:
        raise BadInput.of(problems)
    return " and ".join(terms)


def _literal(value: Scalar) -> str:
    """A literal of Milvus's expressions: its strings know JSON's escapes but for backslash-u."""
    if isinstance(value, str) and re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f]", value):
        raise BadInput(f"{value!r} cannot be looked for: it holds control characters")
    return json.dumps(value, ensure_ascii=False)


def _bounded(text: str) -> str:
    if len(text.encode()) > DOCUMENT_BYTES:
        raise BadInput(f"{text[:40]!r}… is too long for a name: at most {DOCUMENT_BYTES} bytes")
    return text


def _cut(text: str) -> str:
    return text.encode()[:TEXT_BYTES].decode(errors="ignore")


def _first_line(error: Exception) -> str:
    message = str(getattr(error, "message", "") or error)
    return message.splitlines()[0] if message else type(error).__name__
