"""A batching server with a front in Rust: raw float32 in, raw float32 out. ``python mosec_server.py --port N``."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
from mosec import Server, Worker

from served.models import MODELS


class Model(Worker):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.compute = MODELS[os.environ["BENCH_NAME"]](int(os.environ["BENCH_THREADS"]))

    def deserialize(self, data: bytes) -> Any:
        return np.frombuffer(data, "<f4")

    def serialize(self, data: Any) -> bytes:
        return bytes(data.tobytes())

    def forward(self, data: list[Any]) -> list[Any]:
        return list(self.compute({"x": np.stack(data)}))


if __name__ == "__main__":
    sys.argv += ["--address", "127.0.0.1"]
    server = Server()
    server.append_worker(Model, num=1, max_batch_size=64, max_wait_time=1)
    server.run()
