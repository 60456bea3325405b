"""The collections of relight in Milvus: fields, indexes, and what their description remembers."""

from __future__ import annotations

import json
from typing import Any

from relight.base.errors import BadInput
from relight.decide.indexing import IndexPlan
from relight.retrieval.vectors import NAME_BYTES, TEXT_BYTES, Space

FIELDS = ("id", "tenant", "document", "chunk", "digest", "text", "metadata", "vector")
DEFAULT = IndexPlan("HNSW", {"M": 16, "efConstruction": 200})
"""Until somebody plans another one: right from a few thousand rows to what the memory holds."""
_METRICS = {"cosine": "COSINE", "ip": "IP"}
# BM25's usual constants (Robertson & Zaragoza 2009; those of Lucene).
_BM25 = {"bm25_k1": 1.2, "bm25_b": 0.75}
_PARTITIONS = 16
"""Tenants are spread over so many partitions; more cost a server memory each."""


def create(client: Any, name: str, space: Space, plan: IndexPlan | None, *, lite: bool, timeout: float) -> None:
    """Make a collection with its indexes, unless it is there.

    Without BM25 in Milvus Lite: its own takes 0.9 s for a question over 10,000 texts, bm25s a millisecond.
    """
    from pymilvus import DataType, Function, FunctionType, MilvusClient

    remembered = {"relight.model": space.model or "", "relight.metric": space.metric}
    plan = plan or DEFAULT
    remembered["relight.search"] = json.dumps(dict(plan.search))
    # A server keeps the description and may refuse properties it does not know; Milvus Lite keeps properties only.
    options: dict[str, Any] = {"properties": remembered} if lite else {"num_partitions": _PARTITIONS}
    described = json.dumps(remembered)
    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False, description=described)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=64)
    schema.add_field("tenant", DataType.VARCHAR, max_length=NAME_BYTES, is_partition_key=True)
    for field in ("document", "chunk"):
        schema.add_field(field, DataType.VARCHAR, max_length=NAME_BYTES)
    schema.add_field("digest", DataType.VARCHAR, max_length=64)
    schema.add_field("text", DataType.VARCHAR, max_length=TEXT_BYTES)
    schema.add_field("metadata", DataType.JSON)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=space.dimension)
    index = MilvusClient.prepare_index_params()
    index.add_index("vector", index_type=plan.kind, metric_type=_METRICS[space.metric], params=dict(plan.build))
    if not lite:
        # The terms are made by ``analysis``; all that is left to do is to cut between them.
        cutting = {"tokenizer": "whitespace"}
        schema.add_field(
            "terms", DataType.VARCHAR, max_length=TEXT_BYTES, enable_analyzer=True, analyzer_params=cutting
        )
        schema.add_field("sparse", DataType.SPARSE_FLOAT_VECTOR)
        bm25 = Function("bm25", FunctionType.BM25, input_field_names=["terms"], output_field_names=["sparse"])
        schema.add_function(bm25)
        index.add_index("sparse", index_type="SPARSE_INVERTED_INDEX", metric_type="BM25", params=_BM25)
    try:
        client.create_collection(
            name, schema=schema, index_params=index, consistency_level="Strong", timeout=timeout, **options
        )
    except Exception:
        # Another replica may have made it at the same moment.
        if not client.has_collection(name, timeout=timeout):
            raise


def create_versions(client: Any, name: str, timeout: float) -> None:
    """Make the collection of the tokens. A collection of Milvus has to have a vector: here it means nothing."""
    from pymilvus import DataType, MilvusClient

    if client.has_collection(name, timeout=timeout):
        return
    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=64)
    schema.add_field("token", DataType.VARCHAR, max_length=64)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=2)
    index = MilvusClient.prepare_index_params()
    index.add_index("vector", index_type="FLAT", metric_type="IP")
    try:
        client.create_collection(name, schema=schema, index_params=index, consistency_level="Strong", timeout=timeout)
    except Exception:
        if not client.has_collection(name, timeout=timeout):
            raise


def described_space(described: dict[str, Any], collection: str, uri: str) -> Space:
    """What vectors a collection holds; BadInput where it is not one of ours."""
    fields = {field["name"]: field for field in described["fields"]}
    if not set(FIELDS) <= set(fields):
        raise BadInput(f"collection {collection!r} at {uri} was not made by relight: its fields differ")
    said = _remembered(described)
    dimension = int(fields["vector"]["params"]["dim"])
    return Space(dimension, said.get("relight.model") or None, said.get("relight.metric") or "cosine")


def planned_search(described: dict[str, Any]) -> dict[str, int]:
    """How far a search is to go in the index, as it was planned; empty where nothing was."""
    return {
        str(name): int(value)
        for name, value in json.loads(_remembered(described).get("relight.search") or "{}").items()
    }


def _remembered(described: dict[str, Any]) -> dict[str, Any]:
    said = dict(described.get("properties") or {})
    if "relight.metric" not in said:
        text = described.get("description") or ""
        said = json.loads(text) if text.startswith("{") else {}
    return said


def index_of(client: Any, collection: str) -> tuple[str, dict[str, Any]]:
    """The kind and the parameters of the index over the vectors."""
    found = dict(client.describe_index(collection, "vector") or {})
    hidden = {"index_type", "metric_type", "field_name", "index_name", "state", "dim"}
    rest = {name: value for name, value in found.items() if name not in hidden and "row" not in name}
    return str(found.get("index_type") or "none"), rest
