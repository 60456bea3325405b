"""The published schema of relight.yaml, and what a deployment takes: whatever one refuses, the other refuses."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from tables import ROOT

from relight.base.errors import Unprocessable
from relight.cluster.project import read_project
from relight.decide.canary import Policy, read_policy

SCHEMA = json.loads((ROOT / "manifests/schemas/relight.yaml.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
FOLDER = {
    "func.yaml": 'specVersion: 0.36.0\nname: hello\ncreated: "2026-01-31T12:00:00Z"\n',
    "pyproject.toml": '[project]\nname = "function"\n',
    "function/__init__.py": "def new(): ...\n",
}
ROWS = [
    ("nothing", "", True),
    ("only comments", "# a GPU, later\n", True),
    ("a GPU", "spec: {template: {spec: {containers: [{resources: {limits: {nvidia.com/gpu: '1'}}}]}}}", True),
    ("its kind", "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: hello}\n", True),
    ("another kind", "kind: Deployment\n", False),
    ("another version", "apiVersion: v1\n", False),
    ("a key at the wrong place", "resources: {}\n", False),
    ("a list for a mapping", "spec: []\n", False),
    ("a policy", "policy: {slo: {errorRate: 0.02, latency: 500ms, quantile: 0.99}}\n", True),
    ("an empty policy", "policy:\n", True),
    ("an empty part of it", "policy: {canary: }\n", True),
    ("a part for somebody else", "policy: {warm: {anything: 1}}\n", True),
    ("a canary", "policy: {canary: {steps: [1, 99], interval: 1m30s, patience: 1800, minRequests: 1}}\n", True),
    ("no steps", "policy: {canary: {steps: []}}\n", False),
    ("a step of everything", "policy: {canary: {steps: [100]}}\n", False),
    ("the same step twice", "policy: {canary: {steps: [10, 10]}}\n", False),
    ("no duration", "policy: {canary: {interval: soon}}\n", False),
    ("a duration without unit", "policy: {canary: {interval: '60'}}\n", False),
    ("no time at all", "policy: {canary: {interval: 0}}\n", False),
    ("a percent for a share", "policy: {slo: {errorRate: 5}}\n", False),
    ("quicker than the old one", "policy: {canary: {latencyRatio: 0.5}}\n", False),
    ("half a request", "policy: {canary: {minRequests: 1.5}}\n", False),
    ("a typo", "policy: {slo: {errorrate: 0.1}}\n", False),
    ("a policy that is a list", "policy: [1]\n", False),
]


@pytest.mark.parametrize(("text", "good"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_the_schema_and_a_deployment_agree(tmp_path: Path, text: str, good: bool) -> None:
    for name, content in {**FOLDER, "relight.yaml": text}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert VALIDATOR.is_valid(yaml.safe_load(text)) is good
    if good:
        read_project(tmp_path)
    else:
        with pytest.raises(Unprocessable, match=r"relight\.yaml"):
            read_project(tmp_path)


def test_its_defaults_are_the_policys() -> None:
    parts = SCHEMA["properties"]["policy"]["properties"]
    defaults = {
        part: {key: one["default"] for key, one in parts[part]["properties"].items() if "default" in one}
        for part in ("slo", "canary")
    }
    assert read_policy(defaults) == Policy()
    assert {"default" in one for one in parts["canary"]["properties"].values()} == {True}


def files() -> list[Path]:
    return sorted(
        path for folder in ("functions", "platform/func-templates") for path in (ROOT / folder).rglob("relight.yaml")
    )


@pytest.mark.parametrize("path", files(), ids=lambda path: path.parent.name)
def test_every_relight_yaml_of_the_project_is_valid(path: Path) -> None:
    VALIDATOR.validate(yaml.safe_load(path.read_text()))
