"""Deploying and applying through a real API: what is made, changed, left alone and waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relight.base.errors import BadInput, Deadline, LoadFailed, NotFound, RelightError, Unprocessable
from relight.cluster.apply import apply_paths
from relight.cluster.deploy import Deployed, deploy
from relight.cluster.waiting import wait_ready

SERVING, EVENTING = "serving.knative.dev/v1", "eventing.knative.dev/v1"

FUNC = """
specVersion: 0.36.0
name: hello
created: 2026-01-31T12:00:00Z
run: {envs: [{name: RELIGHT_MODEL, value: minilm}]}
deploy:
  subscriptions:
    - {source: default, filters: {type: a}}
    - {source: default, filters: {type: b}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "hello"
    (made / "function").mkdir(parents=True)
    (made / "func.yaml").write_text(FUNC)
    (made / "pyproject.toml").write_text('[project]\nname = "function"\n')
    (made / "function" / "__init__.py").write_text("def new(): ...\n")
    return made


def put(client: Any, folder: Path, versions: list[int] | None = None, **more: Any) -> Deployed:
    return deploy(client, folder, environ={}, model_versions=lambda model: versions or [], timeout=None, **more)


def generation(deployed: Deployed) -> int:
    return int(deployed.service["metadata"]["generation"])


def test_a_deployment_makes_a_service_and_its_triggers(client: Any, folder: Path) -> None:
    done = put(client, folder)
    assert (done.name, done.namespace, done.verb, generation(done)) == ("hello", "default", "created", 1)
    annotations = client.get(SERVING, "Service", "hello")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["relight.dev/source"] == str(folder)
    triggers = client.list(EVENTING, "Trigger")["items"]
    assert sorted(trigger["metadata"]["name"] for trigger in triggers) == sorted(done.triggers)
    uid = done.service["metadata"]["uid"]
    assert {trigger["metadata"]["ownerReferences"][0]["uid"] for trigger in triggers} == {uid}
    client.delete(SERVING, "Service", "hello")
    assert client.list(EVENTING, "Trigger")["items"] == []


STEPS: list[tuple[str, Callable[[Path], object], list[int], bool]] = [
    ("nothing changed", lambda folder: None, [1], False),
    (
        "the code was edited",
        lambda folder: (folder / "function" / "__init__.py").write_text("def new(): 1\n"),
        [1],
        True,
    ),
    ("a file came", lambda folder: (folder / "words.txt").write_text("x"), [1], True),
    ("rubbish came", lambda folder: (folder / "function" / "__pycache__").mkdir(), [1], False),
    ("a model was pushed", lambda folder: None, [1, 2], True),
]


@pytest.mark.parametrize(("edit", "versions", "changed"), [row[1:] for row in STEPS], ids=[row[0] for row in STEPS])
def test_a_new_revision_for_every_change(
    client: Any, folder: Path, edit: Callable[[Path], object], versions: list[int], changed: bool
) -> None:
    put(client, folder, [1])
    edit(folder)
    again = put(client, folder, versions)
    assert (again.verb, generation(again)) == (("configured", 2) if changed else ("unchanged", 1))
    container = again.service["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "RELIGHT_MODEL_VERSION", "value": str(versions[-1])} in container["env"]


def test_subscriptions_that_are_gone_take_their_triggers_with_them(client: Any, folder: Path) -> None:
    first = put(client, folder)
    own = {
        "apiVersion": EVENTING,
        "kind": "Trigger",
        "metadata": {"name": "hello-trigger-mine"},
        "spec": {"broker": "default", "subscriber": {"uri": "http://127.0.0.1:1"}},
    }
    client.apply(own)
    (folder / "func.yaml").write_text(FUNC.replace("    - {source: default, filters: {type: b}}\n", ""))
    second = put(client, folder)
    assert set(second.triggers) | set(second.removed) == set(first.triggers)
    assert len(second.removed) == 1
    left = {trigger["metadata"]["name"] for trigger in client.list(EVENTING, "Trigger")["items"]}
    assert left == {*second.triggers, "hello-trigger-mine"}


def test_the_namespace_is_as_told_then_the_functions_own(client: Any, folder: Path) -> None:
    for name in ("told", "own"):
        client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    (folder / "func.yaml").write_text(FUNC + "namespace: own\n")
    assert put(client, folder).namespace == "own"
    assert put(client, folder, namespace="told").namespace == "told"
    assert {trigger["metadata"]["namespace"] for trigger in client.list(EVENTING, "Trigger", "told")["items"]} == {
        "told"
    }


def test_a_folder_with_mistakes_changes_nothing(client: Any, folder: Path) -> None:
    (folder / "func.yaml").write_text(FUNC + "gpu: 1\n")
    with pytest.raises(Unprocessable, match=r"func\.yaml: gpu"):
        put(client, folder)
    assert client.list(SERVING, "Service")["items"] == []


def heard(
    client: Any, service: dict[str, Any], timeout: float = 20.0
) -> tuple[threading.Thread, list[Any], list[str], threading.Event]:
    """Waits for a Service in a thread: (thread, what came of it, progress, set at the first progress)."""
    outcome: list[Any] = []
    progress: list[str] = []
    began = threading.Event()

    def tell(text: str) -> None:
        progress.append(text)
        began.set()

    def wait() -> None:
        try:
            outcome.append(wait_ready(client, service, timeout, tell))
        except RelightError as error:
            outcome.append(error)

    thread = threading.Thread(target=wait, name="waiter")
    thread.start()
    return thread, outcome, progress, began


def test_waiting_for_the_new_generation_not_the_old(client: Any, api: Any, folder: Path) -> None:
    put(client, folder, [1])
    api.set_ready("hello", 1, "True")
    service = put(client, folder, [2]).service
    thread, outcome, progress, began = heard(client, dict(service))
    assert began.wait(10)
    api.set_ready("hello", 2, "Unknown", "Deploying", "starting a replica")
    api.set_ready("hello", 2, "True")
    thread.join(10)
    assert outcome[0]["status"]["latestCreatedRevisionName"] == "hello-00002"
    assert progress[:2] == ["hello: waiting for the controller", "hello: Deploying: starting a replica"]


def test_one_that_fails_says_why(client: Any, api: Any, folder: Path) -> None:
    service = put(client, folder).service
    thread, outcome, _, began = heard(client, dict(service))
    assert began.wait(10)
    api.set_ready("hello", 1, "False", "RevisionFailed", "load raised ValueError: no weights")
    thread.join(10)
    assert isinstance(outcome[0], LoadFailed)
    assert outcome[0].message == "hello did not become ready: RevisionFailed: load raised ValueError: no weights"


def test_one_that_is_deleted_meanwhile(client: Any, folder: Path) -> None:
    service = put(client, folder).service
    thread, outcome, _, began = heard(client, dict(service))
    assert began.wait(10)
    client.delete(SERVING, "Service", "hello")
    thread.join(10)
    assert isinstance(outcome[0], NotFound)


def test_one_that_takes_too_long_says_what_it_waited_for(client: Any, api: Any, folder: Path) -> None:
    service = put(client, folder).service
    api.set_ready("hello", 1, "Unknown", "ResourcesUnavailable", "no GPU is free")
    with pytest.raises(Deadline, match=r"hello was not ready after 0\.2 s: ResourcesUnavailable: no GPU is free"):
        wait_ready(client, service, 0.2)


def thing(kind: str, name: str, **spec: Any) -> str:
    import json

    group = {"ConfigMap": "v1", "Broker": EVENTING, "Trigger": EVENTING, "Service": SERVING}[kind]
    return json.dumps({"apiVersion": group, "kind": kind, "metadata": {"name": name}, **spec}) + "\n---\n"


def test_applying_files(client: Any, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(thing("Broker", "default", spec={}) + thing("ConfigMap", "c", data={"a": "1"}))
    path = tmp_path / "a.yaml"
    verbs = [(one.document.name, one.verb) for one in apply_paths(client, [path], namespace="default")]
    assert verbs == [("configmap/c", "created"), ("broker.eventing.knative.dev/default", "created")]
    path.write_text(path.read_text().replace('"1"', '"2"'))
    assert [one.verb for one in apply_paths(client, [path], namespace="default")] == ["configured", "unchanged"]


def test_one_document_that_fails_does_not_stop_the_others(client: Any, tmp_path: Path) -> None:
    broken = thing("Trigger", "broken", spec={"broker": "default"}) + thing("Service", "empty", spec={})
    (tmp_path / "a.yaml").write_text(broken + thing("ConfigMap", "c", data={"a": "1"}))
    with pytest.raises(BadInput) as caught:
        apply_paths(client, [tmp_path / "a.yaml"], namespace="default")
    places = [problem.path for problem in caught.value.problems]
    assert places == [
        f"{tmp_path}/a.yaml (document 2): service.serving.knative.dev/empty",
        f"{tmp_path}/a.yaml: trigger.eventing.knative.dev/broken",
    ]
    assert client.get("v1", "ConfigMap", "c")["data"] == {"a": "1"}
