"""The commands that go through the Kubernetes API, against a real one, in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from relight.local.kube import kinds

SERVICE = {
    "apiVersion": "serving.knative.dev/v1",
    "kind": "Service",
    "metadata": {"name": "hello"},
    "spec": {"template": {"spec": {"containers": [{"image": "relight"}]}}},
}
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def hello(client: Any, api: Any) -> dict[str, Any]:
    """A Service that is ready, with an event."""
    made = client.apply(SERVICE)
    api.set_ready("hello", 1, "True")
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "hello.1", "namespace": "default"},
        "involvedObject": {"kind": "Service", "name": "hello", "uid": made["metadata"]["uid"]},
        "type": "Normal",
        "reason": "Created",
        "message": "Created Configuration",
        "count": 1,
    }
    api.create(kinds.EVENT, event)
    return dict(made)


@pytest.mark.usefixtures("hello")
@pytest.mark.parametrize("name", ["ksvc", "kservice", "service", "Services", "services.serving.knative.dev"])
def test_kinds_go_by_all_their_names(relight: Run, name: str) -> None:
    assert relight("get", name, "-o", "name") == (0, "service.serving.knative.dev/hello\n", "")


@pytest.mark.usefixtures("hello")
def test_tables_are_the_servers(relight: Run) -> None:
    code, out, err = relight("get", "ksvc")
    head, row = out.splitlines()
    assert (code, err) == (0, "")
    assert head.split() == ["NAME", "URL", "LATESTCREATED", "LATESTREADY", "READY", "REASON"]
    assert row.split()[:3] == ["hello", "http://hello.default.example.com", "hello-00001"]
    assert relight("get", "ksvc", "hello")[1] == out
    assert relight("get", "ksvc", "-A")[1].splitlines()[1].split()[:2] == ["default", "hello"]


@pytest.mark.usefixtures("hello")
def test_objects_as_json_and_yaml(relight: Run) -> None:
    one = json.loads(relight("get", "ksvc", "hello", "-o", "json")[1])
    assert one["metadata"]["name"] == "hello"
    assert yaml.safe_load(relight("get", "ksvc", "hello", "-o", "yaml")[1]) == one
    listed = json.loads(relight("get", "ksvc", "-o", "json")[1])
    assert (listed["kind"], listed["items"]) == ("List", [one])


def test_nothing_to_list(relight: Run) -> None:
    assert relight("get", "triggers") == (0, "", "no resources found in namespace default\n")
    assert json.loads(relight("get", "triggers", "-o", "json")[1])["items"] == []
    # A kind that its group has in an older version only.
    assert relight("get", "natsjetstreamchannels") == (0, "", "no resources found in namespace default\n")


REFUSED = [
    ("an unknown kind", ["get", "gizmo"], 4, "has no kind 'gizmo'"),
    ("an unknown object", ["get", "ksvc", "gone"], 4, '"gone" not found'),
    ("an unknown object, as JSON", ["get", "ksvc", "gone", "-o", "json"], 4, '"gone" not found'),
    ("describing what is not there", ["describe", "ksvc", "gone"], 4, '"gone" not found'),
    ("deleting what is not there", ["delete", "ksvc", "gone"], 4, '"gone" not found'),
    ("deleting nothing in particular", ["delete", "ksvc"], 7, "expected the names"),
    ("calling what is not there", ["call", "gone"], 4, '"gone" not found'),
    ("logs of what is not there", ["logs", "gone"], 4, '"gone" not found'),
    ("a broker that is not there", ["events", "send", "t"], 4, '"default" not found'),
    ("a folder that is not there", ["deploy", "gone"], 4, "gone: no such folder"),
    ("a folder without a function", ["deploy", "."], 7, "mistakes"),
]


@pytest.mark.parametrize(("arguments", "code", "says"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_is_refused(relight: Run, arguments: list[str], code: int, says: str) -> None:
    ended, out, err = relight(*arguments)
    assert (ended, out) == (code, ""), err
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert says in errors[0]


@pytest.mark.usefixtures("hello")
def test_describe_shows_conditions_and_events(relight: Run) -> None:
    code, out, _ = relight("describe", "ksvc", "hello")
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert ["Ready", "True"] in lines
    assert ["Normal", "Created", "1", "Created", "Configuration"] in lines
    assert "url: http://hello.default.example.com" in out


def test_apply_and_delete_by_file(relight: Run, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(SERVICE))
    assert relight("apply", "-f", "a.yaml") == (0, "service.serving.knative.dev/hello created\n", "")
    assert relight("apply", "-f", "a.yaml") == (0, "service.serving.knative.dev/hello unchanged\n", "")
    assert relight("delete", "-f", "a.yaml") == (0, "service.serving.knative.dev/hello deleted\n", "")
    assert relight("delete", "-f", "a.yaml")[0] == 4
    assert relight("delete", "-f", "a.yaml", "--ignore-not-found") == (0, "", "")


def test_apply_names_the_document_that_fails(relight: Run, tmp_path: Path) -> None:
    wrong = SERVICE | {"metadata": {"name": "wrong"}, "spec": {"template": {"spec": {"containers": []}}}}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump_all([SERVICE, wrong]))
    code, out, err = relight("apply", "-f", "a.yaml")
    assert (code, out) == (7, "service.serving.knative.dev/hello created\n")
    assert err.startswith("error: a.yaml (document 2): service.serving.knative.dev/wrong: ")


def test_a_function_from_a_template_is_deployed(relight: Run, tmp_path: Path) -> None:
    assert relight("new", "step", "words")[0] == 0
    code, out, _ = relight("deploy", "words", "--no-wait", "-o", "json")
    assert code == 0
    told = json.loads(out)
    assert {key: told[key] for key in ("name", "namespace", "result")} == {
        "name": "words",
        "namespace": "default",
        "result": "created",
    }
    template = json.loads(relight("get", "ksvc", "words", "-o", "json")[1])["spec"]["template"]
    assert template["metadata"]["annotations"]["relight.dev/source"] == str(tmp_path / "words")
    assert relight("deploy", "words", "--no-wait")[1].splitlines()[0] == "words unchanged"


def test_deploy_prints_the_url_and_a_line_to_try(relight: Run, api: Any) -> None:
    relight("new", "step", "words")
    relight("deploy", "words", "--no-wait")
    api.set_ready("words", 1, "True")
    code, out, _ = relight("deploy", "words")
    assert (code, out.splitlines()) == (
        0,
        [
            "words unchanged, revision words-00001",
            "url: http://words.default.example.com",
            "try: curl http://words.default.example.com -H 'Content-Type: application/json' "
            """-d '{"text": "to be or not to be"}'""",
        ],
    )


def test_a_deployment_that_fails_ends_with_its_reason(relight: Run, api: Any) -> None:
    relight("new", "model", "bert")
    err = relight("deploy", "bert", "--no-wait")[2]
    assert "warning: model bert is not in file://" in err
    api.set_ready("bert", 1, "False", "RevisionFailed", "there is no model bert")
    code, out, err = relight("deploy", "bert")
    assert (code, out) == (1, "")
    assert err.splitlines()[-2:] == [
        "error: bert did not become ready: RevisionFailed: there is no model bert",
        "hint: relight logs bert and relight describe ksvc bert may say more",
    ]


def test_logs_of_a_functions_pods(relight: Run, client: Any, api: Any) -> None:
    client.apply(SERVICE)
    assert relight("logs", "hello") == (0, "", "hello has no replicas: it is at zero\n")
    api.create(
        kinds.POD,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "hello-1", "namespace": "default", "labels": {"serving.knative.dev/service": "hello"}},
            "spec": {"containers": [{"name": "user-container", "image": "relight"}]},
        },
    )
    assert relight("logs", "hello") == (0, "loading\nready\n", "")
    assert relight("logs", "hello-1", "--tail", "1") == (0, "ready\n", "")
