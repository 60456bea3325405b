"""A user's own function, from an empty folder to an answer, an edit and a new revision; and an own model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kit import http, make_function, post

from relight.testing.platform import RunningPlatform


def test_a_step_from_an_empty_folder(stack: RunningPlatform, tmp_path: Path) -> None:
    made = tmp_path / "hello"
    stack.relight("new", "step", "hello", str(made))
    deployed = json.loads(stack.relight("deploy", str(made), "-o", "json").stdout)
    assert deployed["url"] == f"{stack.functions}/default/hello"
    answer = post(deployed["url"], {"text": "to be or not to be"})
    assert answer.status == 200, answer.data
    first = answer.json()

    # Deployed again unchanged: the same revision. Edited: a new one, which takes the traffic.
    again = json.loads(stack.relight("deploy", str(made), "-o", "json").stdout)
    assert again["revision"] == deployed["revision"]
    code = made / "function" / "func.py"
    code.write_text(
        "from relight.sdk import Step\n\n\nclass Edited(Step):\n    def run(self, data, event):\n"
        '        return {"edited": data["text"].upper()}\n\n\ndef new():\n    return Edited()\n'
    )
    edited = json.loads(stack.relight("deploy", str(made), "-o", "json").stdout)
    assert edited["revision"] != deployed["revision"]
    answer = post(edited["url"], {"text": "to be"})
    assert answer.json() == {"edited": "TO BE"} != first


def test_a_model_pushed_anew_is_served_by_a_new_version(stack: RunningPlatform, tmp_path: Path, encoder: Path) -> None:
    made = tmp_path / "sentences"
    stack.relight("model", "push", str(encoder), "sentences")
    stack.relight("new", "model", "sentences", str(made))
    url = json.loads(stack.relight("deploy", str(made), "-o", "json").stdout)["url"]
    described = http.request("GET", f"{url}/v2/models/sentences")
    assert described.status == 200, described.data
    assert described.json()["versions"] == ["1"]
    inputs = [
        {"name": name, "shape": [1, 3], "datatype": "INT64", "data": values}
        for name, values in (
            ("input_ids", [101, 7592, 102]),
            ("attention_mask", [1, 1, 1]),
            ("token_type_ids", [0, 0, 0]),
        )
    ]
    answer = post(f"{url}/v2/models/sentences/infer", {"inputs": inputs})
    assert answer.status == 200, answer.data
    assert answer.json()["outputs"][0]["shape"] == [1, 3, 384]

    stack.relight("model", "push", str(encoder), "sentences")
    stack.relight("deploy", str(made))
    assert http.request("GET", f"{url}/v2/models/sentences").json()["versions"] == ["2"]


LOAD_RAISES = """
from relight.sdk import Step

class Broken(Step):
    def load(self):
        raise ValueError("no weights here")
    def run(self, data, event):
        return data

def new():
    return Broken()
"""
STEADY = """
from relight.sdk import Step

class Steady(Step):
    def load(self):
        {load}
    def run(self, data, event):
        return {{"good": 1}}

def new():
    return Steady()
"""


@pytest.mark.parametrize(
    ("name", "broken", "says"),
    [
        ("import-fails", "import nothing_of_that_name\n\ndef new():\n    pass\n", "nothing_of_that_name"),
        ("exits-at-once", "raise SystemExit(3)\n\ndef new():\n    pass\n", "3"),
        ("load-raises", LOAD_RAISES, "no weights here"),
    ],
)
def test_a_broken_function_says_why(stack: RunningPlatform, tmp_path: Path, name: str, broken: str, says: str) -> None:
    folder = make_function(tmp_path, name, broken)
    failed = stack.relight("deploy", str(folder), check=False)
    assert failed.returncode != 0
    assert says in failed.stderr
    assert "Traceback" not in failed.stderr
    # One start, one reason: held requests are refused with it, at once, and nothing is started over and over.
    pods = json.loads(stack.relight("get", "pods", "-o", "json").stdout)["items"]
    assert not [pod for pod in pods if pod["metadata"]["name"].startswith(name)]
    stack.relight("delete", "ksvc", name)


def test_a_broken_edit_leaves_the_old_revision_in_charge(stack: RunningPlatform, tmp_path: Path) -> None:
    folder = make_function(tmp_path, "steady", STEADY.format(load="pass"))
    url = json.loads(stack.relight("deploy", str(folder), "-o", "json").stdout)["url"]
    make_function(tmp_path, "steady", STEADY.format(load="1 / 0"))
    failed = stack.relight("deploy", str(folder), check=False)
    assert "ZeroDivisionError" in failed.stderr
    assert post(url, {}).json() == {"good": 1}
