"""The image, as far as it can be checked without an engine: its text, its build steps, its command.

What is not run here (the build as a whole, the CUDA target, a container) is said in docs/limits.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tritonclient.grpc as triton
from programs.hosting import Running, until
from protocols.test_grpc_processes import ready, slow
from tables import ROOT

DOCKERFILE = ROOT / "manifests" / "images" / "Dockerfile"
TEXT = DOCKERFILE.read_text()
USER = 65532
BUILDS = pytest.mark.skipif(
    not os.environ.get("RELIGHT_TESTS_REQUIRE_SERVERS"), reason="installs for a minute: .ci/run does it"
)


def stages() -> dict[str, list[str]]:
    """Instructions of each stage, lines joined, comments left out."""
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE))
    found: dict[str, list[str]] = {"": []}
    stage = ""
    for line in filter(None, joined.splitlines()):
        if match := re.match(r"FROM \S+ AS (\S+)", line):
            stage = match.group(1)
            found[stage] = []
        found[stage].append(line)
    return found


def command() -> list[str]:
    (line,) = (line for line in stages()["final"] if line.startswith("CMD "))
    words: list[str] = json.loads(line.removeprefix("CMD "))
    return words


def test_the_linter_has_nothing_to_say() -> None:
    program = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([str(program), str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_container_is_nobody_in_particular_and_its_files_are_not_its_own() -> None:
    final = stages()["final"]
    assert f"USER {USER}:{USER}" in final
    assert not any(line.startswith("COPY --chown") for line in final), "what runs could change itself"
    assert stages()["cpu"][-1] == "COPY --from=build-cpu /opt/relight /opt/relight"
    assert stages()["cuda"][-1] == "COPY --from=build-cuda /opt/relight /opt/relight"


def test_what_is_not_copied_is_not_sent() -> None:
    ignored = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in ignored
    copied = {line.split()[1] for lines in stages().values() for line in lines if re.match(r"COPY [^-]", line)}
    assert {line[1:] for line in ignored if line.startswith("!")} == copied == {"platform", "functions"}


@contextmanager
def container(
    tmp_path: Path,
    function: str,
    *,
    functions: Path = ROOT / "functions",
    begun: Callable[[Running], Running] = Running.live,
    **env: str,
) -> Iterator[Running]:
    """The image's command with the image's environment, on a read-only root file system where that can be had."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    program, *arguments = command()
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT / "platform"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "HOME": str(scratch),
        "PORT": str(port),
        "K_SERVICE": function,
        "RELIGHT_FUNCTION": function,
        "RELIGHT_FUNCTIONS": str(functions),
        **env,
    }
    log = tmp_path / "container.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*_read_only(), str(Path(sys.executable).with_name(program)), *arguments],
            cwd="/",
            env=environ,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    running = Running(process, port, log)
    try:
        yield begun(running)
    finally:
        running.kill()


def _read_only() -> list[str]:
    """A program before the command that makes the root file system read-only, where this test may do that.

    In a mount namespace of its own: nobody else sees anything of it.
    """
    script = 'mount -o remount,ro,bind / && mount -t tmpfs tmpfs "$HOME" && exec "$@"'
    before = ["unshare", "--mount", "sh", "-ec", script, "sh"]
    try:
        home = {"HOME": "/mnt", "PATH": os.environ["PATH"]}
        done = subprocess.run([*before, "true"], env=home, capture_output=True, check=False)
    except FileNotFoundError:
        return []
    return before if done.returncode == 0 else []


def test_the_command_serves_the_function_that_the_environment_names(tmp_path: Path) -> None:
    with container(tmp_path, "split") as running:
        running.ready()
        document = json.loads((ROOT / "events/samples/dev.relight.document.v1.json").read_text())["data"]
        status, _, body = running.post("/", document)
        assert (status, json.loads(body)["document"]) == (200, document["document"])
        assert running.stop() == 0


def test_sigterm_lets_what_is_in_flight_finish(tmp_path: Path) -> None:
    with container(tmp_path, "slow", functions=ROOT / "tests" / "programs") as running:
        running.ready()
        answers: list[int] = []
        caller = threading.Thread(target=lambda: answers.append(running.post("/", {"seconds": 1.5})[0]))
        caller.start()
        until(lambda: b"relight_requests_in_flight 1.0" in running.request("GET", "/metrics")[2], "a call in flight")
        running.process.send_signal(signal.SIGTERM)
        caller.join(20)
        assert answers == [200]
        assert running.process.wait(20) == 0


NOBODY = """
mount -t tmpfs -o mode=755 tmpfs /mnt
for place in platform functions home; do mkdir /mnt/$place; done
mount --bind "$1" /mnt/platform; mount --bind "$2" /mnt/functions; shift 2
at=0
while [ "$1" != -- ]; do mkdir /mnt/site$at; mount --bind "$1" /mnt/site$at; at=$((at + 1)); shift; done
shift
mount -t tmpfs -o mode=1777 tmpfs /mnt/home
mount -o remount,ro,bind /mnt; mount -o remount,ro,bind /
exec setpriv --reuid 65532 --regid 65532 --clear-groups --bounding-set -all --no-new-privs -- "$@"
"""
"""The image's user and its read-only files, as far as there can be without an image: for namespaces of its own."""


def test_as_pid_1_and_as_nobody_it_serves_and_ends_by_sigterm(tmp_path: Path) -> None:
    """A container's first process: signals that it does not handle are ignored, and orphans are its own."""
    interpreter, sites = os.path.realpath(sys.executable), [one for one in sys.path if one.endswith("site-packages")]
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-euc", NOBODY, "sh"]
    namespaces += [str(ROOT / "platform"), str(ROOT / "tests" / "programs"), *sites, "--"]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": ":".join(["/mnt/platform", *(f"/mnt/site{at}" for at in range(len(sites)))]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/mnt/home",
        "PORT": str(port),
        "K_SERVICE": "slow",
        "RELIGHT_FUNCTION": "slow",
        "RELIGHT_FUNCTIONS": "/mnt/functions",
    }
    probe = [*namespaces, interpreter, "-c", "import gunicorn, relight"]
    try:
        done = subprocess.run(probe, env=environ, cwd="/", capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if done.returncode:
        pytest.skip(f"namespaces and users cannot be changed here: {done.stderr.strip()}")
    log = tmp_path / "container.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*namespaces, interpreter, "-m", "gunicorn", *command()[1:]],
            cwd="/",
            env=environ,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    running = Running(process, port, log)
    try:
        running.live()
        (first,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{first}/status").read_text().splitlines())
        assert status["NSpid"].split()[-1] == "1"
        assert (status["Uid"].split(), status["CapEff"].strip("0")) == (["65532"] * 4, "")
        running.ready()
        answers: list[int] = []
        caller = threading.Thread(target=lambda: answers.append(running.post("/", {"seconds": 1.0})[0]))
        caller.start()
        until(lambda: b"relight_requests_in_flight 1.0" in running.request("GET", "/metrics")[2], "a call in flight")
        os.kill(int(first), signal.SIGTERM)
        caller.join(20)
        assert (answers, process.wait(20)) == ([200], 0)
    finally:
        running.kill()


def test_little_is_imported_before_the_port_is_there() -> None:
    """What a cold start waits for. Models' and stores' libraries are imported by those who need them."""
    code = (
        "import sys, relight.runtime.hosts.image_settings, relight.runtime.hosts.gunicorn\n"
        "import relight.runtime.hosts.image\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {
        "boto3",
        "flask",
        "grpc",
        "kubernetes",
        "onnxruntime",
        "pandas",
        "pymilvus",
        "rich",
        "torch",
        "typer",
        "yaml",
    }
    assert heavy & set(done.stdout.split()) == set()


FAULTS = [
    ("an unknown function", "nothing", "no such function in"),
    ("a function that cannot be imported", "sick_import", "import failed"),
]


@pytest.mark.parametrize(("function", "says"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_what_cannot_be_loaded_is_told_and_not_started_again_and_again(
    tmp_path: Path, function: str, says: str
) -> None:
    with container(tmp_path, function, functions=ROOT / "tests" / "programs") as running:
        until(lambda: says.encode() in running.request("GET", "/health/readiness")[2], says)
        status, _, body = running.post("/", {})
        assert (status, says in body.decode()) == (503, True)
        assert running.status("/health/liveness") == 200
        assert running.stop() == 0


@BUILDS
def test_the_steps_of_the_build_make_an_environment_that_serves(tmp_path: Path) -> None:
    """Each RUN line of the CPU image, in folders of the test's own instead of the image's."""
    shutil.copytree(
        ROOT / "platform", tmp_path / "src" / "platform", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__")
    )
    for line in [*stages()["build"], *stages()["build-cpu"]]:
        if line.startswith("RUN "):
            shell = line.removeprefix("RUN ").replace("/opt/relight", str(tmp_path / "relight"))
            shell = shell.replace("/src/platform", str(tmp_path / "src" / "platform"))
            environ = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
            environ |= {"EXTRAS": "onnx,retrieval,cluster", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
            environ |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
            done = subprocess.run(["sh", "-ec", shell], env=environ, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    packages = json.loads((tmp_path / "relight" / "sbom.json").read_text())["installed"]
    assert {"relight", "gunicorn", "onnxruntime"} <= {package["metadata"]["name"] for package in packages}
    done = subprocess.run(
        [str(tmp_path / "relight" / "bin" / "relight"), "cache", "prefetch", "--help"],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"manifests/prefetch runs this in the image: {done.stderr}"
    code = "import relight.runtime.hosts.image, onnxruntime, pymilvus"
    python = str(tmp_path / "relight" / "bin" / "python")
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_same_command_speaks_grpc_where_it_is_told_to(tmp_path: Path) -> None:
    env = {"RELIGHT_PROTOCOL": "grpc", "RELIGHT_MODEL": "slow"}
    with container(tmp_path, "slow_model", functions=ROOT / "tests" / "programs", begun=ready, **env) as running:
        with triton.InferenceServerClient(f"127.0.0.1:{running.port}") as client:
            assert client.infer("slow", slow(0.0)).as_numpy("slept").tolist() == [0.0]
        assert running.stop() == 0
