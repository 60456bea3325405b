"""The corpus through our own protocol, however the network cuts it up: byte by byte, at every boundary, all at once."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest
from corpus.replaying import Case, cases, exchange, read
from programs.hosting import Running, start

CASES = [case for case in cases() if case.program != "sick_load"]
PROGRAMS = sorted({case.program for case in CASES})


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Running]]:
    folder = tmp_path_factory.mktemp("replicas")
    started = {program: start("replica", program, folder) for program in PROGRAMS}
    yield lambda program: started[program].ready()
    for running in started.values():
        running.kill()


def at_boundaries(request: bytes) -> list[list[bytes]]:
    """Cuts where a parser changes what it does: around each line end of the head, and inside the body."""
    head = request.index(b"\r\n\r\n")
    ends = [at for at in range(head + 4) if request[at : at + 2] == b"\r\n"]
    cuts = {at + shift for at in ends for shift in (0, 1, 2)} | {head + 4 + (len(request) - head - 4) // 2}
    return [[request[:cut], request[cut:]] for cut in sorted(cuts) if 0 < cut < len(request)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_byte_by_byte(case: Case, replica: Callable[[str], Running]) -> None:
    assert exchange(replica(case.program).port, case, [bytes([byte]) for byte in case.request]) == case.response


@pytest.mark.parametrize("case", CASES[::8], ids=str)
def test_split_at_boundaries(case: Case, replica: Callable[[str], Running]) -> None:
    port = replica(case.program).port
    for pieces in at_boundaries(case.request):
        assert exchange(port, case, pieces) == case.response, pieces


@pytest.mark.parametrize("program", PROGRAMS)
def test_all_on_one_connection_answered_in_order(program: str, replica: Callable[[str], Running]) -> None:
    ours = [case for case in CASES if case.program == program]
    with socket.create_connection(("127.0.0.1", replica(program).port), timeout=30) as sock:
        sock.sendall(b"".join(case.request for case in ours))
        with sock.makefile("rb") as stream:
            assert [read(stream, case.method) for case in ours] == [case.response for case in ours]
