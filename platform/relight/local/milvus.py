"""The process of Milvus Lite in server mode: started by ``local.backing``, spoken to over gRPC only.

The library's own program listens on all addresses, dies of SIGTERM with its database open, and stays when the platform
is killed; and the library is safe for one writer at a time only, and says so. Hence this one.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

log = logging.getLogger("relight.local.milvus")

GRACE = 5.0
"""Seconds for calls that are being answered when it ends."""
MESSAGE_BYTES = 256 * 2**20
"""Of one request or answer, as the library's own program has it."""
_AT_ONCE = 10
_READS = ("Check", "Client", "Connect", "Describe", "Get", "Has", "HybridSearch", "List", "Query", "Search", "Show")
"""What the names of calls that change nothing begin with."""
_ROWS = ("Delete", "Insert", "Upsert")


def serve(payload: dict[str, Any], fds: list[int]) -> int:
    """Serve the database in ``folder`` at ``port`` of loopback (0: a free one) until SIGTERM or the platform's end.

    ``fds[0]`` is a socket to the platform: one line of JSON, ``{"port": N}``, goes out when it serves, and its end
    comes in when the platform is gone, however it went.
    """
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())

    server, database, port = start(payload["folder"], payload["port"])
    try:
        if not port:
            log.error("milvus.port_taken port=%s: this process ends", payload["port"])
            return 1
        os.write(fds[0], json.dumps({"port": port}).encode() + b"\n")
        threading.Thread(target=_until_alone, args=(fds[0], stopping), name="platform", daemon=True).start()
        stopping.wait()
    finally:
        server.stop(GRACE).wait(GRACE)
        database.close()
    return 0


def start(folder: str, port: int) -> tuple[Any, Any, int]:
    """(gRPC server, database, port), answering at ``port`` of loopback; 0: a free one. Port 0 where it is taken."""
    import grpc
    from milvus_lite.adapter.grpc.servicer import MilvusServicer
    from milvus_lite.db import MilvusLite
    from pymilvus.grpc_gen import milvus_pb2_grpc

    limits = [(f"grpc.max_{way}_message_length", MESSAGE_BYTES) for way in ("receive", "send")]
    # pymilvus pings each 10 s, also while nothing goes on, and a server of gRPC hangs up on those by default.
    pings = [("grpc.http2.min_ping_interval_without_data_ms", 5000), ("grpc.keepalive_permit_without_calls", 1)]
    database = MilvusLite(folder)
    server = grpc.server(ThreadPoolExecutor(_AT_ONCE, "milvus"), options=[*limits, *pings, ("grpc.so_reuseport", 0)])
    milvus_pb2_grpc.add_MilvusServiceServicer_to_server(InTurn(MilvusServicer(database)), server)
    try:
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
    except RuntimeError:
        bound = 0
    server.start()
    return server, database, bound


class InTurn:
    """The calls of a servicer: one that writes at a time, and none that reads beside one that changes more than rows.

    Two flushes of Milvus Lite at the same time fail ("current_seq is monotonic"), a row that is written during one can
    be left out of it, and a search during one may see neither the memory nor the segment that it became.
    """

    def __init__(self, servicer: Any) -> None:
        self._servicer = servicer
        self._writing = threading.Lock()
        self._changed = threading.Condition()
        self._readers = 0
        self._readers_wait = False

    def __getattr__(self, name: str) -> Callable[[Any, Any], Any]:
        call = getattr(self._servicer, name)
        turn = self._reading if name.startswith(_READS) else self._row if name in _ROWS else self._alone

        def in_turn(request: Any, context: Any) -> Any:
            with turn():
                return call(request, context)

        return in_turn

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._readers_wait)
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextmanager
    def _row(self) -> Iterator[None]:
        with self._writing:
            yield

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._writing:
            try:
                with self._changed:
                    # From here on no reader begins: they follow each other, and would keep it out for good.
                    self._readers_wait = True
                    self._changed.wait_for(lambda: not self._readers)
                yield
            finally:
                with self._changed:
                    self._readers_wait = False
                    self._changed.notify_all()


def _until_alone(fd: int, stopping: threading.Event) -> None:
    while os.read(fd, 4096):
        pass
    stopping.set()
