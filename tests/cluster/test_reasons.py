"""What a Service waits for, from pods as a cluster shows them."""

from __future__ import annotations

from typing import Any

import pytest

from relight.cluster.reasons import why_waiting


def pod(state: dict[str, Any] | None = None, made: str = "2026-01-01T00:00:00Z", **status: Any) -> dict[str, Any]:
    containers = [
        {"name": "queue-proxy", "state": {"running": {}}},
        {"name": "user-container", "state": state or {}, "lastState": status.pop("last", {})},
    ]
    found = {"phase": "Pending", **({"containerStatuses": containers} if state is not None else {}), **status}
    return {"metadata": {"name": "p", "creationTimestamp": made}, "status": found}


def waits(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


NO_GPU = "0/3 nodes are available: 1 node(s) had untolerated taint {x}, 2 Insufficient nvidia.com/gpu. preemption: 0/3."
UNSCHEDULED = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_GPU}]
READY = pod({"running": {}}, conditions=[{"type": "Ready", "status": "True"}])
ROWS = [
    ("no GPU", [pod(conditions=UNSCHEDULED)], f"unschedulable: no node has nvidia.com/gpu free ({NO_GPU})"),
    (
        "no node for another reason",
        [pod(conditions=[{**UNSCHEDULED[0], "message": "0/1 nodes are available: 1 Insufficient memory."}])],
        "unschedulable: 0/1 nodes are available: 1 Insufficient memory.",
    ),
    ("pulling", [pod(waits("ContainerCreating"))], "pulling the image, or waiting for a volume"),
    ("no such image", [pod(waits("ImagePullBackOff", "not found"))], "the image cannot be pulled: not found"),
    ("no such Secret", [pod(waits("CreateContainerConfigError", 'secret "x" not found'))], "cannot be made: secret"),
    (
        "crashing",
        [pod(waits("CrashLoopBackOff"), last={"terminated": {"exitCode": 137, "reason": "OOMKilled"}})],
        "ended and is started again: exit code 137, OOMKilled",
    ),
    ("loading", [pod({"running": {}}, phase="Running")], "the function is loading"),
    ("just made", [pod()], "the pod was made and waits for a node"),
    ("all is well", [READY], None),
    ("no pods", [], None),
    (
        "the newest counts",
        [pod({"running": {}}, "2026-01-01T00:00:00Z"), pod(waits("ErrImagePull"), "2027-01-01T00:00:00Z")],
        "cannot be pulled",
    ),
    ("one that is ready hides none that is not", [READY, pod(waits("ErrImagePull"))], "cannot be pulled"),
]


@pytest.mark.parametrize(("pods", "says"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_reasons(pods: list[Any], says: str | None) -> None:
    found = why_waiting(pods)
    assert (found is None) if says is None else (found is not None and says in found), found
