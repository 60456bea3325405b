"""Every func command that the project quotes exists, with the flags that it is quoted with."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from tables import ROOT, load

FLAGS = {
    command: {name for flag in flags for name in (flag["flag"], flag.get("short")) if name}
    for command, flags in load("func_flags")["commands"].items()
}
# In a code span, in a line of a block of commands, or after a prompt: `func deploy …`, `kn func deploy …`.
QUOTED = (
    re.compile(r"`((?:kn )?func [a-z][^`]*)`"),
    re.compile(r"^[ \t]*(?:\$ +)?((?:kn )?func (?:[a-z]+)[^\n]*)$", re.MULTILINE),
)
SUFFIXES = (".md", ".py", ".yaml", ".toml")


def commands(text: str) -> list[str]:
    found = {match.group(1).split("  #")[0].strip() for pattern in QUOTED for match in pattern.finditer(text)}
    return sorted(found)


def mistakes(command: str) -> list[str]:
    words = shlex.split(command.removeprefix("kn "))
    length = 1
    while length < len(words) and " ".join(words[: length + 1]) in FLAGS:
        length += 1
    if length == 1:
        return [f"func has no command {words[1]}"]
    name = " ".join(words[:length])
    given = [word.partition("=")[0] for word in words[length:] if word.startswith("-")]
    return [f"{name} has no flag {flag}" for flag in given if flag not in FLAGS[name]]


def quoted() -> list[tuple[str, str]]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [Path(name) for name in listed.stdout.split("\0") if name.endswith(SUFFIXES)]
    return [
        (str(path), command)
        for path in paths
        if path.parts[0] != "tests" and (ROOT / path).is_file()
        for command in commands((ROOT / path).read_text())
    ]


def test_there_are_commands_to_check() -> None:
    assert len(quoted()) > 10


@pytest.mark.parametrize(("path", "command"), [pytest.param(*one, id=f"{one[0]}: {one[1]}") for one in quoted()])
def test_a_quoted_command_exists(path: str, command: str) -> None:
    assert mistakes(command) == [], path


WRONG = [
    ("kn func deploy --name bert", ["func deploy has no flag --name"]),
    ("func deploy --path=bert --gpu 1", ["func deploy has no flag --gpu"]),
    ("func fly --path bert", ["func has no command fly"]),
    ("func config envs add --nme X", ["func config envs add has no flag --nme"]),
    ("func create -l python -t relight-model -r URI bert", []),
]


@pytest.mark.parametrize(("command", "wanted"), WRONG, ids=[row[0] for row in WRONG])
def test_the_check_itself(command: str, wanted: list[str]) -> None:
    assert mistakes(command) == wanted
    assert commands(f"text `{command}` text\n    {command}\n$ {command}  # note\n") == [command]
