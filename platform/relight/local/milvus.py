"""The process of Milvus Lite in server mode: started by ``local.backing``, spoken to over gRPC only.

The library's own program listens on all addresses, dies of SIGTERM with its database open, and stays when the platform
is killed; hence this one.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from typing import Any

log = logging.getLogger("relight.local.milvus")

GRACE = 5.0
"""Seconds for calls that are being answered when it ends."""


def serve(payload: dict[str, Any], fds: list[int]) -> int:
    """Serve the database in ``folder`` at ``port`` of loopback (0: a free one) until SIGTERM or the platform's end.

    ``fds[0]`` is a socket to the platform: one line of JSON, ``{"port": N}``, goes out when it serves, and its end
    comes in when the platform is gone, however it went.
    """
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())

    from milvus_lite.adapter.grpc.server import start_server_in_thread

    server, database, port = start_server_in_thread(payload["folder"], "127.0.0.1", payload["port"])
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


def _until_alone(fd: int, stopping: threading.Event) -> None:
    while os.read(fd, 4096):
        pass
    stopping.set()
