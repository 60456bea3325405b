"""One connection to Milvus: made by the first call, good after a restart of the server, from any thread.

pymilvus takes most of a second to import and opens gRPC channels, which do not survive a fork: it is imported by the
first call, not before, and connects then.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from relight.base.errors import Failed, NotReady
from relight.retrieval.filters import Condition, Scalar

T = TypeVar("T")

_NO_COLLECTION = 100
_NOT_LOADED = 101
_UNREACHABLE = 2
_CHANNEL = {
    # Without these a Milvus that is back is not seen for seconds: channels to one address share a growing backoff.
    "grpc.use_local_subchannel_pool": 1,
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.min_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 500,
}
_OPERATORS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


class NoCollection(NotReady):
    """The collection, or the alias that led to it, was dropped since we looked: the next attempt makes it anew."""


class Connection:
    """``timeout``: seconds for each call, the connecting included."""

    def __init__(self, uri: str, timeout: float) -> None:
        self.uri = uri
        self.timeout = timeout
        self._client: Any = None
        self._connecting = threading.Lock()
        self._lite: bool | None = None

    def call(self, call: Callable[[Any], T], collection: str) -> T:
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
                client.load_collection(collection, timeout=self.timeout)
                return attempt(repeated=True)

        try:
            return attempt(repeated=False)
        except MilvusException as error:
            if error.code == _NO_COLLECTION:
                gone = f"collection {collection!r} at {self.uri} was dropped: try again"
                raise NoCollection(gone, retry_after=1) from error
            if error.code != _UNREACHABLE:
                raise Failed(f"Milvus at {self.uri} refused a request: {_first_line(error)}") from error
            raise self._silent(error) from error
        except RpcError as error:
            raise self._silent(error) from error

    @property
    def is_lite(self) -> bool:
        """Whether it is Milvus Lite, which accepts kinds of index and of analysis that it does not have."""
        if self._lite is None:
            self._lite = "lite" in str(self.call(lambda client: client.get_server_version(), "")).lower()
        return self._lite

    def close(self) -> None:
        with self._connecting:
            client, self._client = self._client, None
        if client is not None:
            client.close()

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


def expression(where: Sequence[Condition], tenant: str) -> str:
    """A filter of Milvus. Names come from a short alphabet and values are written as literals: none can be syntax.

    Milvus Lite does not know Milvus's own filter parameters.
    """
    terms = [f"tenant == {literal(tenant)}"]
    for one in where:
        name = one.field if one.field == "document" else f'metadata["{one.field}"]'
        if one.op in ("eq", "in"):
            # Milvus Lite knows no ``in`` for a field of JSON.
            terms.append(f"({' or '.join(f'{name} == {literal(value)}' for value in one.values)})")
        else:
            terms.append(f"{name} {_OPERATORS[one.op]} {literal(one.value)}")
    return " and ".join(terms)


def literal(value: Scalar) -> str:
    """A literal of Milvus's expressions: its strings know JSON's escapes but for backslash-u."""
    return json.dumps(value, ensure_ascii=False)


def _first_line(error: Exception) -> str:
    message = str(getattr(error, "message", "") or error)
    return message.splitlines()[0] if message else type(error).__name__
