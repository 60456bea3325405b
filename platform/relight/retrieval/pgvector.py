"""PostgreSQL with the extension pgvector as a vector store.

A table for each collection, and one, ``relight_collections``, that says what vectors each holds and carries a version
that every write changes, in the transaction that writes. All values travel as parameters, never as text of a statement.
The words' side is ``lexical``: PostgreSQL's own ranking is not BM25.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from relight.base.errors import BadInput, Failed, NotReady
from relight.decide.indexing import IndexPlan
from relight.retrieval.filters import Condition
from relight.retrieval.lexical import LexicalIndex
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

_OPERATORS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_DISTANCE = {"cosine": ("<=>", "vector_cosine_ops"), "ip": ("<#>", "vector_ip_ops")}
_COLUMNS = "document, chunk, text, metadata"
_PROBES = "32"
"""Lists of an IVF_FLAT index that a search looks into; pgvector's own default is one."""
_MAX_INDEXED = 2000
"""Dimensions up to which pgvector builds an index over its type ``vector``."""


class PgVector:
    """One collection of a PostgreSQL database. Safe to call from several threads; reconnects after a restart.

    ``timeout``: seconds for connecting and for each statement.
    """

    def __init__(
        self, url: str, collection: str = "documents", *, timeout: float = 10.0, cache: Path | None = None
    ) -> None:
        self.collection = collection_name(collection)
        self.url = url
        self.timeout = timeout
        self._table = f"relight_{collection}".lower()
        self._connection: Any = None
        self._lock = threading.RLock()
        self._space: Space | None = None
        self._lexical = LexicalIndex(self.version, self._texts, self._fetch, cache)

    def ensure(self, space: Space) -> None:
        if self.space() is None:
            self._run(lambda cursor: self._create(cursor, space))
        have = self.space()
        if have is not None:
            check_space(space, self.collection, have)

    def space(self) -> Space | None:
        if self._space is None:

            def read(cursor: Any) -> Space | None:
                if cursor.execute("SELECT to_regclass('relight_collections')").fetchone()[0] is None:
                    return None
                statement = "SELECT dimension, model, metric FROM relight_collections WHERE name = %s"
                found = cursor.execute(statement, [self.collection]).fetchone()
                return Space(*found) if found else None

            self._space = self._run(read)
        return self._space

    def upsert(self, rows: Sequence[Row]) -> int:
        check_rows(rows, self.collection, self.space())
        if not rows:
            return 0
        from psycopg.types.json import Jsonb

        values = [
            (row.key, _text(row.tenant), *_named(row), row.digest, Jsonb(dict(row.metadata)), _vector(row.vector))
            for row in {row.key: row for row in rows}.values()
        ]
        statement = (
            f"INSERT INTO {self._table} AS old (id, tenant, document, chunk, text, digest, metadata, vector) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s::vector) ON CONFLICT (id) DO UPDATE SET digest = excluded.digest, "
            "text = excluded.text, metadata = excluded.metadata, vector = excluded.vector "
            "WHERE old.digest <> excluded.digest"
        )

        def write(cursor: Any) -> int:
            cursor.executemany(statement, values)
            return self._bumped(cursor, cursor.rowcount)

        return self._run(write)

    def search(self, vector: Sequence[float], query: Query) -> list[Hit]:
        space = self.space()
        if space is None:
            return []
        check_dimension(len(vector), self.collection, space)
        operator, _ = _DISTANCE[space.metric]
        where, values = _where(query.where, query.tenant)
        score = (
            f"1 - (vector {operator} %s::vector)" if space.metric == "cosine" else f"-(vector {operator} %s::vector)"
        )
        statement = (
            f"SELECT {_COLUMNS}, {score} FROM {self._table} WHERE {where} "
            f"ORDER BY vector {operator} %s::vector LIMIT %s OFFSET %s"
        )
        asked = _vector(vector)
        wanted = query.k + query.offset

        def read(cursor: Any) -> list[Any]:
            reach = [str(min(1000, max(100, 2 * wanted))), _PROBES]
            cursor.execute(
                "SELECT set_config('hnsw.ef_search', %s, true), set_config('ivfflat.probes', %s, true)", reach
            )
            bound = [asked, *values, asked, query.k, query.offset]
            found = list(cursor.execute(statement, bound).fetchall())
            if len(found) < query.k:
                # A scan of the index ends after so many rows, whether or not they pass the filter: the rest is looked
                # for among all of the tenant's.
                cursor.execute("SELECT set_config('enable_indexscan', 'off', true)")
                found = list(cursor.execute(statement, bound).fetchall())
            return found

        return [Hit(row[0], row[1], row[2], float(row[4]), row[3]) for row in self._run(read)]

    def search_text(self, text: str, query: Query) -> list[Hit]:
        return self._lexical.search(text, query) if self.space() is not None else []

    def delete(self, document: str, keep: Sequence[str] = (), tenant: str = DEFAULT_TENANT) -> None:
        if self.space() is None:
            return
        kept = [row_key(tenant, document, chunk) for chunk in keep]
        statement = f"DELETE FROM {self._table} WHERE tenant = %s AND document = %s AND id <> ALL(%s)"

        def write(cursor: Any) -> None:
            cursor.execute(statement, [_text(tenant), _text(document), kept])
            self._bumped(cursor, cursor.rowcount)

        self._run(write)

    def scan(self, batch: int = 1000) -> Iterator[list[Row]]:
        if self.space() is None:
            return
        for page in self._pages(f"{_COLUMNS}, tenant, vector::real[]", batch):
            yield [Row(one[1], one[2], one[3], one[6], one[4], one[5]) for one in page]

    def count(self) -> int:
        if self.space() is None:
            return 0
        return int(self._run(lambda cursor: cursor.execute(f"SELECT count(*) FROM {self._table}").fetchone()[0]))

    def version(self) -> str:
        if self.space() is None:
            return ""
        statement = "SELECT version FROM relight_collections WHERE name = %s"
        return str(self._run(lambda cursor: cursor.execute(statement, [self.collection]).fetchone()[0]))

    def kinds(self) -> tuple[str, ...]:
        return ("FLAT", "HNSW", "IVF_FLAT")

    def rebuild(self, plan: IndexPlan) -> None:
        """Build the index CONCURRENTLY beside the old one, then drop that; no statement waits."""
        space = self.space()
        if space is None:
            raise BadInput(f"there is no collection {self.collection!r} in this database yet: index something first")
        if plan.kind not in self.kinds():
            raise BadInput(f"pgvector does not build {plan.kind}; it builds {', '.join(self.kinds())}")
        if plan.kind != "FLAT" and space.dimension > _MAX_INDEXED:
            raise BadInput(f"pgvector indexes at most {_MAX_INDEXED} dimensions, and these are {space.dimension}")
        old = [name for name, _ in self._indexes()]
        new = f"{self._table}_{uuid.uuid4().hex[:8]}"
        if plan.kind != "FLAT":
            self._run(
                lambda cursor: cursor.execute(_index(new, self._table, space, plan, concurrently=True)), alone=True
            )
        for name in old:
            self._run(lambda cursor, name=name: cursor.execute(f"DROP INDEX CONCURRENTLY {name}"), alone=True)  # type: ignore[misc]

    def standing(self) -> Standing | None:
        space = self.space()
        if space is None:
            return None
        found = self._indexes()
        definition = found[0][1] if found else ""
        kind = "HNSW" if "USING hnsw" in definition else "IVF_FLAT" if "USING ivfflat" in definition else "FLAT"
        options = definition.partition(" WITH (")[2].rstrip(")")
        params = dict(one.strip().split("=") for one in options.split(",")) if options else {}
        return Standing(
            self._table, self.count(), space, kind, {name: value.strip("'") for name, value in params.items()}
        )

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _create(self, cursor: Any, space: Space) -> None:
        # One replica at a time: CREATE … IF NOT EXISTS is no protection against another that does the same.
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext('relight'))")
        cursor.execute("CREATE EXTENSION IF NOT EXISTS vector")
        cursor.execute(
            "CREATE TABLE IF NOT EXISTS relight_collections (name text PRIMARY KEY, dimension int NOT NULL, "
            "model text, metric text NOT NULL, version text NOT NULL)"
        )
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {self._table} (id text PRIMARY KEY, tenant text NOT NULL, document text "
            "NOT NULL, chunk text NOT NULL, digest text NOT NULL, text text NOT NULL, metadata jsonb NOT NULL, "
            f"vector vector({int(space.dimension)}) NOT NULL)"
        )
        cursor.execute(f"CREATE INDEX IF NOT EXISTS {self._table}_document ON {self._table} (tenant, document)")
        if space.dimension <= _MAX_INDEXED and not self._indexes_in(cursor):
            plan = IndexPlan("HNSW", {"M": 16, "efConstruction": 200})
            cursor.execute(_index(f"{self._table}_vector", self._table, space, plan, concurrently=False))
        cursor.execute(
            "INSERT INTO relight_collections VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
            [self.collection, space.dimension, space.model, space.metric, uuid.uuid4().hex],
        )

    def _bumped(self, cursor: Any, changed: int) -> int:
        if changed:
            statement = "UPDATE relight_collections SET version = %s WHERE name = %s"
            cursor.execute(statement, [uuid.uuid4().hex, self.collection])
        return changed

    def _indexes(self) -> list[tuple[str, str]]:
        return self._run(self._indexes_in)

    def _indexes_in(self, cursor: Any) -> list[tuple[str, str]]:
        statement = "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = %s AND indexdef ~ 'hnsw|ivfflat'"
        return [(name, text) for name, text in cursor.execute(statement, [self._table]).fetchall()]

    def _texts(self) -> Iterator[tuple[str, str]]:
        for page in self._pages("text", 5000):
            for one in page:
                yield one[0], one[1]

    def _fetch(self, keys: Sequence[str], query: Query) -> dict[str, Hit]:
        where, values = _where(query.where, query.tenant)
        statement = f"SELECT id, {_COLUMNS} FROM {self._table} WHERE id = ANY(%s) AND {where}"
        found = self._run(lambda cursor: cursor.execute(statement, [list(keys), *values]).fetchall())
        return {one[0]: Hit(one[1], one[2], one[3], 0.0, one[4]) for one in found}

    def _pages(self, columns: str, batch: int) -> Iterator[list[Any]]:
        statement = f"SELECT id, {columns} FROM {self._table} WHERE id > %s ORDER BY id LIMIT %s"
        last = ""
        while True:
            found = self._run(
                lambda cursor, last=last: cursor.execute(statement, [last, batch]).fetchall()  # type: ignore[misc]
            )
            if not found:
                return
            last = found[-1][0]
            yield found

    def _run(self, work: Callable[[Any], T], *, alone: bool = False) -> T:
        """Do ``work`` in a transaction of its own; ``alone``: outside of one, as statements CONCURRENTLY need it."""
        import psycopg

        with self._lock:
            for attempt in (1, 2):
                fresh = self._connection is None
                try:
                    connection = self._connect()
                    if alone:
                        with psycopg.connect(self.url, autocommit=True) as own, own.cursor() as cursor:
                            return work(cursor)
                    with connection.transaction(), connection.cursor() as cursor:
                        return work(cursor)
                except psycopg.errors.UndefinedTable as error:
                    self._space = None
                    gone = f"collection {self.collection!r} was dropped: try again"
                    raise NotReady(gone, retry_after=1) from error
                except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                    self.close()
                    # One that was kept may have been closed by the server meanwhile; what was begun was rolled back.
                    if fresh or attempt == 2:
                        raise NotReady(f"PostgreSQL does not answer: {_first_line(error)}", retry_after=1) from error
                except psycopg.Error as error:
                    raise Failed(f"PostgreSQL refused a request: {_first_line(error)}") from error
        raise AssertionError("the loop above ends by returning or raising")

    def _connect(self) -> Any:
        import psycopg

        if self._connection is None:
            milliseconds = int(self.timeout * 1000)
            self._connection = psycopg.connect(
                self.url,
                autocommit=True,
                connect_timeout=max(2, int(self.timeout)),
                options=f"-c statement_timeout={milliseconds}",
            )
        return self._connection


def _index(name: str, table: str, space: Space, plan: IndexPlan, *, concurrently: bool) -> str:
    _, operators = _DISTANCE[space.metric]
    how = {
        "HNSW": ("hnsw", {"m": plan.build.get("M", 16), "ef_construction": plan.build.get("efConstruction", 200)}),
        "IVF_FLAT": ("ivfflat", {"lists": plan.build.get("nlist", 100)}),
    }
    method, options = how[plan.kind]
    said = ", ".join(f"{key} = {int(value)}" for key, value in options.items())
    beside = "CONCURRENTLY " if concurrently else ""
    return f"CREATE INDEX {beside}{name} ON {table} USING {method} (vector {operators}) WITH ({said})"


def _where(where: Sequence[Condition], tenant: str) -> tuple[str, list[Any]]:
    """A condition with a place for each value, and the values."""
    from psycopg.types.json import Jsonb

    terms, values = ["tenant = %s"], [_text(tenant)]
    found: list[Any] = list(values)
    for one in where:
        if one.field == "document":
            terms.append("document = ANY(%s)")
            found.append([str(value) for value in one.values])
        elif one.op in _OPERATORS:
            # Of text, or of a field that is not there, the comparison is with null: never true.
            number = "(CASE WHEN jsonb_typeof(metadata -> %s) = 'number' THEN (metadata ->> %s)::numeric END)"
            terms.append(f"{number} {_OPERATORS[one.op]} %s")
            found += [one.field, one.field, one.value]
        else:
            terms.append("metadata -> %s = ANY(%s)")
            found += [one.field, [Jsonb(value) for value in one.values]]
    return " AND ".join(terms), found


def _named(row: Row) -> tuple[str, str, str]:
    return _text(row.document), _text(row.chunk), _text(cut(row.text))


def _vector(vector: Sequence[float]) -> str:
    return "[" + ",".join(repr(float(value)) for value in vector) + "]"


def _text(value: str) -> str:
    """PostgreSQL's text knows no NUL."""
    return value.replace("\x00", "\ufffd")


def _first_line(error: Exception) -> str:
    message = str(error).strip()
    return message.splitlines()[0] if message else type(error).__name__
