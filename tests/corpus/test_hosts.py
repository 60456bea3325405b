"""Every request of the corpus, sent to every host: one answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from corpus.replaying import Case, cases, exchange
from programs.hosting import HOSTS, Running, start, until

HOSTS_OF = {"sick_load": tuple(host for host in HOSTS if host != "replica")}
"""A replica whose load failed tells the platform and ends: there is nothing left to ask."""

Serving = Callable[[str], dict[str, Running]]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """The program under each of its hosts, loaded; started when its first request is to be sent."""
    folder = tmp_path_factory.mktemp("hosts")
    started: dict[str, dict[str, Running]] = {}

    def serve(program: str) -> dict[str, Running]:
        if program not in started:
            hosts = HOSTS_OF.get(program, HOSTS)
            started[program] = {host: start(host, program, folder) for host in hosts}
            for running in started[program].values():
                _settle(running.live(), program)
        return started[program]

    yield serve
    for running in (one for hosts in started.values() for one in hosts.values()):
        running.kill()


def _settle(running: Running, program: str) -> None:
    if program == "sick_load":
        until(lambda: b"failed" in running.request("GET", "/health/readiness")[2], f"load failed: {running.log}")
    else:
        running.ready()


@pytest.mark.parametrize("case", cases(), ids=str)
def test_all_hosts_give_the_golden_answer(case: Case, serving: Serving) -> None:
    answers = {host: exchange(running.port, case) for host, running in serving(case.program).items()}
    if os.environ.get("CORPUS_RECORD"):
        # To see what a change changes: record, and read the difference.
        case.path.with_name(f"{case.name}.response").write_bytes(next(iter(answers.values())))
    assert answers == dict.fromkeys(answers, case.response)


def test_the_corpus_is_whole() -> None:
    assert len(cases()) > 100
    assert [str(case) for case in cases() if not case.path.with_name(f"{case.name}.response").exists()] == []
