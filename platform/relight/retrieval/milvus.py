"""Milvus as a vector store: a server, or Milvus Lite in server mode.

The name of a collection is an alias; what it stands for is called ``NAME__1``, and after a rebuild ``NAME__2``. Both
sides of a hybrid search are in a server: the vector, and Milvus's own BM25 over the terms of ``analysis``; for Milvus
Lite the second is ``lexical``. A small collection, ``relight_versions``, has a token for each that every write changes.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from relight.base.errors import BadInput, RelightError
from relight.decide.indexing import KINDS, IndexPlan
from relight.retrieval.analysis import terms
from relight.retrieval.filters import passes
from relight.retrieval.lexical import LexicalIndex
from relight.retrieval.milvus_connection import Connection, NoCollection, expression, literal
from relight.retrieval.milvus_rows import BATCH, Copy, Rows, hit_of, row_of
from relight.retrieval.milvus_schema import FIELDS, create, create_versions, described_space, index_of, planned_search
from relight.retrieval.vectors import (
    DEFAULT_TENANT,
    MAX_K,
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

log = logging.getLogger("relight.retrieval.milvus")

VERSIONS = "relight_versions"
_OUTPUT = ["document", "chunk", "text", "metadata"]
_LITE_KINDS = ("FLAT", "HNSW", "IVF_FLAT")
"""Milvus Lite accepts IVF_PQ and DISKANN, and builds neither."""
_PART, _AT_ONCE = 250, 2
"""Rows of one request of a write, and how many of these at once: one is packed while the server has another."""
FLUSH_ROWS, LEAVE_ROWS = 5000, 1000
"""What Milvus Lite is let hold in memory: while rows are only written, and when the writer looks at them or goes."""
_LOOKED_AT = 200
"""Of the best, where Milvus Lite is not asked to filter: one in ten has to pass for ten answers."""
_PASSES = 20
"""Of a rebuild, however much is written meanwhile: the last one, after the switch, copies what is left."""


class Milvus:
    """One collection at a Milvus URI. Safe to call from several threads; after a restart of Milvus it works again.

    ``timeout``: seconds for each call, the connecting included.
    """

    def __init__(
        self, uri: str, collection: str = "documents", *, timeout: float = 10.0, cache: Path | None = None
    ) -> None:
        self.collection = collection_name(collection)
        self.uri = uri
        self._connection = Connection(uri, timeout)
        self._space: Space | None = None
        self._planned: dict[str, int] = {}
        self._versions_made = False
        self._unflushed = 0
        self._making = threading.Lock()
        self._rows = Rows(self._call, timeout)
        self._lexical = LexicalIndex(self.version, self._texts, self._fetch, cache)

    def ensure(self, space: Space) -> None:
        if self.space() is None:
            with self._making:
                self._call(lambda client: self._create(client, space))
        have = self.space()
        if have is not None:
            check_space(space, self.collection, have)

    def space(self) -> Space | None:
        """Only a collection that is there is remembered, until a call finds it gone."""
        if self._space is None:
            described = self._call(self._describe)
            if described is not None:
                self._space = described_space(described, self.collection, self.uri)
                self._planned = planned_search(described)
        return self._space

    def upsert(self, rows: Sequence[Row]) -> int:
        check_rows(rows, self.collection, self.space())
        last = {row.key: row for row in rows}
        some = list(last.items())
        parts = [some[at : at + _PART] for at in range(0, len(some), _PART)]
        if len(parts) == 1:
            return self._wrote(self._write(parts[0]))
        with ThreadPoolExecutor(_AT_ONCE) as beside:
            writes = [beside.submit(self._write, part) for part in parts]
            done, _ = wait(writes)
        # What was written is told even where another part failed: answers that were kept are stale by it.
        self._wrote(sum(write.result() for write in done if write.exception() is None))
        return sum(write.result() for write in writes)

    def search(self, vector: Sequence[float], query: Query) -> list[Hit]:
        space = self.space()
        if space is None:
            return []
        check_dimension(len(vector), self.collection, space)
        return self._search([float(value) for value in vector], "vector", query)

    def search_text(self, text: str, query: Query) -> list[Hit]:
        asked = " ".join(terms(text))
        if not asked or self.space() is None:
            return []
        if self._connection.is_lite:
            return self._lexical.search(text, query)
        return [hit for hit in self._search(asked, "sparse", query) if hit.score > 0]

    def delete(self, document: str, keep: Sequence[str] = (), tenant: str = DEFAULT_TENANT) -> None:
        if self.space() is None:
            return
        # What follows looks at every row, in Milvus Lite ten times longer at those that are in memory.
        self._flush(LEAVE_ROWS)
        where = f"tenant == {literal(tenant)} and document == {literal(document)}"
        found = self._rows.query(self.collection, where, ["id"])
        kept = {row_key(tenant, document, chunk) for chunk in keep}
        gone = [row["id"] for row in found if row["id"] not in kept]
        if gone:
            self._call(lambda client: client.delete(self.collection, ids=gone, timeout=self._timeout))
            self._bump()

    def scan(self, batch: int = 1000) -> Iterator[list[Row]]:
        if self.space() is None:
            return
        fields = [*_OUTPUT, "tenant", "vector"]
        for page in self._rows.pages(self.collection, fields, batch):
            yield [row_of(values) for values in page]

    def count(self) -> int:
        if self.space() is None:
            return 0
        return int(self._rows.query(self.collection, "", ["count(*)"])[0]["count(*)"])

    def version(self) -> str:
        if self.space() is None:
            return ""
        self._ensure_versions()
        found = self._rows.query(VERSIONS, f"id == {literal(self.collection)}", ["token"])
        return str(found[0]["token"]) if found else "new"

    def kinds(self) -> tuple[str, ...]:
        return _LITE_KINDS if self._connection.is_lite else KINDS

    def rebuild(self, plan: IndexPlan) -> None:
        """Copy into a collection with the new index, catch up with what was written meanwhile, switch the alias."""
        space = self.space()
        if space is None:
            raise BadInput(f"there is no collection {self.collection!r} at {self.uri} yet: index something first")
        if plan.kind not in self.kinds():
            raise BadInput(f"Milvus at {self.uri} does not build {plan.kind}; it builds {', '.join(self.kinds())}")
        old = self._physical()
        stem, _, number = old.rpartition("__")
        if not stem:
            raise BadInput(f"collection {self.collection!r} is no alias: it was not made by this version of relight")
        new = f"{stem}__{int(number) + 1}"

        def begin(client: Any) -> None:
            client.drop_collection(new, timeout=self._timeout)  # of a rebuild that was broken off
            create(client, new, space, plan, lite=self._connection.is_lite, timeout=self._timeout)

        self._call(begin)
        copy = Copy(self._rows, old, new, [*FIELDS, *(() if self._connection.is_lite else ("terms",))])
        # Each pass copies what changed during the one before it: soon there is nothing.
        for _ in range(_PASSES):
            if copy.catch_up() <= BATCH:
                break
        self._call(lambda client: client.alter_alias(new, self.collection, timeout=self._timeout))
        # Nobody writes to the old one any more; what came to it since the last pass follows.
        copy.catch_up(only_untouched=True)
        self._bump()
        self._call(lambda client: client.drop_collection(old, timeout=self._timeout))

    def standing(self) -> Standing | None:
        space = self.space()
        if space is None:
            return None
        kind, params = self._call(lambda client: index_of(client, self.collection))
        return Standing(self._physical(), self.count(), space, kind, params)

    def close(self) -> None:
        try:
            self._flush(LEAVE_ROWS)
        except RelightError as error:
            log.warning("milvus.not_flushed rows=%d error=%s: searches take longer", self._unflushed, error)
        self._connection.close()

    def _write(self, part: Sequence[tuple[str, Row]]) -> int:
        """Write those rows of the pairs of key and row that are not there as they are; how many these were."""
        there = self._rows.digests(self.collection, [key for key, _ in part])
        digests = {key: row.digest for key, row in part}
        new = [self._values(key, row, digests[key]) for key, row in part if there.get(key) != digests[key]]
        if new:
            # Milvus Lite keeps the newest row of a key either way; its upsert first reads what is there, to fill in
            # fields that are missing, and none are. A server would keep both.
            way = "insert" if self._connection.is_lite else "upsert"
            self._call(lambda client: getattr(client, way)(self.collection, new, timeout=self._timeout))
        return len(new)

    def _wrote(self, rows: int) -> int:
        if rows:
            self._bump()
            self._unflushed += rows
            self._flush(FLUSH_ROWS)
        return rows

    def _flush(self, rows: int) -> None:
        """Have Milvus Lite put what it holds in memory into an indexed segment, from so many rows on.

        It does so itself only at 128 MB, and until then a search looks at each of these rows: 30 ms a thousand. Each
        time costs a tenth of a second, so that a thousand rows at once would cost as much as writing them.
        """
        if self._unflushed >= rows and self._connection.is_lite:
            self._unflushed = 0
            self._call(lambda client: client.flush(self.collection, timeout=self._timeout))

    @property
    def _timeout(self) -> float:
        return self._connection.timeout

    def _call(self, call: Callable[[Any], T], collection: str | None = None) -> T:
        try:
            return self._connection.call(call, collection or self.collection)
        except NoCollection:
            self._space = None
            self._versions_made = False
            raise

    def _create(self, client: Any, space: Space) -> None:
        physical = f"{self.collection}__1"
        if not client.has_collection(physical, timeout=self._timeout):
            create(client, physical, space, None, lite=self._connection.is_lite, timeout=self._timeout)
        try:
            client.create_alias(physical, self.collection, timeout=self._timeout)
        except Exception:
            # Another replica may have made it at the same moment.
            if self._target(client) is None:
                raise

    def _describe(self, client: Any) -> dict[str, Any] | None:
        if self._target(client) is None and not client.has_collection(self.collection, timeout=self._timeout):
            return None
        described: dict[str, Any] = client.describe_collection(self.collection, timeout=self._timeout)
        return described

    def _target(self, client: Any) -> str | None:
        """What the alias stands for."""
        from pymilvus.exceptions import MilvusException

        try:
            return str(client.describe_alias(self.collection, timeout=self._timeout)["collection_name"])
        except MilvusException as error:
            if error.code in (2,):
                raise
            return None

    def _physical(self) -> str:
        return self._call(self._target) or self.collection

    def _values(self, key: str, row: Row, digest: str) -> dict[str, Any]:
        analysed = {} if self._connection.is_lite else {"terms": cut(" ".join(terms(row.text)))}
        return {
            "id": key,
            "tenant": row.tenant,
            "document": row.document,
            "chunk": row.chunk,
            "digest": digest,
            "text": cut(row.text),
            "vector": list(row.vector),
            "metadata": dict(row.metadata),
            **analysed,
        }

    def _effort(self, query: Query) -> dict[str, int]:
        """How far a search goes: what the index was planned with, and always beyond what is asked for.

        Each kind of index reads the one that it knows.
        """
        planned = {"ef": 128, "nprobe": 32, "search_list": 128, **self._planned}
        wanted = query.k + query.offset
        return {name: value if name == "nprobe" else max(value, 2 * wanted) for name, value in planned.items()}

    def _search(self, what: Any, field: str, query: Query) -> list[Hit]:
        wanted = query.k + query.offset
        if self._connection.is_lite and any(one.field != "document" for one in query.where):
            # Milvus Lite looks into the metadata of every row, 50 us each; the best few of all mostly hold enough that
            # pass, and these are the same.
            cheap = tuple(one for one in query.where if one.field == "document")
            some = replace(query, k=min(MAX_K, max(_LOOKED_AT, 4 * wanted)), offset=0, where=cheap)
            passing = [hit for hit in self._ask(what, field, some) if passes(hit.document, hit.metadata, query.where)]
            if len(passing) >= wanted:
                return passing[query.offset : wanted]
        return self._ask(what, field, query)

    def _ask(self, what: Any, field: str, query: Query) -> list[Hit]:
        found = self._call(
            lambda client: client.search(
                self.collection,
                [what],
                anns_field=field,
                limit=query.k + query.offset,
                filter=expression(query.where, query.tenant),
                search_params={"params": self._effort(query)} if field == "vector" else None,
                output_fields=_OUTPUT,
                consistency_level="Strong",
                timeout=self._timeout,
            )
        )
        hits = list(found[0]) if found else []
        return [hit_of(hit["entity"], float(hit["distance"])) for hit in hits[query.offset :]]

    def _texts(self) -> Iterator[tuple[str, str]]:
        for page in self._rows.pages(self.collection, ["text"], 5000):
            for row in page:
                yield row["id"], row["text"]

    def _fetch(self, keys: Sequence[str], query: Query) -> dict[str, Hit]:
        # Rows by their keys alone are looked up; with a filter beside them Milvus Lite reads all that there are.
        where = f"id in [{', '.join(map(literal, keys))}]"
        rows = self._rows.query(self.collection, where, ["id", "tenant", *_OUTPUT])
        hits = {row["id"]: hit_of(row, 0.0) for row in rows if row["tenant"] == query.tenant}
        return {key: hit for key, hit in hits.items() if passes(hit.document, hit.metadata, query.where)}

    def _bump(self) -> None:
        self._ensure_versions()
        row = {"id": self.collection, "token": uuid.uuid4().hex, "vector": [0.0, 1.0]}
        self._call(lambda client: client.upsert(VERSIONS, [row], timeout=self._timeout), VERSIONS)

    def _ensure_versions(self) -> None:
        if not self._versions_made:
            with self._making:
                self._call(lambda client: create_versions(client, VERSIONS, self._timeout))
            self._versions_made = True
