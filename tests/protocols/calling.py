"""A function served over gRPC in this process, on a real port, and Triton's own client for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tritonclient.grpc as triton
from runtime.serving import Listening, loaded

from relight.runtime.engine import Engine
from relight.runtime.function import Function
from relight.runtime.hosts.grpc import GrpcServer


class Called(Listening[GrpcServer]):
    """A function that gRPC calls."""

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    @contextmanager
    def client(self) -> Iterator[triton.InferenceServerClient]:
        with triton.InferenceServerClient(self.url) as client:
            yield client


@contextmanager
def called(function: Function | Engine, **environ: str) -> Iterator[Called]:
    """Serve a function (loaded) or an engine (as it is) until the block ends."""
    here = Called(function if isinstance(function, Engine) else loaded(function, **environ))
    with here.running(GrpcServer):
        yield here
