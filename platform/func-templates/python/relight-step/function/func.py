"""Counts the words of a text. Change `run` to do what you need."""

import re
from collections import Counter
from typing import Any

from relight import sdk


class Words(sdk.Step):
    reply_type = "com.example.text.counted"

    def run(self, data: Any, event: sdk.Event | None) -> Any:
        """`data` is the request's JSON, or the data of the event that came in `event`."""
        if not isinstance(data, dict) or not isinstance(data.get("text"), str):
            raise sdk.BadInput('expected JSON such as {"text": "to be or not to be"}')
        words = re.findall(r"\w+", data["text"].lower())
        return {"words": len(words), "counts": dict(Counter(words).most_common(10))}


def new() -> sdk.Step:
    return Words()
