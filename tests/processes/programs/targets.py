"""Small things for a child to do. Not a test: it is imported by the processes that the tests start."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

Payload = dict[str, Any]


def tell(fd: int, value: object) -> None:
    """One JSON value to the test, through a pipe."""
    os.write(fd, json.dumps(value).encode())
    os.close(fd)


def serve(payload: Payload, fds: list[int]) -> int:
    """Answer one connection."""
    with socket.socket(fileno=fds[0]) as listener:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(payload["answer"].encode())
    return 0


def code(payload: Payload, fds: list[int]) -> Any:
    return payload["code"]


def raises(payload: Payload, fds: list[int]) -> int:
    raise ValueError("no weights in this child")


def leave(payload: Payload, fds: list[int]) -> None:
    sys.exit(payload["code"])


def leave_at_once(payload: Payload, fds: list[int]) -> None:
    os._exit(payload["code"])


def kill_myself(payload: Payload, fds: list[int]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def speak(payload: Payload, fds: list[int]) -> int:
    print("to stdout")
    print("to stderr", file=sys.stderr)
    os.system("echo from a program")
    return 0


def describe(payload: Payload, fds: list[int]) -> int:
    """What a child finds itself in."""
    tell(
        fds[0],
        {
            "pid": os.getpid(),
            "sid": os.getsid(0),
            "handlers": [signal.getsignal(number) == signal.SIG_DFL for number in (signal.SIGTERM, signal.SIGCHLD)],
            "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
            "stdin": os.readlink("/proc/self/fd/0"),
            "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")),
            "env": {name: os.environ.get(name) for name in payload.get("env", [])},
            "threads": threading.active_count(),
        },
    )
    return 0


def draw(payload: Payload, fds: list[int]) -> int:
    """Random numbers of all kinds."""
    import numpy as np

    tell(fds[0], [random.random(), float(np.random.random()), float(np.random.default_rng().random())])
    return 0


def drain(payload: Payload, fds: list[int]) -> int:
    """Run until SIGTERM, then leave with the code that was asked for. Tells on its descriptor that it is up."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(payload["code"]))
    tell(fds[0], "up")
    while True:
        signal.pause()


def ignore(payload: Payload, fds: list[int]) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tell(fds[0], "up")
    while True:
        signal.pause()


def hold(payload: Payload, fds: list[int]) -> int:
    """Run until killed, with all descriptors open."""
    while True:
        signal.pause()


def abandon(payload: Payload, fds: list[int]) -> int:
    """End, and leave running programs behind: one in the process group, one outside of it."""
    inside = subprocess.Popen(["sleep", "600"])
    outside = subprocess.Popen(["sleep", "600"], process_group=0)
    tell(fds[0], [inside.pid, outside.pid])
    os._exit(0)


def embed(payload: Payload, fds: list[int]) -> int:
    """Load a model and run it, with libraries that the zygote has imported."""
    loaded = "onnxruntime" in sys.modules
    import numpy as np
    import onnxruntime
    from tokenizers import Tokenizer

    text = Tokenizer.from_file(payload["tokenizer"]).encode("a model in a child")
    session = onnxruntime.InferenceSession(payload["model"], providers=["CPUExecutionProvider"])
    inputs = {"input_ids": text.ids, "attention_mask": text.attention_mask, "token_type_ids": text.type_ids}
    wanted = {item.name for item in session.get_inputs()}
    outputs = session.run(None, {k: np.array([v], np.int64) for k, v in inputs.items() if k in wanted})
    tell(fds[0], {"loaded": loaded, "shape": list(outputs[0].shape), "finite": bool(np.isfinite(outputs[0]).all())})
    return 0


def tables(payload: Payload, fds: list[int]) -> int:
    """Memory of pyarrow's jemalloc, whose thread did not come along."""
    import pyarrow

    column = pyarrow.array(range(100_000))
    tell(fds[0], pyarrow.table({"n": column}).num_rows)
    return 0


def use_all(payload: Payload, fds: list[int]) -> int:
    """PyTorch on several threads, metrics and logs, all imported before the fork."""
    import logging

    import torch

    from relight.base import logs
    from relight.runtime.metrics import Metrics

    logs.configure("info", json_lines=True)
    logging.getLogger("relight.test").info("child %d", os.getpid())
    torch.set_num_threads(2)
    metrics = Metrics(lambda: 0)
    metrics.began()
    metrics.ended(200, 0.1)
    found = {
        "pid": os.getpid(),
        "sum": float((torch.ones(512, 512) @ torch.ones(512, 512)).sum()),
        "drawn": float(torch.rand(1)),
        "requests": [
            line for line in metrics.render().decode().splitlines() if line.startswith("relight_requests_tot")
        ],
    }
    tell(fds[0], found)
    return 0
