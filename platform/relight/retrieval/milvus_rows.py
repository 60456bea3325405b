"""Rows of a collection in Milvus: read by filter or page by page, and copied from one collection into another."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from relight.base.errors import Failed
from relight.retrieval.milvus_connection import literal
from relight.retrieval.vectors import Hit, Row

T = TypeVar("T")

BATCH = 500
"""Rows of one request: at 1,536 dimensions and long texts well under gRPC's 64 MB."""


class Call(Protocol):
    """Runs something with the client, on a collection, which is loaded first where that is needed."""

    def __call__(self, call: Callable[[Any], T], collection: str | None = None) -> T: ...


class Rows:
    """Reads and writes through ``call``. ``timeout``: seconds of each."""

    def __init__(self, call: Call, timeout: float) -> None:
        self.call = call
        self.timeout = timeout

    def query(self, collection: str, where: str, fields: Sequence[str]) -> list[dict[str, Any]]:
        """All rows that a filter chooses."""
        found: list[dict[str, Any]] = self.call(
            lambda client: client.query(
                collection,
                filter=where,
                output_fields=list(fields),
                consistency_level="Strong",
                timeout=self.timeout,
            ),
            collection,
        )
        return found

    def digests(self, collection: str, keys: Sequence[str]) -> dict[str, str]:
        """The digest of each row that is there, by its key."""
        found = self.query(collection, f"id in [{', '.join(map(literal, keys))}]", ["id", "digest"])
        return {row["id"]: row["digest"] for row in found}

    def pages(self, collection: str, fields: Sequence[str], batch: int) -> Iterator[list[dict[str, Any]]]:
        """All rows in the order of their keys, each page asked for by the last key of the one before."""
        last = ""
        while True:
            found: list[dict[str, Any]] = self.call(
                lambda client, last=last: client.query(  # type: ignore[misc]
                    collection,
                    filter=f"id > {literal(last)}",
                    output_fields=["id", *fields],
                    limit=batch,
                    consistency_level="Strong",
                    timeout=self.timeout,
                    # Servers then answer in the order of the keys, as their own iterator asks them to.
                    iterator="True",
                    reduce_stop_for_best="True",
                ),
                collection,
            )
            if not found:
                return
            found.sort(key=lambda row: row["id"])
            last = str(found[-1]["id"])
            yield found


class Copy:
    """Brings collection ``new`` to what ``old`` has, again and again, while others write to the old one."""

    def __init__(self, rows: Rows, old: str, new: str, fields: Sequence[str]) -> None:
        self._rows = rows
        self._old = old
        self._new = new
        self._fields = fields
        self._copied: dict[str, str] = {}
        """Digest by key."""

    def catch_up(self, *, only_untouched: bool = False) -> int:
        """Copy what changed since the last time; how many rows that was.

        ``only_untouched``: leave alone what somebody has written to the new collection since, for that is newer.
        """
        changed: list[str] = []
        seen: set[str] = set()
        for page in self._rows.pages(self._old, ["digest"], 5000):
            seen.update(row["id"] for row in page)
            changed += [row["id"] for row in page if self._copied.get(row["id"]) != row["digest"]]
        gone = [key for key in self._copied if key not in seen]
        if only_untouched:
            changed, gone = self._untouched(changed), self._untouched(gone)
        for at in range(0, len(changed), BATCH):
            self._copy(changed[at : at + BATCH])
        if gone:
            timeout = self._rows.timeout
            self._rows.call(lambda client: client.delete(self._new, ids=gone, timeout=timeout), self._new)
            for key in gone:
                del self._copied[key]
        return len(changed) + len(gone)

    def _copy(self, keys: Sequence[str]) -> None:
        found = self._rows.query(self._old, f"id in [{', '.join(map(literal, keys))}]", self._fields)
        rows = [{name: _plain(value) for name, value in row.items()} for row in found]
        if rows:
            self._rows.call(lambda client: client.upsert(self._new, rows, timeout=self._rows.timeout), self._new)
        self._copied.update((row["id"], row["digest"]) for row in rows)

    def _untouched(self, keys: list[str]) -> list[str]:
        kept = []
        for at in range(0, len(keys), BATCH):
            some = keys[at : at + BATCH]
            there = self._rows.digests(self._new, some)
            kept += [key for key in some if there.get(key) == self._copied.get(key)]
        return kept


def _plain(value: Any) -> Any:
    """What an answer has, as a request takes it."""
    return (
        [float(number) for number in value] if type(value).__name__ in ("ndarray", "RepeatedScalarContainer") else value
    )


def hit_of(entity: Any, score: float) -> Hit:
    """A row of an answer, as the seam has it."""
    return Hit(entity["document"], entity["chunk"], entity["text"], score, _metadata(entity.get("metadata")))


def row_of(values: dict[str, Any]) -> Row:
    """A row that was read with its vector."""
    metadata = _metadata(values.get("metadata"))
    return Row(values["document"], values["chunk"], values["text"], values["vector"], metadata, values["tenant"])


def _metadata(value: Any) -> dict[str, Any]:
    """JSON of Milvus, which comes as text from some of its versions."""
    if isinstance(value, str | bytes):
        value = json.loads(value)
    if value is not None and not isinstance(value, dict):
        raise Failed(f"metadata of a chunk is a {type(value).__name__}, expected an object")
    return value or {}
