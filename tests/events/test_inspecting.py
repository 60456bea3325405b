"""What people see of a broker: `relight events` with ls, dlq, replay, tail and trace as a user runs it, and metrics."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from events.rig import Machine, Received, Subscriber, reply, run

from relight.cli.telling import span
from relight.local.eventing.choosing import Choice
from relight.local.kube import kinds
from relight.wire.cloudevents import Event

EXECUTABLE = Path(sys.executable).with_name("relight")
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


class Terminal:
    """Runs `relight events` against a machine, as if `relight up` had started it."""

    def __init__(self, machine: Machine, home: Path) -> None:
        home.mkdir(exist_ok=True)
        self._env = {"RELIGHT_HOME": str(home), "PATH": os.environ["PATH"], "TZ": "UTC"}
        if "PYTHONPATH" in os.environ:
            self._env["PYTHONPATH"] = os.environ["PYTHONPATH"]
        kubeconfig = home / "kubeconfig"
        kubeconfig.write_text(json.dumps({"users": [{"name": "me", "user": {"token": "secret"}}]}))
        status = {
            "pid": os.getpid(),
            "start_time": int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]),
            "api": "https://127.0.0.1:1",
            "functions": "http://127.0.0.1:1",
            "broker": machine.url,
            "kubeconfig": str(kubeconfig),
            "repository": "file:///nowhere",
        }
        (home / "status.json").write_text(json.dumps(status))

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            EXECUTABLE,
            "events",
            *arguments,
            env=self._env,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def __call__(self, *arguments: str, code: int = 0) -> str:
        process = await self.start(*arguments)
        out, err = await process.communicate()
        assert process.returncode == code, err.decode()
        return (out or err).decode() if code == 0 else err.decode()

    async def json(self, *arguments: str) -> Any:
        return json.loads(await self(*arguments, "-o", "json"))


async def asked(machine: Machine, path: str, **parameters: str) -> Any:
    """What the broker says, without the cost of a command's start."""
    async with machine.session.get(
        f"{machine.url}/-/{path}", params=parameters, headers={"Authorization": "Bearer secret"}
    ) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


@asynccontextmanager
async def chain(folder: Path) -> AsyncIterator[tuple[Machine, Subscriber, Terminal]]:
    """t.a → a (fails once) → t.b → b; t.poison → poison, which refuses; t.held waits for a paused Trigger."""
    async with Machine(folder, token="secret").up() as machine, Subscriber().listening() as subscriber:
        failures = iter([503])

        def a(got: Received) -> web.Response:
            status = next(failures, 200)
            return (
                web.Response(status=status, text="not yet")
                if status != 200
                else reply(Event.of("t.b", "/a", {"n": 1}, id="r1"))
            )

        subscriber.answers["/a"] = a
        subscriber.answers["/poison"] = lambda got: web.Response(status=400, text="not a page")
        await machine.trigger("a", "t.a", f"{subscriber.url}/a")
        await machine.trigger("b", "t.b", f"{subscriber.url}/b")
        await machine.trigger("poison", "t.poison", f"{subscriber.url}/poison")
        await machine.trigger("held", "t.held", f"{subscriber.url}/held", annotations={"relight.dev/paused": "true"})
        yield machine, subscriber, Terminal(machine, folder / "home")


def test_ls_dlq_replay_and_discard(tmp_path: Path) -> None:
    async def story() -> None:
        async with chain(tmp_path) as (machine, subscriber, events):
            for number in range(3):
                await machine.post(Event.of("t.poison", "/s", {"page": number}, id=f"p{number}"))
            await machine.post(Event.of("t.held", "/s", {"a": 1}, id="h1"))
            await subscriber.until(3, "/poison")
            while machine.eventing.dispatcher.pending > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

            (waiting,) = (await asked(machine, "deliveries"))["deliveries"]
            assert (waiting["event"]["id"], waiting["trigger"], waiting["paused"]) == ("h1", "held", True)
            text = await events("ls")
            assert "h1" in text
            assert "paused" in text

            dead = await events.json("dlq")
            assert {one["event"]["id"] for one in dead} == {"p0", "p1", "p2"}
            assert dead[0]["status"] == 400
            assert "not a page" in dead[0]["reason"]
            assert dead[0]["event"]["data"] == {"page": int(dead[0]["event"]["id"][1])}
            table = await events("dlq", "--where", "id = 'p1'")
            assert "p1" in table
            assert "p0" not in table
            assert "poison" in table
            newest = await asked(machine, "deliveries", state="dead", trigger="poison", limit="1")
            assert [one["died"] for one in dead] == sorted((one["died"] for one in dead), reverse=True)
            assert [one["event"]["id"] for one in newest["deliveries"]] == [dead[0]["event"]["id"]]
            assert (await asked(machine, "deliveries", state="dead", trigger="other"))["deliveries"] == []

            # Mended: what was given up is delivered again, and only what was asked for.
            subscriber.answers["/poison"] = lambda got: web.Response(status=202)
            assert "needs a filter" in await events("replay", code=7)
            assert await events.json("replay", "--reason", "NOT A PAGE", "--id", "p1") == {
                "replayed": 1,
                "without_trigger": 0,
            }
            (_, _, _, again) = await subscriber.until(4, "/poison")
            assert (again.event.id, again.event.json()) == ("p1", {"page": 1})
            assert "discarded: 1 dead letter\n" in await events("dlq", "--discard", "--id", "p0")
            machine.store.delete(kinds.TRIGGER, "default", "poison")
            await asyncio.sleep(0)
            await machine.eventing.idle()
            assert await events.json("replay", "--all") == {"replayed": 0, "without_trigger": 1}
            left = await asked(machine, "deliveries", state="dead")
            assert [one["trigger"] for one in left["deliveries"]] == ["poison"]

    run(story())


def test_trace_tells_every_hop(tmp_path: Path) -> None:
    async def story() -> None:
        async with chain(tmp_path) as (machine, subscriber, events):
            await machine.post(Event.of("t.a", "/s", {"n": 0}, id="e1", traceparent=PARENT))
            (got,) = await subscriber.until(1, "/b")
            # The reply says nothing of tracing: the broker carries its cause's on.
            assert got.event.get("traceparent") == PARENT
            await machine.settled()
            for wanted in ("e1", "r1", TRACE):
                (root,) = (await asked(machine, f"trace/{wanted}"))["events"]
                assert (root["id"], root["trace"]) == ("e1", TRACE)
                (first,) = root["deliveries"]
                assert (first["trigger"], first["state"], first["attempts"]) == ("default/a", "done", 2)
                assert [one["reason"] for one in first["tries"]] == ["answered 503: not yet"]
                (second,) = first["reply"]["deliveries"]
                assert (first["reply"]["id"], second["trigger"]) == ("r1", "default/b")
                assert root["received"] <= first["began"] <= first["ended"] <= first["reply"]["received"]
            text = await events("trace", "e1")
            assert "t.a e1" in text
            assert "└─ default/a 200: waited" in text
            assert "attempt 2" in text
            assert "answered 503: not yet" in text
            assert "→ t.b r1" in text
            # What is dead or waits is told too.
            await machine.post(Event.of("t.poison", "/s", b"x", id="p1"))
            await machine.post(Event.of("t.held", "/s", b"x", id="h1"))
            await subscriber.until(1, "/poison")
            while machine.eventing.dispatcher.pending > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            assert "given up at" in await events("trace", "p1")
            assert re.search(r"held: has waited .*, paused$", await events("trace", "h1"), re.MULTILINE)
            assert "no event and no trace" in await events("trace", "nope", code=4)

    run(story())


def test_a_reply_that_nobody_wants_is_told(tmp_path: Path) -> None:
    async def story() -> None:
        async with chain(tmp_path) as (machine, _, events):
            machine.store.delete(kinds.TRIGGER, "default", "b")
            await asyncio.sleep(0)
            await machine.eventing.idle()
            await machine.post(Event.of("t.a", "/s", {"n": 0}, id="e1"))
            await machine.settled()
            text = await events("trace", "e1")
            assert "→ t.b r1\n" in text
            assert "nobody wants it" in text
            assert "t.b r1" in await events("trace", "r1")

    run(story())


def test_tail_shows_what_passes(tmp_path: Path) -> None:
    async def story() -> None:
        async with chain(tmp_path) as (machine, _, events):
            tail = await events.start("tail", "--broker", "rec", "--where", "type != 't.other'")
            lines = await events.start("tail", "-o", "json")
            try:
                while len(machine.eventing.dispatcher.taps) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
                await machine.post(Event.of("t.other", "/s", b"x", id="o1"))
                await machine.post(Event.of("t.a", "/s", {"n": 0}, id="e1", subject="page 7"))
                assert tail.stdout is not None
                assert lines.stdout is not None
                first, second = [(await tail.stdout.readline()).decode() for _ in range(2)]
                assert "rec t.a e1 /s page 7 (1 trigger)" in first
                assert "t.b r1" in second
                ids = [json.loads(await lines.stdout.readline())["event"]["id"] for _ in range(3)]
                assert ids == ["o1", "e1", "r1"]
            except BaseException:
                # The loop cannot be closed while a child of its lives.
                tail.kill()
                raise
            finally:
                lines.kill()
                await lines.wait()
        # The broker stopped: the stream ends, and with it the command.
        await tail.communicate()
        await lines.communicate()

    run(story())


def test_a_reader_who_leaves_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with Machine(tmp_path, token="secret").up() as machine:
            taps = machine.eventing.dispatcher.taps
            with socket.create_connection(("127.0.0.1", urlsplit(machine.url).port or 0)) as reader:
                reader.sendall(b"GET /-/tail HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer secret\r\n\r\n")
                while not len(taps):  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            while len(taps):
                await machine.post(Event.of("t.a", "/s", {"n": 0}))

    run(story())
    assert not [record for record in caplog.records if record.exc_info], caplog.text


def test_only_with_the_token(tmp_path: Path) -> None:
    async def story() -> None:
        async with chain(tmp_path) as (machine, _, _):
            right = {"Authorization": "Bearer secret"}
            for path, headers, status in (
                ("/-/deliveries", {}, 401),
                ("/-/deliveries", {"Authorization": "Bearer wrong"}, 401),
                ("/-/deliveries", right, 200),
                ("/-/deliveries?state=lost", right, 400),
                ("/-/deliveries?where=type%20%3D", right, 400),
                ("/-/deliveries?colour=red", right, 400),
                ("/-/nothing", right, 404),
                ("/-/replay", right, 405),
                ("/metrics", {}, 200),
            ):
                async with machine.session.get(machine.url + path, headers=headers) as answer:
                    assert answer.status == status, (path, await answer.text())
        async with (
            Machine(tmp_path).up() as machine,
            machine.session.get(machine.url + "/-/deliveries", headers={"Authorization": "Bearer None"}) as answer,
        ):
            assert answer.status == 401

    run(story())


def test_metrics(tmp_path: Path) -> None:
    async def story() -> None:
        async with chain(tmp_path) as (machine, subscriber, _):
            await machine.post(Event.of("t.a", "/s", {"n": 0}))
            await machine.post(Event.of("t.poison", "/s", b"x"))
            await machine.post(Event.of("t.held", "/s", b"x"))
            await machine.post(Event.of("t.held", "/s", b"x", knativebrokerttl=0))
            await subscriber.until(1, "/b")
            await subscriber.until(1, "/poison")
            while machine.eventing.dispatcher.pending > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            async with machine.session.get(machine.url + "/metrics") as answer:
                text = await answer.text()
            for line in (
                'relight_broker_events_accepted_total{broker="rec",namespace="default"} 4.0',
                'relight_broker_events_refused_total{code="400"} 1.0',
                'relight_broker_deliveries_total{namespace="default",trigger="b"} 1.0',
                'relight_broker_retries_total{namespace="default",trigger="a"} 1.0',
                'relight_broker_dead_total{namespace="default",trigger="poison"} 1.0',
                'relight_broker_queue{namespace="default",trigger="held"} 1.0',
                'relight_broker_queue{namespace="default",trigger="a"} 0.0',
                'relight_broker_attempt_seconds_count{namespace="default",trigger="a"} 2.0',
                'relight_broker_delivery_seconds_count{namespace="default",trigger="a"} 1.0',
            ):
                assert line in text, line

    run(story())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0032, "3.2ms"), (1.5, "1.5s"), (250, "4m10s"), (11_100, "3h5m"), (187_200, "2d4h"), (-1, "0.0ms")],
    ids=str,
)
def test_spans(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_sources_are_chosen_by_their_names() -> None:
    choice = Choice.of({"trigger": "lines"})
    event = Event.of("t", "/s", {})
    names = ["lines (KafkaSource)", "lines", "line", "lines-2", "other (KafkaSource)"]
    assert [name for name in names if choice.wants("default", "rec", event, name, "")] == names[:2]
