"""Every answer that was recorded from a real cluster, asked for again here: status, reason, message and object."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from golden.shuffling import Draw, Renaming, recorded, seeded, varied, word
from kubekit import Running

from relight.local.kube import kinds
from relight.local.kube.store import ObjectStore

CASES = recorded("api.json")["cases"]
NAMES = ("hello", "evlog", "g1", "g2", "other", "nope", "bogus", "frobs")

DIFFERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "wrong type": (
        "a cluster names its Go structs, which nobody can look up; the field and both types are told all the same",
        ('webhook "webhook.serving.knative.dev" denied the request: mutation failed', "unmarshal string", "traffic"),
    ),
    "not json": (
        "the parser's own words for what is wrong with the text",
        ("the object provided is unrecognized (must be of type Service): couldn't get version/kind; json parse error",),
    ),
    "trigger bad cesql": (
        "a cluster does not say where in the expression the mistake is",
        ("denied the request: validation failed: invalid value: type = : spec.filters[0].cesql\n", "at character 8"),
    ),
    "revision spec is immutable": (
        "a cluster names its Go structs; the field's path, the old and the new value are told all the same",
        ("Immutable fields changed (-old +new): spec", "timeoutSeconds", '-: "300"', '+: "{timeout}"'),
    ),
}
"""Messages that differ deliberately: why, and what they must say all the same."""


def number(low: int, high: int) -> Callable[[random.Random], str]:
    return lambda rng: str(rng.randint(low, high))


def _min_over_max(rng: random.Random) -> Mapping[str, str]:
    low = rng.randint(1, 50)
    high = low + rng.randint(1, 50)
    return {
        '"autoscaling.knative.dev/min-scale": "5"': f'"autoscaling.knative.dev/min-scale": "{high}"',
        '"autoscaling.knative.dev/max-scale": "2"': f'"autoscaling.knative.dev/max-scale": "{low}"',
        "max-scale=2": f"max-scale={low}",
        "min-scale=5": f"min-scale={high}",
    }


def _one(pattern: str, draw: Callable[[random.Random], str], shape: str = "{}") -> Draw:
    return lambda rng: {pattern: shape.format(draw(rng))}


VARIES: dict[str, Draw] = {
    "min-scale not a number": _one(r"(?<=[\" ])x(?=[\":])", word),
    "min over max": _min_over_max,
    "window too short": _one(r"\b1s\b", number(1, 5), "{}s"),
    "containerConcurrency negative": _one(r"-1\b", number(1, 10**6), "-{}"),
    "containerConcurrency too large": _one(r"\b1001\b", number(1001, 10**6)),
    "timeout too large": _one(r"\b601\b", number(601, 10**6)),
    "gpu limit": _one(r'(?<="nvidia.com/gpu": ")1', number(1, 8)),
    "traffic not 100": _one(r"\b50\b", number(1, 99)),
    "name too long": _one(r"a{64}", lambda rng: word(rng, "a", rng.randint(63, 120))),
    "trigger bad delivery": _one(r"(?<![\w])-1\b", number(1, 10**6), "-{}"),
    "revision annotation may change": _one(r'(?<=min-scale": ")1', number(1, 30)),
    "revision spec is immutable": _one(r'(?<="timeoutSeconds": )5\b', number(1, 299)),
    "unknown field, strict": _one(r'(?<="bogus": )1', number(1, 10**6)),
}
"""What may be another in a case without another answer being due."""


def plain(value: Any) -> Any:
    """Without what differs from run to run."""
    if isinstance(value, dict):
        left_out = ("uid", "resourceVersion", "creationTimestamp", "lastTransitionTime", "continue", "managedFields")
        if "columnDefinitions" in value:  # ages grow
            ages = [at for at, column in enumerate(value["columnDefinitions"]) if column["type"] == "date"]
            for row in value["rows"]:
                assert all(re.fullmatch(r"\d+[smhd]\w*", row["cells"][at]) for at in ages)
                row["cells"] = ["AGE" if at in ages else cell for at, cell in enumerate(row["cells"])]
        return {name: plain(inner) for name, inner in value.items() if name not in left_out}
    return [plain(item) for item in value] if isinstance(value, list) else value


def world(renamed: Renaming) -> Callable[[ObjectStore], None]:
    """What was on the cluster when it was asked."""
    lists = {case["name"]: case["answer"] for case in CASES}
    services = [*lists["list limit 1"]["items"], *lists["list by field"]["items"]]
    services += [
        {"metadata": {"namespace": "default", "name": f"later-{at}"}, "spec": services[0]["spec"]}
        for at in range(lists["list limit 1"]["metadata"]["remainingItemCount"] - 1)
    ]
    revision = recorded("object-revision-hello-00002.json")
    found = [(kinds.SERVICE, one) for one in services] + [(kinds.REVISION, revision)]
    found += [(kinds.BROKER, one) for one in recorded("object-broker.json")["items"]]
    found += [(kinds.TRIGGER, one) for one in recorded("object-trigger.json")["items"]]

    def make(store: ObjectStore) -> None:
        for kind, obj in found:
            wanted = renamed(obj)
            first = wanted["metadata"].get("generation", 1) == 1
            made = store.create(kind, wanted if first else {**wanted, "spec": {}})
            store.update(kind, {**made, "spec": wanted["spec"]})

    return make


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in CASES])
def test_an_answer_is_that_of_a_real_cluster(raw: Any, api: Running, case: dict[str, Any]) -> None:
    rng = seeded(case["name"])
    renamed = Renaming(NAMES, rng)
    api.call(world(renamed))
    drawn = VARIES[case["name"]](rng) if case["name"] in VARIES else {}
    asked = varied(renamed({name: case[name] for name in ("path", "body", "answer")}), drawn)
    body = asked["body"].encode() if isinstance(asked["body"], str) else asked["body"]
    answer = raw(
        case["method"], asked["path"], body, Content_Type=case["content_type"] or "", Accept=case["accept"] or ""
    )
    assert answer.status == case["status"], answer.content
    expected = asked["answer"]
    if isinstance(expected, str):
        assert answer.content.decode() == expected
        return
    said = answer.json
    if case["name"] in DIFFERS:
        _, parts = DIFFERS[case["name"]]
        timeout = (asked["body"] or {}).get("spec", {}).get("timeoutSeconds") if isinstance(asked["body"], dict) else ""
        for part in parts:
            assert part.format(timeout=timeout) in said["message"]
        assert (said["reason"], said["code"]) == (expected["reason"], expected["code"])
        return
    assert plain(said) == plain(expected)
    assert bool(said.get("metadata", {}).get("continue")) == bool(expected.get("metadata", {}).get("continue"))


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ("discovery-serving-v1.json", "/apis/serving.knative.dev/v1"),
        ("discovery-serving-group.json", "/apis/serving.knative.dev"),
        ("discovery-eventing-v1.json", "/apis/eventing.knative.dev/v1"),
        ("discovery-autoscaling.json", "/apis/autoscaling.internal.knative.dev/v1alpha1"),
    ],
)
def test_discovery_says_what_a_real_cluster_says(raw: Any, document: str, path: str) -> None:
    """Metric is the autoscaler's own bookkeeping on a cluster and has no place here; hashes of storage likewise."""
    expected, said = recorded(document), raw("GET", path).json
    if "resources" in expected:
        for found in (expected, said):
            found["resources"] = sorted(
                ({k: v for k, v in one.items() if k != "storageVersionHash"} for one in found["resources"]),
                key=lambda one: one["name"],
            )
        expected["resources"] = [one for one in expected["resources"] if one["kind"] != "Metric"]
    assert said == expected


def test_the_version_is_the_one_whose_answers_are_given(raw: Any) -> None:
    expected, said = recorded("version.json"), raw("GET", "/version").json
    assert expected.keys() == said.keys()
    assert said["gitVersion"].startswith(expected["gitVersion"])
    for part in ("major", "minor", "minCompatibilityMinor", "emulationMinor"):
        assert said[part] == expected[part]


def test_the_replay_asks_with_other_names_each_time() -> None:
    """The renaming must reach paths, bodies and answers, or it would hide what is answered by heart."""
    renamed = Renaming(NAMES, random.Random(1))
    case = json.dumps(renamed(next(case for case in CASES if case["name"] == "table")))
    assert "hello" not in case
    assert renamed.names["hello"] in case
