"""What the README shows is run: its function, its commands."""

from __future__ import annotations

import json
import re
from pathlib import Path

from kit import make_function, post
from tables import ROOT

from relight.cli.main import COMMANDS
from relight.testing.platform import RunningPlatform

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_first_answer_is_shown_by_line_30() -> None:
    assert "asked from zero: answered" in "\n".join(README.splitlines()[:30])


def test_the_function_of_the_readme_works_as_it_stands(stack: RunningPlatform, tmp_path: Path) -> None:
    (code,) = blocks("python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    folder = make_function(tmp_path, "doubler", code)
    url = json.loads(stack.relight("deploy", str(folder), "-o", "json").stdout)["url"]
    inputs = [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4.5]}]
    answer = post(f"{url}/v2/models/doubler/infer", {"inputs": inputs})
    assert answer.status == 200, answer.data
    assert answer.json()["outputs"][0]["data"] == [2, 4, 6, 9]


def test_every_command_of_the_readme_exists() -> None:
    known = {command.name for command in COMMANDS}
    used = set(re.findall(r"relight ([a-z]+)", "\n".join(blocks("console")))) - {"is"}
    assert used
    assert used <= known
    for verb in re.findall(r"`relight ([a-z|]+)`", README):
        assert set(verb.split("|")) <= known
