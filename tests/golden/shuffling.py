"""What is recorded is replayed under other names and with other numbers each time, so that nothing can be answered by
heart. A failure prints the seed; ``GOLDEN_SEED`` in the environment repeats it.
"""

from __future__ import annotations

import json
import os
import random
import re
import string
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SEED = int(os.environ.get("GOLDEN_SEED") or random.SystemRandom().randrange(2**32))

Draw = Callable[[random.Random], Mapping[str, str]]
"""Regular expressions of what varies in one case, and what stands there this time."""


def recorded(name: str) -> Any:
    return json.loads((FOLDER / name).read_text())


def seeded(of: str) -> random.Random:
    """Draws of one case: the same for the same seed, whichever tests run."""
    return random.Random(f"{SEED}/{of}")


def word(rng: random.Random, first: str = "", length: int = 6) -> str:
    """A name that is no other name: lower-case letters, after ``first``."""
    return first + "".join(rng.choice(string.ascii_lowercase) for _ in range(length))


class Renaming:
    """Names to other names, the first letter kept so that lists stay in order."""

    def __init__(self, names: tuple[str, ...], rng: random.Random) -> None:
        self.names = {name: word(rng, name[0]) for name in names}
        one_of = "|".join(map(re.escape, names))
        self._pattern = re.compile(rf"(?:(?<![A-Za-z0-9])|(?<=%3D)|(?<=%2F))({one_of})(?![A-Za-z0-9])")

    def __call__(self, value: Any) -> Any:
        """Anything JSON can hold, renamed in every text."""
        return json.loads(self._pattern.sub(lambda found: self.names[found[1]], json.dumps(value)))


def varied(value: Any, drawn: Mapping[str, str]) -> Any:
    """Anything JSON can hold, with what was drawn."""
    text = json.dumps(value)
    for pattern, instead in drawn.items():
        text = re.sub(pattern, lambda _, new=instead: new, text)  # type: ignore[misc]
    return json.loads(text)
