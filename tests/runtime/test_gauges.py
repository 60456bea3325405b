"""Figures of a function's own at ``/metrics``."""

from __future__ import annotations

from typing import Any

from runtime.serving import loaded

from relight import sdk
from relight.wire.http import Request, Response


class Thermometer(sdk.Step):
    def run(self, data: Any, event: sdk.Event | None) -> Any:
        self.context.gauge("room_temperature", "In degrees", data)
        return data


def test_a_gauge_is_there_once_it_is_set_and_has_its_last_value() -> None:
    engines = [loaded(Thermometer()) for _ in range(2)]
    try:

        def metrics(number: int) -> str:
            answer = engines[number].dispatch(Request("GET", "/metrics"))
            assert isinstance(answer, Response)
            return answer.body.decode()

        assert "room_temperature" not in metrics(0)
        for degrees in (20.5, 21.5):
            engines[0].function.run(degrees, None)  # type: ignore[attr-defined]
        assert "# HELP room_temperature In degrees\n" in metrics(0)
        assert "\nroom_temperature 21.5\n" in metrics(0)
        assert "room_temperature" not in metrics(1), "a function's figures are its own"
    finally:
        for engine in engines:
            engine.stop()
