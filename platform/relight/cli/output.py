"""What commands print: results on stdout, progress on stderr, JSON that is nothing but JSON."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

Format = Literal["table", "json"]
"""``-o`` of commands that have a table of their own."""


AnyFormat = Literal["table", "json", "yaml"]
"""``-o`` of those that print YAML too."""


def print_value(value: Any, output: AnyFormat) -> None:
    """A value for programs, in the notation that was asked for."""
    if output == "json":
        print_json(value)
        return
    import yaml

    print(yaml.safe_dump(json.loads(json.dumps(value, default=str)), sort_keys=False, allow_unicode=True), end="")


def print_json(value: Any) -> None:
    """A value as JSON, for programs."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


_NARROWEST = 36
"""Columns below which sentences are not set beside the others, but under them."""


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, wrap: bool = False) -> None:
    """Columns as ``kubectl get`` prints them: upper-case heads, three spaces between; no borders, nothing cut off.

    ``wrap``: the last column has sentences; on a terminal they are wrapped within it, or under the row where it is
    narrow.
    """
    lines = [tuple(column.upper() for column in columns), *(tuple(map(str, row)) for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    before = sum(widths[:-1]) + 3 * (len(widths) - 1)
    width = shutil.get_terminal_size().columns
    wrapped = wrap and sys.stdout.isatty() and before + widths[-1] > width
    under = wrapped and width - before < _NARROWEST
    if under:
        before = widths[0] + 3
    for at, line in enumerate(lines):
        head = "".join(f"{cell.ljust(size)}   " for cell, size in zip(line[:-1], widths, strict=False))
        parts = _wrap(line[-1], width - before) if wrapped else [line[-1]]
        if under and at > 0:
            print(head.rstrip())
            head = " " * before
        print((head + parts[0]).rstrip())
        for part in parts[1:]:
            print(" " * before + part)


def _wrap(text: str, room: int) -> list[str]:
    """Lines of a sentence; words that are longer, such as paths, stay whole."""
    return textwrap.wrap(text, max(room, 1), break_long_words=False, break_on_hyphens=False) or [""]


def note(text: str) -> None:
    """A line about what goes on, for a person: on stderr."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def waiting(text: str) -> Iterator[Waiting]:
    """A spinner on stderr while something is waited for; on anything but a terminal only changes of text, as lines."""
    if not sys.stderr.isatty():
        yield Waiting(None, text)
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as status:
        yield Waiting(status, text)


class Waiting:
    """What is shown while something is waited for."""

    def __init__(self, status: Any, text: str) -> None:
        self._status = status
        self._text = text

    def show(self, text: str) -> None:
        """Say something else; the same text again is not repeated."""
        if text == self._text:
            return
        self._text = text
        if self._status is None:
            note(text)
        else:
            self._status.update(text.replace("[", r"\["))
