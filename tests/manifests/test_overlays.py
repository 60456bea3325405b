"""What each overlay renders to, word by word, and what must be true of all of it.

``RELIGHT_UPDATE_GOLDEN=1 pytest tests/manifests`` writes the renders anew; they are reviewed by eye.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tables import ROOT

from relight.cluster.documents import read_documents
from relight.decide.features import needed

MANIFESTS = ROOT / "manifests"
GOLDEN = Path(__file__).parent / "golden"
OVERLAYS = ["local", "cpu", "gpu", "gpu-mig", "prod"]
UPDATE = bool(os.environ.get("RELIGHT_UPDATE_GOLDEN"))
KUBERNETES = "1.36.0"


def render(path: Path) -> list[dict[str, Any]]:
    return [dict(document.value) for document in read_documents([str(path)])]


def overlay(name: str) -> list[dict[str, Any]]:
    return render(MANIFESTS / "overlays" / name)


def services(objects: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, the template's spec) of each Knative Service."""
    for one in objects:
        if one["kind"] == "Service" and one["apiVersion"].startswith("serving."):
            yield one["metadata"]["name"], one["spec"]["template"]["spec"]


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_renders_to_what_was_reviewed(name: str) -> None:
    text = yaml.safe_dump_all(overlay(name), sort_keys=False)
    path = GOLDEN / f"{name}.yaml"
    if UPDATE:
        path.write_text(text)
    assert path.read_text() == text


def test_every_overlay_is_rendered_here() -> None:
    assert sorted(path.name for path in (MANIFESTS / "overlays").iterdir()) == sorted(OVERLAYS)
    assert sorted(path.stem for path in GOLDEN.iterdir()) == sorted(OVERLAYS)


@pytest.mark.parametrize("name", OVERLAYS)
def test_native_kinds_are_valid(name: str) -> None:
    for one in overlay(name):
        if "." not in one["apiVersion"].partition("/")[0] or one["apiVersion"].partition("/")[0].endswith(".k8s.io"):
            kubernetes_validate.validate(one, KUBERNETES, strict=True)


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_function_is_one_of_the_project_and_has_what_it_needs(name: str) -> None:
    found = dict(services(overlay(name)))
    assert sorted(found) == sorted(path.parent.name for path in (ROOT / "functions").glob("*/func.yaml"))
    for function, spec in found.items():
        (container,) = spec["containers"]
        env = {one["name"]: one["value"] for one in container["env"]}
        assert env["RELIGHT_FUNCTION"] == function
        assert container["readinessProbe"]["httpGet"]["path"] == "/health/readiness"
        assert container["livenessProbe"]["httpGet"]["path"] == "/health/liveness"
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert "memory" in container["resources"]["limits"], "one function must not take the node's memory"


@pytest.mark.parametrize("name", OVERLAYS)
def test_pods_keep_to_the_restricted_pod_security_level(name: str) -> None:
    allowed = {"configMap", "csi", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret", "name"}
    for function, spec in services(overlay(name)):
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys(), function
        assert all(volume.keys() <= allowed for volume in spec["volumes"]), function
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["runAsNonRoot"] is True
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}
            assert context["readOnlyRootFilesystem"] is True, "beyond the level: nothing is written but to volumes"
            assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/cache", "/tmp"}


def flags(name: str) -> set[str]:
    (config,) = render(MANIFESTS / "knative" / f"{name}.yaml")
    assert (config["metadata"]["name"], config["metadata"]["namespace"]) == ("config-features", "knative-serving")
    assert set(config["data"].values()) == {"enabled"}
    return set(config["data"])


FLAGS = [("local", None), ("cpu", None), ("gpu", "gpu"), ("gpu-mig", "gpu"), ("prod", "prod")]


@pytest.mark.parametrize(("name", "features"), FLAGS, ids=[row[0] for row in FLAGS])
def test_the_feature_flags_of_an_overlay_are_there_and_no_others(name: str, features: str | None) -> None:
    wanted = {flag for _, spec in services(overlay(name)) for flag, _ in needed(spec)}
    given = flags(features) - {"tag-header-based-routing"} if features else set()
    assert given == wanted


def with_component(tmp_path: Path, component: str) -> list[dict[str, Any]]:
    """The overlay `cpu` with one component more, as somebody's own overlay has it."""
    for name in ("overlays", "components", "base"):
        (tmp_path / "manifests" / name).parent.mkdir(exist_ok=True)
        _copy(MANIFESTS / name, tmp_path / "manifests" / name)
    _copy(ROOT / "events", tmp_path / "events")
    mine = tmp_path / "manifests" / "overlays" / "mine"
    mine.mkdir()
    (mine / "kustomization.yaml").write_text(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
        f"resources: [../cpu]\ncomponents: [../../components/{component}]\n"
    )
    return render(mine)


CLASSES = [("broker-kafka", "Kafka", "ConfigMap"), ("broker-rabbitmq", "RabbitMQBroker", "RabbitmqBrokerConfig")]


@pytest.mark.parametrize(("component", "kind", "config"), CLASSES, ids=[row[1] for row in CLASSES])
def test_another_class_of_broker(component: str, kind: str, config: str, tmp_path: Path) -> None:
    objects = with_component(tmp_path, component)
    (broker,) = (one for one in objects if one["kind"] == "Broker")
    assert broker["metadata"]["annotations"]["eventing.knative.dev/broker.class"] == kind
    assert broker["spec"]["config"]["kind"] == config
    (example,) = (
        one for one in render(MANIFESTS / "examples/brokers" / f"{component[7:]}.yaml") if one["kind"] == "Broker"
    )
    assert broker == example, "the example is the same Broker"


@pytest.mark.parametrize("component", ["cache-pvc", "cache-hostpath"])
def test_another_cache_volume(component: str, tmp_path: Path) -> None:
    found = dict(services(with_component(tmp_path, component)))
    assert "emptyDir" in found["split"]["volumes"][0]
    for name in ("embed", "model"):
        (cache,) = (volume for volume in found[name]["volumes"] if volume["name"] == "cache")
        assert "emptyDir" not in cache
        assert {flag for flag, _ in needed(found[name])} == flags(component)


def _copy(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        if path.is_file():
            (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            (target / path.relative_to(source)).write_bytes(path.read_bytes())


def test_gpu_models_ask_for_one_gpu_each_and_for_the_nodes_that_have_them() -> None:
    for name, resource in (("gpu", "nvidia.com/gpu"), ("gpu-mig", "nvidia.com/mig-1g.10gb")):
        objects = {one["metadata"]["name"]: one for one in overlay(name) if one["kind"] == "Service"}
        for function in ("embed", "model"):
            template = objects[function]["spec"]["template"]
            limits = template["spec"]["containers"][0]["resources"]["limits"]
            assert {key: value for key, value in limits.items() if "/" in key} == {resource: "1"}
            assert template["metadata"]["annotations"]["autoscaling.knative.dev/target-utilization-percentage"] == "100"
        assert "nvidia" not in str(objects["split"])


def test_settings_reach_every_function_and_a_change_makes_new_revisions() -> None:
    objects = overlay("cpu")
    (config,) = (one for one in objects if one["kind"] == "ConfigMap")
    assert config["metadata"]["name"].startswith("relight-"), "a hash of the content is part of the name"
    for _, spec in services(objects):
        (container,) = spec["containers"]
        assert {"configMapRef": {"name": config["metadata"]["name"]}} in container["envFrom"]
