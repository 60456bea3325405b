"""The event log: what was acknowledged is there after kill -9; bounds, faults, and what the file looks like."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from events.rig import Machine, Subscriber, broker_program, reply, run

from relight.base.errors import NoSpace, NotReady, Overloaded, PlatformError
from relight.local.eventing import log as log_module
from relight.local.eventing.hops import Hop
from relight.local.eventing.log import EventLog, Limits
from relight.local.eventing.records import Incoming, Letter, Stored
from relight.local.kube import kinds
from relight.wire.cloudevents import Event

HERE = Path(__file__).parent


def incoming(id_: str, *triggers: str, data: bytes = b"x") -> Incoming:
    return Incoming("default", "rec", Event.of("t", "/s", data, id=id_, hops=3, urgent=True), triggers)


@pytest.mark.parametrize("seed", range(3))
def test_what_was_acknowledged_survives_kill_9(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    with subprocess.Popen(
        [sys.executable, str(HERE / "log_process.py"), str(path)], stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            assert program.stdout is not None
            acknowledged = [next(program.stdout).strip() for _ in range(random.Random(seed).randrange(1, 400))]
        finally:
            program.kill()
        acknowledged += program.stdout.read().split()

    async def story() -> None:
        log = EventLog(path)
        await log.start()
        pending = await log.pending()
        stored = {one.seq: await log.event(one.seq) for one in pending}
        ids = [event.event.id for event in stored.values() if event is not None]
        assert len(ids) == len(set(ids)) == len(stored)
        assert set(acknowledged) <= set(ids)
        # An event is there with all its deliveries or not at all.
        assert len(pending) == 2 * len(ids)
        await log.stop()

    run(story())


def test_a_chain_survives_kill_9_of_the_broker(tmp_path: Path) -> None:
    """Events go a → reply → b. Whatever was accepted before the kill ends at b after the restart."""

    async def story() -> None:
        async with Subscriber().listening() as subscriber, aiohttp.ClientSession() as session:
            subscriber.answers["/a"] = lambda got: reply(Event.of("b", "/a", b"x", id=got.event.id))
            accepted: set[str] = set()

            async def send(broker: str, number: int) -> None:
                headers = {"ce-specversion": "1.0", "ce-id": str(number), "ce-type": "a", "ce-source": "/s"}
                try:
                    async with session.post(broker, data=b"x", headers=headers) as response:
                        if response.status == 202:
                            accepted.add(str(number))
                except aiohttp.ClientError:
                    return

            async with broker_program(tmp_path, subscriber.url) as broker:
                sending = asyncio.gather(*[send(broker, number) for number in range(200)])
                await subscriber.until(20, "/b")
            await sending
            async with broker_program(tmp_path, subscriber.url) as broker:
                for number in range(1000, 1010):
                    await send(broker, number)
                assert len(accepted) > 20
                while not accepted <= {got.event.id for got in subscriber.at("/b")}:
                    await subscriber.until(len(subscriber.at("/b")) + 1, "/b")

    run(story())


def test_pending_deliveries_go_on_after_a_stop(tmp_path: Path) -> None:
    async def story() -> None:
        async with Subscriber().listening() as subscriber:
            subscriber.answers["/a"] = lambda got: web.Response(status=503)
            async with Machine(tmp_path).up() as machine:
                slow = {"backoffDelay": "PT0.3S", "backoffPolicy": "exponential"}
                await machine.trigger("a", "a", f"{subscriber.url}/a", delivery=slow)
                await machine.trigger("gone", "a", f"{subscriber.url}/gone", delivery=slow)
                subscriber.answers["/gone"] = lambda got: web.Response(status=503)
                await machine.post(Event.of("a", "/s", b"x", id="e-1"))
                await subscriber.until(1, "/a")
                await subscriber.until(1, "/gone")
            first = len(subscriber.at("/gone"))
            subscriber.answers.clear()
            again = Machine(tmp_path)
            again.store.delete(kinds.TRIGGER, "default", "gone")
            async with again.up() as machine:
                got = await subscriber.until(2, "/a")
                assert [one.event.id for one in got] == ["e-1", "e-1"]
                await machine.settled()
            # What was pending for a Trigger that is gone went with it.
            assert len(subscriber.at("/gone")) == first

    run(story())


def test_events_come_back_as_they_went_in(tmp_path: Path) -> None:
    async def story() -> None:
        log = EventLog(tmp_path / "events.db")
        await log.start()
        given = incoming("1", "u1", data=b"\x00\xff")
        seq = await log.accept(Incoming("ns", "br", given.event, ("u1",), (("traceparent", "00"),)))
        stored = await log.event(seq)
        assert stored is not None
        assert (stored.namespace, stored.broker, stored.event, stored.headers) == (
            "ns",
            "br",
            given.event,
            (("traceparent", "00"),),
        )
        await log.stop()
        with pytest.raises(NotReady):
            await log.event(seq)
        await log.stop()

    run(story())


def test_an_event_leaves_with_its_last_delivery(tmp_path: Path) -> None:
    async def story() -> None:
        log = EventLog(tmp_path / "events.db")
        await log.start()
        seq = await log.accept(incoming("1", "u1", "u2", "u3"))
        await log.settle(seq, "u1")
        letter = Letter("http://f", 500, b"why", "answered 500")
        await log.divert(seq, "u2", letter, 7.0)
        assert [(one.trigger, one.attempt, one.letter) for one in await log.pending()] == [
            ("u2", 0, letter),
            ("u3", 0, None),
        ]
        await log.postpone(seq, "u3", 2, 9.0, "answered 503")
        assert [(one.attempt, one.due) for one in await log.pending() if one.trigger == "u3"] == [(2, 9.0)]
        await log.bury(seq, "u2", 500, "gave up", name="default/t", at=5.0)
        next_seq = await log.settle(seq, "u3", incoming("2", "u1"))
        assert next_seq is not None
        assert next_seq > seq
        assert await log.event(seq) is not None
        assert [(one.id, one.trigger, one.reason) for one in await log.dead()] == [("1", "u2", "gave up")]
        await log.settle(next_seq, "u1")
        assert await log.event(next_seq) is None
        # A number is never used again, so that a late answer cannot settle another event.
        assert await log.accept(incoming("3", "u1")) > next_seq
        await log.stop()

    run(story())


def test_too_many_waiting_events_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "WAITING", 10)

    async def story() -> None:
        log = EventLog(tmp_path / "events.db")
        await log.start()
        answers = await asyncio.gather(
            *[log.accept(incoming(str(number), "u1")) for number in range(30)], return_exceptions=True
        )
        refused = [one for one in answers if isinstance(one, Overloaded)]
        assert len(refused) == 20
        assert refused[0].retry_after == 1.0
        assert len(await log.pending()) == 10
        await log.stop()

    run(story())


def test_a_full_disk_refuses_and_recovers(tmp_path: Path) -> None:
    async def story() -> None:
        async with Machine(tmp_path).up() as machine, Subscriber().listening() as subscriber:
            await machine.trigger("a", "a", f"{subscriber.url}/a")
            log = machine.eventing.log
            # SQLite answers "full" past this size just as it does when the disk is.
            await log._do(lambda database: database.execute("PRAGMA max_page_count=20"))
            event = Event.of("a", "/s", b"x" * 200_000)
            with pytest.raises(NoSpace, match="not accepted"):
                await log.accept(Incoming("default", "rec", event, ("u1",)))
            assert await machine.post(event) == 507
            # A small one next to a large one is not refused with it.
            small, large = await asyncio.gather(
                log.accept(incoming("small", "u1")),
                log.accept(incoming("large", "u1", data=b"x" * 200_000)),
                return_exceptions=True,
            )
            assert isinstance(small, int)
            assert isinstance(large, NoSpace)
            await log._do(lambda database: database.execute("PRAGMA max_page_count=100000"))
            assert await machine.post(event) == 202
            await subscriber.until(1, "/a")

    run(story())


@pytest.mark.parametrize("kind", ["garbage", "newer"])
def test_a_file_that_cannot_be_used_is_named(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    if kind == "garbage":
        path.write_bytes(b"not a database" * 1000)
    else:
        database = sqlite3.connect(path)
        database.execute("PRAGMA user_version=99")
        database.close()

    async def story() -> None:
        with pytest.raises(PlatformError, match=r"events\.db"):
            await EventLog(path).start()

    run(story())


def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    async def story() -> None:
        log = EventLog(tmp_path / "events.db")
        await log.start()
        await log.stop()
        assert (tmp_path / "events.db").stat().st_mode & 0o777 == 0o600

    run(story())


FORMAT_1 = """
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, namespace TEXT NOT NULL, broker TEXT NOT NULL, received REAL NOT NULL,
    id TEXT NOT NULL, source TEXT NOT NULL, type TEXT NOT NULL, attributes BLOB NOT NULL, data BLOB,
    implied_json INTEGER NOT NULL, headers BLOB NOT NULL);
CREATE TABLE deliveries (
    event INTEGER NOT NULL, trigger TEXT NOT NULL, dead INTEGER NOT NULL DEFAULT 0, attempt INTEGER NOT NULL DEFAULT 0,
    due REAL NOT NULL, reason TEXT, destination TEXT, status INTEGER, answer BLOB,
    PRIMARY KEY (event, trigger)) WITHOUT ROWID;
CREATE INDEX deliveries_by_trigger ON deliveries (trigger, event);
INSERT INTO events
    VALUES (7, 'default', 'rec', 5.0, 'e1', '/s', 't', '{"subject":"s"}', 'x', 0, '[["traceparent","00"]]');
INSERT INTO deliveries (event, trigger, due) VALUES (7, 'u1', 5.0);
INSERT INTO deliveries (event, trigger, dead, due, reason) VALUES (7, 'u2', 1, 6.0, 'gave up');
PRAGMA user_version=1;
"""


def test_an_older_file_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    database = sqlite3.connect(path)
    database.executescript(FORMAT_1)
    database.close()

    async def story() -> None:
        for _ in range(2):
            log = EventLog(path)
            await log.start()
            stored = await log.event(7)
            assert stored is not None
            assert (stored.event.id, stored.event.get("subject"), stored.headers) == (
                "e1",
                "s",
                (("traceparent", "00"),),
            )
            assert [(one.id, one.reason) for one in await log.dead()] == [("e1", "gave up")]
            assert [one.trigger for one in await log.pending()] == ["u1"]
            await log.postpone(7, "u1", 1, 9.0, "answered 503")
            await log.stop()

    run(story())


def test_whatever_of_the_last_write_is_torn_what_was_acknowledged_stays(tmp_path: Path) -> None:
    """The write-ahead log is cut at offsets behind the last acknowledged commit: a crash in the midst of the next."""
    path, wal = tmp_path / "events.db", tmp_path / "events.db-wal"

    async def story() -> None:
        log = EventLog(path)
        await log.start()
        for number in range(20):
            await log.accept(incoming(str(number), "u1", data=b"x" * 700))
        acknowledged = wal.stat().st_size
        await log.accept_all([incoming(f"late-{number}", "u1", data=b"x" * 700) for number in range(5)])
        base, whole = path.read_bytes(), wal.read_bytes()
        await log.stop()
        assert len(whole) > acknowledged
        cuts = {*range(acknowledged, len(whole), 211), len(whole)}
        # And around the border of every frame (24 bytes and a page), where a torn write is most alike to a whole one.
        for at in range(acknowledged, len(whole) + 1, 24 + 4096):
            cuts |= {at - 1, at, at + 1, at + 24} & set(range(acknowledged, len(whole) + 1))
        torn = tmp_path / "torn"
        torn.mkdir()
        for cut in sorted(cuts):
            for old in torn.iterdir():
                old.unlink()
            (torn / "events.db").write_bytes(base)
            (torn / "events.db-wal").write_bytes(whole[:cut])
            again = EventLog(torn / "events.db")
            await again.start()
            ids = {one.id for one in await again.waiting()}
            await again.stop()
            assert {str(number) for number in range(20)} <= ids, cut
            # The commit behind it is there as a whole or not at all.
            assert len(ids) in (20, 25), cut

    run(story())


def test_hops_are_bounded(tmp_path: Path) -> None:
    async def story() -> None:
        log = EventLog(tmp_path / "events.db", Limits(hops=100))
        await log.start()
        events = [incoming(str(number), "u1") for number in range(600)]
        settling = []
        for seq, event in zip(await log.accept_all(events), events, strict=True):
            stored = Stored.of(seq, event)
            hop = Hop.of(stored, "u1", "default/t", began=1.0, ended=2.0, attempts=1, outcome="done")
            settling.append(log.settle(seq, "u1", hop=hop))
        await asyncio.gather(*settling)
        (kept,) = await log._do(lambda database: database.execute("SELECT count(*) FROM hops").fetchone())
        assert 100 <= kept < 100 + 256
        assert [hop.id for hop in (await log.tree("599"))[0]] == ["599"]
        assert await log.tree("0") == ([], [])
        await log.stop()

    run(story())
