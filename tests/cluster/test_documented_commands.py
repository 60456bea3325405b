"""Every relight command that the documents quote exists, with the options that it is quoted with."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tables import ROOT
from typer.main import get_command

from relight.cli.main import COMMANDS, _load

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINE = re.compile(r"^(?:    |\$ )(?:.*\| )?(relight [^\n]*)$", re.MULTILINE)
SPAN = re.compile(r"`(relight [a-z][^`|…]*)`")
OPTION = re.compile(r"--?[a-z][a-z-]*")


@cache
def command(name: str) -> Any:
    found = {one.name: one for one in COMMANDS}.get(name)
    return None if found is None else get_command(_load(found))


def quoted(text: str) -> list[str]:
    lines = [match.group(1).split("  #")[0].split(" &")[0].split(" >")[0] for match in LINE.finditer(text)]
    return sorted({" ".join(one.split()) for one in [*lines, *SPAN.findall(text)]})


def mistakes(line: str) -> list[str]:
    words = shlex.split(line, comments=True)[1:]
    if words == ["up"] or not words:
        return []
    found = command(words[0])
    if found is None:
        return [f"no command {words[0]}"]
    at = 1
    while hasattr(found, "commands") and at < len(words) and not words[at].startswith("-"):
        if words[at] not in found.commands:
            return [f"{words[0]} has no {words[at]}"]
        found, at = found.commands[words[at]], at + 1
    known = {name for one in found.params for name in (*one.opts, *one.secondary_opts)} | {"-h", "--help"}
    given = [word.partition("=")[0] for word in words[at:] if OPTION.match(word)]
    return [f"{' '.join(words[:at])} has no option {name}" for name in given if name not in known]


CASES = [pytest.param(path, line, id=f"{path.name}: {line}") for path in DOCUMENTS for line in quoted(path.read_text())]


def test_there_are_commands_to_check() -> None:
    assert len(CASES) > 40


@pytest.mark.parametrize(("path", "line"), CASES)
def test_a_quoted_command_exists(path: Path, line: str) -> None:
    assert mistakes(line) == []


WRONG = [
    ("relight deploy bert --canry 10", ["deploy has no option --canry"]),
    ("relight fly", ["no command fly"]),
    ("relight model shove a b", ["model has no shove"]),
    ("relight traffic bert --canary 10 --tag next", []),
    ("relight call bert -H 'a: b' -d '{\"x\": \"--y\"}'", []),
]


@pytest.mark.parametrize(("line", "wanted"), WRONG, ids=[row[0] for row in WRONG])
def test_the_check_itself(line: str, wanted: list[str]) -> None:
    assert mistakes(line) == wanted
