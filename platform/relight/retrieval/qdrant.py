"""Qdrant as a vector store: a server by URL, or the client's own store in a folder, which one process may have open.

A collection has two vectors for each chunk: ``dense``, and ``words``, the sparse one of BM25, whose rarity (IDF) Qdrant
computes itself. The collection's metadata, which servers have from 1.16 on, hold the model and a version that every
write changes.
"""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from relight.base.errors import BadInput, Failed, NotReady
from relight.decide.indexing import IndexPlan
from relight.retrieval.analysis import terms
from relight.retrieval.filters import Condition
from relight.retrieval.vectors import (
    DEFAULT_TENANT,
    Hit,
    Query,
    Row,
    Space,
    Standing,
    check_dimension,
    check_rows,
    check_space,
    collection_name,
    cut,
    row_key,
)

T = TypeVar("T")

_K1, _B = 1.2, 0.75
_USUAL_TERMS = 100
"""The mean length that BM25 compares with: of chunks of 120 words. Qdrant keeps no mean of the collection's."""
_BATCH = 500
_DISTANCE = {"cosine": "COSINE", "ip": "DOT"}
_EXACT = 20_000
"""KiB of vectors in a segment from which Qdrant builds HNSW: above any that FLAT is planned for it is never."""


class Qdrant:
    """One collection of Qdrant. Safe to call from several threads. ``where``: a URL, or a folder's path."""

    def __init__(self, where: str, collection: str = "documents", *, timeout: float = 10.0) -> None:
        self.collection = collection_name(collection)
        self.where = where
        self.timeout = timeout
        self._client: Any = None
        # The store in a folder is not made for several threads; a server's client is, and needs no lock.
        self._lock = threading.RLock()
        self._local = "://" not in where
        self._space: Space | None = None

    def ensure(self, space: Space) -> None:
        if self.space() is None:
            self._call(lambda client: self._create(client, space))
        have = self.space()
        if have is not None:
            check_space(space, self.collection, have)

    def space(self) -> Space | None:
        if self._space is None:

            def read(client: Any) -> Space | None:
                if not client.collection_exists(self.collection):
                    return None
                config = client.get_collection(self.collection).config
                vectors = config.params.vectors
                if not isinstance(vectors, dict) or "dense" not in vectors:
                    raise BadInput(f"collection {self.collection!r} was not made by relight: its vectors differ")
                said = config.metadata or {}
                return Space(int(vectors["dense"].size), said.get("model"), str(said.get("metric") or "cosine"))

            self._space = self._call(read)
        return self._space

    def upsert(self, rows: Sequence[Row]) -> int:
        check_rows(rows, self.collection, self.space())
        written = 0
        last = list({row.key: row for row in rows}.items())
        for at in range(0, len(last), _BATCH):
            some = dict(last[at : at + _BATCH])
            there = self._digests(list(some))
            new = [row for key, row in some.items() if there.get(_id(key)) != row.digest]
            if new:
                self._call(lambda client, new=new: client.upsert(self.collection, _points(new), wait=True))  # type: ignore[misc]
                written += len(new)
        if written:
            self._bump()
        return written

    def search(self, vector: Sequence[float], query: Query) -> list[Hit]:
        space = self.space()
        if space is None:
            return []
        check_dimension(len(vector), self.collection, space)
        return self._search([float(value) for value in vector], "dense", query)

    def search_text(self, text: str, query: Query) -> list[Hit]:
        counted = Counter(map(_number, terms(text)))
        if not counted or self.space() is None:
            return []
        from qdrant_client import models

        asked = models.SparseVector(indices=list(counted), values=[float(count) for count in counted.values()])
        return [hit for hit in self._search(asked, "words", query) if hit.score > 0]

    def delete(self, document: str, keep: Sequence[str] = (), tenant: str = DEFAULT_TENANT) -> None:
        if self.space() is None:
            return
        from qdrant_client import models

        chosen = _filter([Condition("document", "eq", (document,))], tenant)
        if keep:
            ids: list[Any] = [_id(row_key(tenant, document, chunk)) for chunk in keep]
            chosen.must_not = [models.HasIdCondition(has_id=ids)]

        def remove(client: Any) -> bool:
            if not client.count(self.collection, count_filter=chosen, exact=True).count:
                return False
            client.delete(self.collection, models.FilterSelector(filter=chosen), wait=True)
            return True

        if self._call(remove):
            self._bump()

    def scan(self, batch: int = 1000) -> Iterator[list[Row]]:
        if self.space() is None:
            return
        offset: Any = None
        while True:
            points, offset = self._call(
                lambda client, offset=offset: client.scroll(  # type: ignore[misc]
                    self.collection, limit=batch, offset=offset, with_payload=True, with_vectors=["dense"]
                )
            )
            if points:
                yield [_row(point) for point in points]
            if offset is None:
                return

    def count(self) -> int:
        if self.space() is None:
            return 0
        return int(self._call(lambda client: client.count(self.collection, exact=True).count))

    def version(self) -> str:
        if self.space() is None:
            return ""
        return str((self._call(lambda client: client.get_collection(self.collection)).config.metadata or {})["version"])

    def kinds(self) -> tuple[str, ...]:
        return ("FLAT",) if self._local else ("FLAT", "HNSW")

    def rebuild(self, plan: IndexPlan) -> None:
        """Tell the server the new parameters: it builds segments anew and swaps each in when it is done."""
        if self.space() is None:
            raise BadInput(f"there is no collection {self.collection!r} yet: index something first")
        if plan.kind not in self.kinds():
            raise BadInput(f"Qdrant at {self.where} does not build {plan.kind}; it builds {', '.join(self.kinds())}")
        if self._local:
            return
        from qdrant_client import models

        threshold = _EXACT if plan.kind == "HNSW" else 0  # 0: never
        self._call(
            lambda client: client.update_collection(
                self.collection,
                hnsw_config=models.HnswConfigDiff(m=plan.build.get("M"), ef_construct=plan.build.get("efConstruction")),
                optimizers_config=models.OptimizersConfigDiff(indexing_threshold=threshold),
            )
        )

    def standing(self) -> Standing | None:
        space = self.space()
        if space is None:
            return None
        config = self._call(lambda client: client.get_collection(self.collection)).config
        exact = self._local or config.optimizer_config.indexing_threshold == 0
        params = {} if exact else {"M": config.hnsw_config.m, "efConstruction": config.hnsw_config.ef_construct}
        return Standing(self.collection, self.count(), space, "FLAT" if exact else "HNSW", params)

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _create(self, client: Any, space: Space) -> None:
        from qdrant_client import models

        try:
            client.create_collection(
                self.collection,
                vectors_config={
                    "dense": models.VectorParams(
                        size=space.dimension, distance=models.Distance[_DISTANCE[space.metric]]
                    )
                },
                sparse_vectors_config={"words": models.SparseVectorParams(modifier=models.Modifier.IDF)},
                metadata={"model": space.model, "metric": space.metric, "version": uuid.uuid4().hex},
            )
        except Exception:
            # Another replica may have made it at the same moment.
            if not client.collection_exists(self.collection):
                raise
            return
        if not self._local:
            tenant = models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, is_tenant=True)
            client.create_payload_index(self.collection, "tenant", tenant)
            client.create_payload_index(self.collection, "document", models.PayloadSchemaType.KEYWORD)

    def _search(self, what: Any, using: str, query: Query) -> list[Hit]:
        found = self._call(
            lambda client: client.query_points(
                self.collection,
                query=what,
                using=using,
                query_filter=_filter(query.where, query.tenant),
                limit=query.k,
                offset=query.offset,
                with_payload=True,
            )
        ).points
        return [
            Hit(one.payload["document"], one.payload["chunk"], one.payload["text"], float(one.score), _metadata(one))
            for one in found
        ]

    def _digests(self, keys: Sequence[str]) -> dict[str, str]:
        found = self._call(
            lambda client: client.retrieve(self.collection, [_id(key) for key in keys], with_payload=["digest"])
        )
        return {str(point.id): point.payload["digest"] for point in found}

    def _bump(self) -> None:
        version = {"version": uuid.uuid4().hex}
        self._call(lambda client: client.update_collection(self.collection, metadata=version))

    def _call(self, call: Callable[[Any], T]) -> T:
        from grpc import RpcError
        from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

        try:
            client = self._connect()
            if self._local:
                with self._lock:
                    return call(client)
            return call(client)
        except UnexpectedResponse as error:
            if error.status_code == 404:
                self._space = None
                raise NotReady(f"collection {self.collection!r} was dropped: try again", retry_after=1) from error
            raise Failed(f"Qdrant at {self.where} refused a request: {_first_line(error)}") from error
        except (ResponseHandlingException, RpcError, OSError) as error:
            raise NotReady(f"Qdrant at {self.where} does not answer: {_first_line(error)}", retry_after=1) from error

    def _connect(self) -> Any:
        with self._lock:
            if self._client is None:
                from qdrant_client import QdrantClient

                if self._local:
                    self._client = QdrantClient(path=self.where, force_disable_check_same_thread=True)
                else:
                    self._client = QdrantClient(
                        url=self.where, timeout=max(1, int(self.timeout)), check_compatibility=False
                    )
            return self._client


def _points(rows: Sequence[Row]) -> list[Any]:
    from qdrant_client import models

    return [
        models.PointStruct(
            id=_id(row.key),
            vector={"dense": [float(value) for value in row.vector], "words": _weights(row.text)},
            payload={
                "tenant": row.tenant,
                "document": row.document,
                "chunk": row.chunk,
                "digest": row.digest,
                "text": cut(row.text),
                "metadata": dict(row.metadata),
                # A path cannot name a field with dots in it; for filters each field stands alone, under a name without.
                "fields": {_field(name): value for name, value in row.metadata.items()},
            },
        )
        for row in rows
    ]


def _weights(text: str) -> Any:
    """BM25 of a text but for the rarity of the terms, which Qdrant multiplies with."""
    from qdrant_client import models

    counted = Counter(map(_number, terms(text)))
    long = _K1 * (1 - _B + _B * counted.total() / _USUAL_TERMS)
    weights = [count * (_K1 + 1) / (count + long) for count in counted.values()]
    return models.SparseVector(indices=list(counted), values=weights)


def _number(term: str) -> int:
    """A term as a dimension: 31 bits of a hash; among 100,000 terms one pair in two thousand shares one."""
    return int.from_bytes(hashlib.blake2b(term.encode(), digest_size=4).digest(), "big") & 0x7FFFFFFF


def _id(key: str) -> str:
    return str(uuid.UUID(key[:32]))


def _field(name: str) -> str:
    return name.encode(errors="replace").hex()


def _filter(where: Sequence[Condition], tenant: str) -> Any:
    from qdrant_client import models

    must: list[Any] = [models.FieldCondition(key="tenant", match=models.MatchValue(value=tenant))]
    for one in where:
        key = "document" if one.field == "document" else f"fields.{_field(one.field)}"
        if one.op in ("eq", "in"):
            any_of: list[Any] = [_equal(key, value) for value in one.values]
            must.append(models.Filter(should=any_of))
        else:
            bound: dict[str, Any] = {one.op: one.value}
            must.append(models.FieldCondition(key=key, range=models.Range(**bound)))
    return models.Filter(must=must)


def _equal(key: str, value: Any) -> Any:
    from qdrant_client import models

    if isinstance(value, str | bool):
        return models.FieldCondition(key=key, match=models.MatchValue(value=value))
    # A number, as JSON compares it: 5 is 5.0.
    return models.FieldCondition(key=key, range=models.Range(gte=value, lte=value))


def _row(point: Any) -> Row:
    payload = point.payload
    vector = point.vector["dense"] if isinstance(point.vector, dict) else point.vector
    names = payload["document"], payload["chunk"], payload["text"]
    return Row(*names, vector, _metadata(point), payload["tenant"])


def _metadata(point: Any) -> dict[str, Any]:
    return dict(point.payload.get("metadata") or {})


def _first_line(error: Exception) -> str:
    message = str(error).strip()
    return message.splitlines()[0] if message else type(error).__name__
