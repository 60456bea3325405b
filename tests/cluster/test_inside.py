"""`relight doctor --inside`: a Job tells what a function would reach, and is taken away again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from tables import ROOT

from relight.cli.encoder import push_encoder
from relight.cluster.documents import Document, read_documents
from relight.cluster.images import rename_images
from relight.cluster.inside import build_job, look_inside
from relight.local.kube import kinds
from relight.store.reaching import look

IMAGE = "registry.example.org/relight:1"


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    """The overlay with GPUs, on one image."""
    found = read_documents([str(ROOT / "manifests/overlays/gpu")])
    return rename_images(found, {"relight": IMAGE})


def test_the_job_runs_as_the_function_would_but_wakes_no_gpu(documents: list[Document]) -> None:
    service = next(one.value for one in documents if one.value["metadata"]["name"] == "embed")
    job = build_job(service, "relight-doctor-x", 60, documents)
    kubernetes_validate.validate(job, "1.36.0", strict=True)
    pod = job["spec"]["template"]["spec"]
    (container,), (own,) = pod["containers"], service["spec"]["template"]["spec"]["containers"]
    same = ("image", "securityContext", "volumeMounts")
    assert {key: container[key] for key in same} == {key: own[key] for key in same}
    env = {one["name"]: one.get("value") for one in container["env"]}
    assert (env["RELIGHT_MODEL"], env["RELIGHT_REPOSITORY"]) == ("minilm", "s3://models/relight")
    assert container["envFrom"] == [{"secretRef": {"name": "relight-credentials", "optional": True}}], (
        "the ConfigMap may not have been applied yet: its settings are written into the Job"
    )
    assert "nvidia" not in json.dumps(job)
    assert not {"nodeSelector", "tolerations"} & pod.keys()
    assert job["spec"]["template"]["metadata"]["labels"] == service["spec"]["template"]["metadata"]["labels"], (
        "network policies choose by them"
    )


class Cluster:
    """Plays the Job's controller and the kubelet, a turn each time that somebody waits."""

    def __init__(self, client: Any, api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client, self.api, self._monkeypatch = client, api, monkeypatch
        self.now = 0.0
        self.status: dict[str, Any] = {}
        self.log: list[bytes] = []
        self.said: list[str] = []

    def turn(self, seconds: float) -> None:
        self.now += seconds
        (job,) = self.client.list("batch/v1", "Job")["items"]
        name = job["metadata"]["name"]
        if self.status and not self.client.list("v1", "Pod")["items"]:
            self._monkeypatch.setitem(self.api.logs, f"{name}-pod", self.log)
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"{name}-pod", "namespace": "default", "labels": {"job-name": name}},
                "spec": {"nodeName": "node-1", "containers": [{"name": "look", "image": IMAGE}]},
                "status": self.status,
            }
            self.api.create(kinds.POD, pod)

    def look(self, documents: list[Document]) -> list[tuple[str, str, str]]:
        found = look_inside(
            self.client,
            documents,
            "default",
            timeout=5,
            on_progress=self.said.append,
            clock=lambda: self.now,
            pause=self.turn,
        )
        assert self.client.list("batch/v1", "Job")["items"] == [], "it is taken away whatever comes of it"
        return [(one.name, one.verdict, one.finding) for one in found]


@pytest.fixture
def cluster(client: Any, api: Any, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(client, api, monkeypatch)


def line(name: str, ok: bool, finding: str) -> bytes:
    return json.dumps({"name": name, "ok": ok, "finding": finding}).encode() + b"\n"


WAITING = {"containerStatuses": [{"name": "look", "state": {"waiting": {"reason": "ErrImagePull", "message": "no"}}}]}
ROWS: list[tuple[str, dict[str, Any], list[bytes], list[tuple[str, str, str]]]] = [
    (
        "all is reached",
        {"phase": "Succeeded"},
        [b"a library says hello\n", line("repository", True, "s3://m has 2 models"), line("cache", True, "/cache")],
        [
            ("registry", "ok", f"{IMAGE} was pulled by node-1"),
            ("repository from inside", "ok", "s3://m has 2 models"),
            ("cache from inside", "ok", "/cache"),
        ],
    ),
    (
        "no right to read",
        {"phase": "Failed"},
        [line("repository", False, "s3://m: access denied")],
        [
            ("registry", "ok", f"{IMAGE} was pulled by node-1"),
            ("repository from inside", "failed", "s3://m: access denied"),
        ],
    ),
    (
        "an image without relight",
        {"phase": "Failed"},
        [b"/usr/bin/python: No module named relight\n"],
        [
            ("registry", "ok", f"{IMAGE} was pulled by node-1"),
            (
                "inside",
                "failed",
                f"{IMAGE} does not run python -m relight.store.reaching: /usr/bin/python: No module named relight",
            ),
        ],
    ),
    ("no such image", WAITING, [], [("registry", "failed", f"{IMAGE}: the image cannot be pulled: no")]),
    (
        "it hangs",
        {"phase": "Running"},
        [],
        [("inside", "failed", f"{IMAGE}: nothing was heard after 5 s: it looks around")],
    ),
]


@pytest.mark.parametrize(("status", "log", "wanted"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_what_the_pod_tells(
    cluster: Cluster,
    documents: list[Document],
    status: dict[str, Any],
    log: list[bytes],
    wanted: list[tuple[str, str, str]],
) -> None:
    cluster.status, cluster.log = status, log
    one_image = [one for one in documents if one.value["metadata"]["name"] in ("split", "embed")]
    assert cluster.look(one_image) == wanted


@pytest.mark.parametrize("there", [False, True], ids=["still to be applied", "applied"])
def test_accounts_and_claims_that_are_not_there_yet_are_done_without(
    cluster: Cluster, documents: list[Document], there: bool
) -> None:
    (split,) = (one for one in documents if one.value["metadata"]["name"] == "split")
    value = json.loads(json.dumps(split.value))
    spec = value["spec"]["template"]["spec"]
    spec["serviceAccountName"] = "reader"
    spec["volumes"][0] = {"name": "cache", "persistentVolumeClaim": {"claimName": "models"}}
    if there:
        cluster.client.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader"}})
        claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
        metadata = {"name": "models"}
        cluster.client.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": claim})
    seen: list[dict[str, Any]] = []

    def turn(seconds: float) -> None:
        cluster.now += 10
        seen.append(cluster.client.list("batch/v1", "Job")["items"][0]["spec"]["template"]["spec"])

    cluster.turn = turn  # type: ignore[method-assign]
    cluster.look([Document("here", value)])
    assert ("serviceAccountName" in seen[0], "persistentVolumeClaim" in seen[0]["volumes"][0]) == (there, there)


def test_a_pod_that_may_not_be_made_says_why(cluster: Cluster, documents: list[Document], api: Any) -> None:
    why = 'pods "relight-doctor" is forbidden: violates PodSecurity "restricted"'

    def turn(seconds: float) -> None:
        cluster.now += seconds
        (job,) = cluster.client.list("batch/v1", "Job")["items"]
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"why.{cluster.now:g}", "namespace": "default"},
            "involvedObject": {"kind": "Job", "name": job["metadata"]["name"]},
            "type": "Warning",
            "reason": "FailedCreate",
            "message": why,
        }
        api.create(kinds.EVENT, event)

    cluster.turn = turn  # type: ignore[method-assign]
    ((name, verdict, finding),) = cluster.look([one for one in documents if one.value["metadata"]["name"] == "split"])
    assert (name, verdict, why in finding) == ("inside", "failed", True)


def test_what_is_reached_from_this_very_place(tmp_path: Path) -> None:
    repository, cache = (tmp_path / "models").as_uri(), tmp_path / "cache"
    push_encoder(repository, lambda text: None)
    environ = {"RELIGHT_REPOSITORY": repository, "RELIGHT_CACHE": str(cache), "RELIGHT_MODEL": "minilm"}
    models, disk = look(environ)
    assert (models.ok, disk.ok) == (True, True), (models, disk)
    assert "has 1 model: minilm; minilm version 1 can be read" in models.finding
    assert list(cache.iterdir()) == [], "nothing is left behind"


NOT_REACHED: list[tuple[str, Callable[[Path], dict[str, str]], str]] = [
    ("no repository is named", lambda path: {}, "RELIGHT_REPOSITORY is not set"),
    ("no such model", lambda path: {"RELIGHT_REPOSITORY": path.as_uri(), "RELIGHT_MODEL": "bert"}, "bert"),
    ("no such scheme", lambda path: {"RELIGHT_REPOSITORY": "gopher://x/y"}, "gopher"),
]


@pytest.mark.parametrize(("environ", "says"), [row[1:] for row in NOT_REACHED], ids=[row[0] for row in NOT_REACHED])
def test_what_is_not_reached(tmp_path: Path, environ: Callable[[Path], dict[str, str]], says: str) -> None:
    found, _ = look(environ(tmp_path) | {"RELIGHT_CACHE": str(tmp_path)})
    assert (found.name, found.ok, says in found.finding) == ("repository", False, True), found
