"""render, diff, apply -k, delete and convert, against a real API, in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tables import ROOT

Run = Callable[..., tuple[int, str, str]]
OVERLAYS = ROOT / "manifests" / "overlays"


@pytest.fixture(autouse=True)
def knative_serving(client: Any) -> None:
    """The namespace of Knative's own configuration, which every cluster with Knative has."""
    client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "knative-serving"}})


def test_the_same_base_in_every_overlay_is_taken_by_the_api(relight: Run) -> None:
    """Every field is one that Knative knows, and what needs a flag is refused until the flag is there."""
    for name, features in (("local", None), ("cpu", None), ("gpu", "gpu"), ("gpu-mig", None)):
        if features:
            code, _, err = relight("apply", "-k", str(OVERLAYS / name))
            assert code == 7, "nodeSelector and tolerations are behind flags"
            assert "nodeSelector" in err
            assert "hint: ConfigMap config-features in knative-serving has to enable kubernetes.podspec-nodesel" in err
            assert relight("apply", "-f", str(ROOT / "manifests/knative" / f"{features}.yaml"))[0] == 0
        code, out, err = relight("apply", "-k", str(OVERLAYS / name))
        assert (code, [line for line in err.splitlines() if "not enforced" not in line]) == (0, []), err
        assert "service.serving.knative.dev/model" in out
        assert relight("delete", "-k", str(OVERLAYS / name))[::2] == (0, "")


def test_production_but_for_what_other_operators_define(relight: Run, tmp_path: Path) -> None:
    assert relight("apply", "-f", str(ROOT / "manifests/knative/prod.yaml"))[0] == 0
    code, out, _ = relight("render", "-k", str(OVERLAYS / "prod"))
    assert code == 0
    objects = [one for one in yaml.safe_load_all(out) if not one["apiVersion"].startswith("monitoring.coreos.com")]
    (tmp_path / "prod.yaml").write_text(yaml.safe_dump_all(objects))
    code, out, err = relight("apply", "-f", "prod.yaml")
    assert code == 0, err
    assert len(out.splitlines()) == len(objects)


def test_examples_are_taken_by_the_api(relight: Run) -> None:
    for path in sorted((ROOT / "manifests" / "examples").rglob("*.yaml")):
        code, _, err = relight("apply", "-f", str(path))
        known = "RabbitmqBrokerConfig" in err  # a kind of the broker's operator, which no API here serves
        assert code == 0 or known, f"{path}: {err}"


def test_another_image(relight: Run) -> None:
    reference = "registry.example.com/team/relight@sha256:" + "a" * 64
    _, out, _ = relight("render", "-k", str(OVERLAYS / "cpu"), "--image", f"relight={reference}")
    services = [one for one in yaml.safe_load_all(out) if one["kind"] == "Service"]
    assert {one["spec"]["template"]["spec"]["containers"][0]["image"] for one in services} == {reference}
    code, _, err = relight("render", "-k", str(OVERLAYS / "cpu"), "--image", "relite=x/y")
    assert (code, "no container has an image of that name" in err) == (7, True)


def test_diff_shows_what_apply_would_do_and_nothing_after_it(relight: Run, tmp_path: Path) -> None:
    service = {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": "hello"},
        "spec": {"template": {"spec": {"containers": [{"image": "relight"}]}}},
    }
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump(service))
    code, out, _ = relight("diff", "-f", "a.yaml")
    assert (code, out.splitlines()[0]) == (1, "--- live/service.serving.knative.dev/hello")
    assert relight("get", "ksvc", "-o", "name")[1] == "", "a diff changes nothing"
    relight("apply", "-f", "a.yaml")
    assert relight("diff", "-f", "a.yaml") == (0, "", "")
    service["spec"] = {"template": {"spec": {"timeoutSeconds": 60, "containers": [{"image": "relight"}]}}}
    path.write_text(yaml.safe_dump(service))
    code, out, _ = relight("diff", "-f", "a.yaml")
    changed = [line for line in out.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert (code, changed) == (1, ["-      timeoutSeconds: 300", "+      timeoutSeconds: 60"])


def test_what_others_made_is_not_deleted(relight: Run, client: Any) -> None:
    theirs = {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": "theirs"},
        "spec": {"template": {"spec": {"containers": [{"image": "relight"}]}}},
    }
    client.create(theirs, field_manager="kn")
    code, _, err = relight("delete", "ksvc", "theirs")
    assert code == 5
    assert "was not made by relight but by kn" in err
    # A patch of ours on it, such as the warm policy's, does not make it ours.
    client.patch("serving.knative.dev/v1", "Service", "theirs", {"metadata": {"labels": {"a": "b"}}})
    assert relight("delete", "ksvc", "theirs")[0] == 5
    assert relight("delete", "ksvc", "theirs", "--force")[0] == 0


def test_a_plain_folder_is_no_kustomization(relight: Run, tmp_path: Path) -> None:
    code, _, err = relight("apply", "-k", str(tmp_path))
    assert (code, "no kustomization.yaml" in err) == (7, True)
    code, _, err = relight("apply")
    assert (code, "expected -f PATH or -k DIR" in err) == (7, True)


def test_a_functions_objects_are_rendered(relight: Run) -> None:
    relight("new", "model", "bert")
    code, out, _ = relight("render", "bert", "--image", "relight=registry.example.com/relight:0.1.0")
    (service,) = yaml.safe_load_all(out)
    container = service["spec"]["template"]["spec"]["containers"][0]
    assert (code, container["image"]) == (0, "registry.example.com/relight:0.1.0")
    assert container["securityContext"]["runAsNonRoot"] is True


def test_kserve_is_converted_and_the_rest_is_said(relight: Run, tmp_path: Path) -> None:
    (tmp_path / "isvc.yaml").write_text(
        "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: bert}\n"
        "spec: {predictor: {logger: {mode: all}, model: {modelFormat: {name: onnx}, storageUri: s3://b/bert}}}\n"
    )
    code, out, err = relight("convert", "kserve", "isvc.yaml")
    assert code == 0
    assert "spec.predictor.logger: not carried over: relight does not log payloads" in err
    (tmp_path / "service.yaml").write_text(out)
    assert relight("apply", "-f", "service.yaml")[0] == 0
    sklearn = (tmp_path / "isvc.yaml").read_text().replace("onnx", "sklearn")
    (tmp_path / "isvc.yaml").write_text(sklearn)
    code, out, err = relight("convert", "kserve", "isvc.yaml")
    assert (code, out) == (7, "")
    assert "isvc.yaml: inferenceservice.serving.kserve.io/bert: spec.predictor.model.modelFormat.name: 'sklearn'" in err
