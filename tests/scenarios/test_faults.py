"""What goes wrong on one machine: each time one clear sentence, the right exit code, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kit import apply_embed, http, make_function, post, until_gone

from relight.testing.platform import RunningPlatform, running_platform

ECHO = """
import os

from relight.sdk import Step


class Echo(Step):
    def run(self, data, event):
        return {"pid": os.getpid(), "data": data}


def new():
    return Echo()
"""


def children(pid: int) -> list[int]:
    """All descendants of a process."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *children(child)]
    return found


def test_a_second_platform_is_refused_and_the_first_goes_on(stack: RunningPlatform, tmp_path: Path) -> None:
    second = stack.relight("up", check=False)
    assert second.returncode == 5
    assert "already runs" in second.stderr
    assert str(stack.process.pid) in second.stderr
    assert "Traceback" not in second.stderr
    assert stack.relight("status").returncode == 0


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for option in ("--functions-port", "--broker-port", "--api-port"):
            arguments = {"--functions-port": "0", "--broker-port": "0", "--api-port": "0", option: port}
            done = subprocess.run(
                [sys.executable, "-m", "relight", "up", *(part for pair in arguments.items() for part in pair)],
                env={**os.environ, "RELIGHT_HOME": str(tmp_path / "home")},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode not in (0, 2), option
            assert f"port {port}" in done.stderr, option
            assert "Traceback" not in done.stderr, option
    # Nothing half-started stays: the same folder takes a platform at once.
    with running_platform(tmp_path / "home") as platform:
        assert platform.relight("status").returncode == 0


def test_kill_9_leaves_no_orphan_and_the_next_goes_on(tmp_path: Path) -> None:
    home = tmp_path / "home"
    folder = make_function(tmp_path, "survivor", ECHO)
    with running_platform(home) as first:
        url = json.loads(first.relight("deploy", str(folder), "-o", "json").stdout)["url"]
        assert post(url, {"n": 1}).json()["data"] == {"n": 1}
        started = children(first.process.pid)
        assert len(started) >= 2  # a zygote and a replica
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        until_gone(started)
    with running_platform(home) as second:
        # What was deployed is there without being applied again, at zero, and answers from the first moment on.
        answer = post(f"{second.functions}/default/survivor", {"n": 2})
        listed = json.loads(second.relight("get", "ksvc", "-o", "json").stdout)["items"]
        assert [one["metadata"]["name"] for one in listed] == ["survivor"]
        assert answer.status == 200, answer.data
        assert answer.json()["data"] == {"n": 2}
        started = children(second.process.pid)
    until_gone(started, 1.0)


def test_events_accepted_before_kill_9_are_delivered_after_it(tmp_path: Path) -> None:
    """The broker says 202 only when the event is on disk; the subscriber is at zero, or not there yet."""
    home = tmp_path / "home"
    folder = make_function(tmp_path, "sink", ECHO)
    flow = tmp_path / "flow.yaml"
    flow.write_text(
        "apiVersion: eventing.knative.dev/v1\nkind: Broker\nmetadata: {name: default}\n---\n"
        "apiVersion: eventing.knative.dev/v1\nkind: Trigger\nmetadata: {name: to-sink}\n"
        "spec:\n  broker: default\n  filters: [{exact: {type: test.kept}}]\n"
        "  subscriber: {ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: sink}}\n"
    )
    with running_platform(home) as first:
        first.relight("apply", "-f", str(flow))
        headers = {"ce-specversion": "1.0", "ce-source": "/test", "ce-type": "test.kept", "content-type": "text/plain"}
        for number in range(5):
            sent = http.request(
                "POST", f"{first.broker}/default/default", body=b"x", headers={**headers, "ce-id": f"kept-{number}"}
            )
            assert sent.status == 202, sent.data
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
    seen = tmp_path / "seen"
    make_function(
        tmp_path,
        "sink",
        f"""
        from relight.sdk import Step


        class Sink(Step):
            def run(self, data, event):
                with open({str(seen)!r}, "a") as file:
                    file.write(event.id + "\\n")


        def new():
            return Sink()
        """,
    )
    with running_platform(home) as second:
        second.relight("deploy", str(folder))
        expected = {f"kept-{number}" for number in range(5)}
        deadline = time.monotonic() + 40
        while not seen.exists() or set(seen.read_text().split()) != expected:
            assert time.monotonic() < deadline, second.tail()
            time.sleep(0.1)  # a file that another process writes cannot be awaited


@pytest.mark.parametrize(
    ("body", "headers", "path", "status", "says"),
    [
        (b"{not json", {"content-type": "application/json"}, "/v2/models/minilm/infer", 400, "JSON"),
        (
            b'{"inputs":[{"name":"text","shape":[3],"datatype":"BYTES","data":["a"]}]}',
            {"content-type": "application/json"},
            "/v2/models/minilm/infer",
            400,
            "shape",
        ),
        (b'{"inputs":[]}', {"content-type": "application/json"}, "/v2/models/nobody/infer", 404, "nobody"),
        (b'{"model":"nobody","input":"x"}', {"content-type": "application/json"}, "/v1/embeddings", 404, "nobody"),
        (b'{"model":"minilm"}', {"content-type": "application/json"}, "/v1/embeddings", 400, "input"),
    ],
    ids=["not JSON", "wrong shape", "unknown model", "unknown OpenAI model", "no input"],
)
def test_bad_requests_are_told_what_is_wrong(
    stack: RunningPlatform, body: bytes, headers: dict[str, str], path: str, status: int, says: str
) -> None:
    apply_embed(stack)
    answer = http.request("POST", f"{stack.functions}/default/embed{path}", body=body, headers=headers)
    assert answer.status == status, answer.data
    assert says in answer.data.decode()
    assert b"Traceback" not in answer.data


def test_an_unknown_function_is_404(stack: RunningPlatform) -> None:
    answer = post(f"{stack.functions}/default/nobody", {})
    assert answer.status == 404
    assert "nobody" in answer.json()["error"]


def model_function(folder: Path, name: str, model: str) -> Path:
    path = make_function(folder, name, "from relight.sdk import OnnxModel\n\ndef new():\n    return OnnxModel()\n")
    with (path / "func.yaml").open("a") as file:
        file.write(f"run:\n  envs:\n    - name: RELIGHT_MODEL\n      value: {model}\n")
    return path


def test_missing_weights_are_named(stack: RunningPlatform, tmp_path: Path) -> None:
    failed = stack.relight("deploy", str(model_function(tmp_path, "weightless", "no-such-model")), check=False)
    assert failed.returncode not in (0, 2)
    assert "no-such-model" in failed.stderr
    assert "Traceback" not in failed.stderr
    stack.relight("delete", "ksvc", "weightless", check=False)


def test_corrupt_weights_are_never_loaded(stack: RunningPlatform, tmp_path: Path, encoder: Path) -> None:
    # Weights that no cache has yet: those of another model would be taken from there, whatever the repository has.
    own = bytearray((encoder / "model.onnx").read_bytes())
    own[len(own) // 2] ^= 2
    (encoder / "model.onnx").unlink()
    (encoder / "model.onnx").write_bytes(own)
    stack.relight("model", "push", str(encoder), "spoiled")
    weights = stack.home / "models" / "spoiled" / "1" / "model.onnx"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    os.chmod(weights, 0o600)
    weights.write_bytes(content)
    failed = stack.relight("deploy", str(model_function(tmp_path, "spoiled-one", "spoiled")), check=False)
    assert failed.returncode not in (0, 2)
    assert "model.onnx" in failed.stderr
    assert "Traceback" not in failed.stderr
    stack.relight("delete", "ksvc", "spoiled-one")


def test_a_full_disk_leaves_no_half_push(tmp_path: Path, encoder: Path) -> None:
    """The limit on a process's file size stands for the full disk: the write fails half-way all the same."""
    home = tmp_path / "home"
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5_000_000, 5_000_000));"
        "from relight.cli.main import main; main(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "model", "push", str(encoder), "too-big"],
        env={**os.environ, "RELIGHT_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode not in (0, 2)
    assert "Traceback" not in done.stderr
    assert "too-big" in done.stderr or "File too large" in done.stderr or "space" in done.stderr, done.stderr
    left = [path for path in (home / "models").rglob("*") if path.is_file() and path.stat().st_size > 100_000]
    assert not left
    listed = subprocess.run(
        [sys.executable, "-m", "relight", "model", "list", "-o", "json"],
        env={**os.environ, "RELIGHT_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "too-big" not in listed.stdout
