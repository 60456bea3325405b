"""`relight doctor` on a cluster: what is printed, and with which exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tables import ROOT

from relight.local.kube import discovery

Run = Callable[..., tuple[int, str, str]]
OVERLAY = str(ROOT / "manifests/overlays/gpu")


@pytest.mark.usefixtures("a_cluster")
def test_what_manifests_lack_and_how_it_is_mended(relight: Run) -> None:
    code, out, err = relight("doctor", "-k", OVERLAY)
    assert (code, err) == (1, "")
    table, mends = out.split("\nto mend:\n")
    verdicts = {tuple(line.split()[:2]) for line in table.splitlines()[1:]}
    assert {("failed", "features"), ("failed", "registry"), ("warning", "gpu"), ("ok", "kinds")} <= verdicts
    lines = [line.strip() for line in mends.splitlines()]
    assert sum(line.startswith("kubectl patch configmap config-features") for line in lines) == 2
    assert len(lines) == len(set(lines)), "each is said once"


@pytest.mark.usefixtures("a_cluster")
def test_without_manifests_what_relight_deployed_is_checked(relight: Run, client: Any) -> None:
    service = {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "spec": {"template": {"spec": {"containers": [{"image": "registry.example.com/hello"}]}}},
    }
    client.create(service | {"metadata": {"name": "theirs"}}, field_manager="kn")
    client.apply(service | {"metadata": {"name": "ours"}})
    code, out, _ = relight("doctor", "--cluster", "-o", "json")
    images = [one for one in json.loads(out) if one["name"] == "registry"]
    assert (code, [one["finding"].partition(":")[0] for one in images]) == (1, ["ours"])


@pytest.mark.usefixtures("a_cluster")
def test_nothing_is_deployed_to_look_with(relight: Run) -> None:
    _, out, _ = relight("doctor", "--inside")
    assert "there is no image to look with" in out


def test_local_mode_is_a_cluster_that_has_it_all(relight: Run) -> None:
    assert discovery.VERSION["gitVersion"].endswith("+relight")
    code, out, _ = relight("doctor", "--cluster")
    assert (code, "to mend" in out, "local mode" in out) == (0, False, True)


def test_an_image_without_manifests_is_a_mistake(relight: Run) -> None:
    code, _, err = relight("doctor", "--cluster", "--image", "relight=a.example/b")
    assert (code, "--image renames" in err) == (7, True)
