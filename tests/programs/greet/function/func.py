"""A step with every way to end: an answer, nothing, an event, a known error, an unknown one, an exit."""

from __future__ import annotations

import sys
from typing import Any

from relight.sdk import BadInput, Event, Step


class Greet(Step):
    reply_type = "greeting.made"

    def run(self, data: Any, event: Event | None) -> Any:
        match data.get("then") if isinstance(data, dict) else None:
            case "nothing":
                return None
            case "event":
                return Event.of("greeting.own", "/own", {"own": True}, id="own-1", subject="a subject")
            case "refuse":
                raise BadInput("the name is not one of ours", param="name")
            case "raise":
                raise ValueError("the secret is 4711")
            case "exit":
                sys.exit(3)
            case "unsayable":
                return {"what": object()}
        return {"hello": data, "event": event.id if event else None}


def new() -> Greet:
    return Greet()
