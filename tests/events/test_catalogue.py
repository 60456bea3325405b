"""Brokers that validate: what the catalogue knows must be right, what it does not know passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from events.rig import Machine, Subscriber, reply, run

from relight.base.errors import BadInput
from relight.local.eventing.catalogue import FRESH, Catalogue
from relight.local.kube import kinds
from relight.wire import cloudevents
from relight.wire.cloudevents import Event
from relight.wire.http import Headers

CATALOGUE = Path(__file__).resolve().parents[2] / "events"
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "parts": {"type": "array", "items": {"type": "string"}}},
    "required": ["n"],
}


def samples() -> list[Path]:
    return sorted((CATALOGUE / "samples").glob("*.json"))


def sample(path: Path) -> Event:
    return cloudevents.decode(Headers({"content-type": cloudevents.STRUCTURED}), path.read_bytes())


def test_every_schema_has_a_sample_and_the_readme_names_it() -> None:
    types = Catalogue(CATALOGUE / "schemas", lambda: 0.0).types()
    assert types == [path.stem for path in samples()]
    assert types == sorted(path.stem for path in (CATALOGUE / "schemas").glob("*.json"))
    told = (CATALOGUE / "README.md").read_text()
    assert [name for name in types if f"`{name}`" not in told] == []


@pytest.mark.parametrize("path", samples(), ids=lambda path: path.stem)
def test_samples_are_valid_and_without_their_parts_are_not(path: Path) -> None:
    catalogue, event = Catalogue(CATALOGUE / "schemas", lambda: 0.0), sample(path)
    assert event.type == path.stem
    catalogue.check(event)
    with pytest.raises(BadInput, match="data"):
        catalogue.check(event.replace(data=b"{}"))
    with pytest.raises(BadInput, match="JSON was expected"):
        catalogue.check(event.replace(data=b"\xff"))


WRONG: list[tuple[str, Any, str]] = [
    ("missing", {}, "'n' is a required property"),
    ("nested", {"n": 1, "parts": ["a", 2]}, r"data\.parts\[1\]: 2 is not of type 'string'"),
    ("several", {"n": "x", "parts": 1}, r"data\.n: .*; data\.parts: "),
    ("none", None, "is not of type 'object'"),
]


@pytest.mark.parametrize(("data", "message"), [one[1:] for one in WRONG], ids=[one[0] for one in WRONG])
def test_every_mistake_is_named(data: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(SCHEMA))
    with pytest.raises(BadInput, match=message):
        Catalogue(tmp_path, lambda: 0.0).check(Event.of("t", "/s", data))


def test_a_broken_schema_stops_nobody_and_a_mended_one_is_read(tmp_path: Path) -> None:
    clock = [0.0]
    (tmp_path / "t.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "odd.json").write_text('{"type": "nothing like it"}')
    # A reference elsewhere is never followed.
    (tmp_path / "far.json").write_text('{"$ref": "http://127.0.0.1:9/schema.json"}')
    catalogue = Catalogue(tmp_path, lambda: clock[0])
    assert catalogue.types() == ["t"]
    for type_ in ("bad", "odd", "far", "../../etc/passwd"):
        catalogue.check(Event.of(type_, "/s", {"x": 1}))
    (tmp_path / "bad.json").write_text('{"required": ["x", "y"]}')
    clock[0] += FRESH
    with pytest.raises(BadInput, match="'y' is a required property"):
        catalogue.check(Event.of("bad", "/s", {"x": 1}))


def test_a_broker_that_validates(tmp_path: Path) -> None:
    folder = tmp_path / "schemas"
    folder.mkdir()
    (folder / "t.json").write_text(json.dumps(SCHEMA))
    (folder / "t.out.json").write_text(json.dumps(SCHEMA))

    async def story() -> None:
        async with Machine(tmp_path, schemas=folder).up() as machine, Subscriber().listening() as subscriber:
            for name, annotations in (
                ("strict", {"relight.dev/validate": "true"}),
                ("own", {"relight.dev/validate": "true", "relight.dev/schemas": str(CATALOGUE / "schemas")}),
                ("lost", {"relight.dev/validate": "true", "relight.dev/schemas": "/no/such/folder"}),
            ):
                metadata = {"namespace": "default", "name": name, "annotations": annotations}
                machine.store.create(kinds.BROKER, {"metadata": metadata, "spec": {}})
                broker = await machine.status(kinds.BROKER, name)
                found = [one for one in broker["status"]["conditions"] if one["type"] == "ValidationReady"]
                assert [one["status"] for one in found] == (["False"] if name == "lost" else [])
            good, bad = Event.of("t", "/s", {"n": 1}), Event.of("t", "/s", {"n": "x"})
            unknown = Event.of("unknown", "/s", {"n": "x"})
            got = {
                name: [await machine.post(event, broker=name) for event in (good, bad, unknown)]
                for name in ("rec", "strict", "own", "lost")
            }
            assert got == {
                "rec": [202, 202, 202],
                "strict": [202, 400, 202],
                "own": [202, 202, 202],
                "lost": [202, 202, 202],
            }
            # A reply that is not valid is the function's fault: it is dead-lettered with the reason, not tried again.
            subscriber.answers["/f"] = lambda got: reply(Event.of("t.out", "/f", {"n": "x"}))
            await machine.trigger("f", "t", f"{subscriber.url}/f", broker="strict")
            await machine.post(good, broker="strict")
            await subscriber.until(1, "/f")
            await machine.settled()
            assert len(subscriber.at("/f")) == 1
            (dead,) = await machine.eventing.log.dead()
            assert "the reply was refused: data.n: 'x' is not of type 'integer'" in dead.reason

    run(story())
