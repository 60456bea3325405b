"""A function inside a Flask application."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask
from programs.hosting import until

from relight.runtime.hosts import flask as host
from relight.sdk import Event, Step


class Upper(Step):
    def run(self, data: Any, event: Event | None) -> Any:
        return data.upper()


def test_two_functions_side_by_side_start_at_their_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    app, started = Flask("service"), []
    monkeypatch.setattr(
        host.Engine, "start", lambda engine, start=host.Engine.start: (started.append(1), start(engine))
    )
    host.mount(Upper(), app, "/one")
    host.mount(Upper(), app, "/two/deep")
    assert started == []
    client = app.test_client()
    for number, prefix in enumerate(("/one", "/two/deep"), 1):
        until(lambda prefix=prefix: client.get(f"{prefix}/health/readiness").status_code == 200, "loaded", 5)
        assert len(started) == number
        answer = client.post(f"{prefix}/", json="text")
        assert (answer.status_code, answer.json) == (200, "TEXT")
        assert client.get(f"{prefix}/nothing").json == {"error": "nothing is served at '/nothing'"}
    assert client.get("/three/v2").status_code == 404
