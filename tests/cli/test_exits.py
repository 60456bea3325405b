"""Exit codes and what stands on stderr, through the real executable: a line and a hint, never a traceback."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from relight.base import errors
from relight.cli.exits import NotRunning, exit_code
from relight.cli.main import COMMANDS, _invoke, guard
from relight.cli.state import process_start

LINES: list[tuple[str, list[str], int, str, str]] = [
    ("the version", ["version"], 0, "", ""),
    ("the version, as an option", ["--version"], 0, "", ""),
    ("help without a command", [], 0, "", ""),
    ("an unknown command", ["deplyo"], 2, "there is no command 'deplyo'", "relight deploy"),
    ("nothing like it", ["xyzzy"], 2, "there is no command 'xyzzy'", "relight --help"),
    ("an option in front", ["--verbose", "get"], 2, "options stand after the command", "relight --help"),
    ("an unknown option", ["status", "--verbose"], 2, "--verbose", "relight status --help"),
    ("a missing argument", ["call"], 2, "Missing argument 'name'", "relight call --help"),
    ("a value out of its range", ["down", "--timeout", "-1"], 2, "'--timeout'", "relight down --help"),
    ("a missing argument of a subcommand", ["events", "send"], 2, "Missing argument", "relight events send --help"),
    ("an unknown subcommand", ["new", "thing"], 2, "thing", "relight new --help"),
    ("no local mode to show", ["status"], 3, "local mode is not running on", "relight up"),
    ("no local mode to stop", ["down"], 3, "local mode is not running on", "relight up"),
    ("no cluster to list", ["get", "ksvc"], 3, "local mode is not running on", "relight up"),
    ("no cluster to deploy to", ["deploy", "."], 3, "local mode is not running on", "relight up"),
    ("no broker to send to", ["events", "send", "t"], 3, "local mode is not running on", "relight up"),
    ("a kubeconfig that is not there", ["get", "ksvc", "--kubeconfig", "gone"], 4, "kubeconfig gone: no such file", ""),
    ("a manifest that is not there", ["apply", "-f", "gone.yaml"], 4, "gone.yaml: no such file or folder", ""),
    ("an unknown model", ["model", "versions", "gone"], 4, "there is no model 'gone'", "relight model list"),
    ("nothing to push", ["model", "push", "gone", "x"], 4, "gone: no such file or folder", ""),
    ("functions that are not there", ["up", "--functions", "gone"], 4, "gone: no such folder of functions", ""),
    ("a home that is no folder", ["up"], 1, "RELIGHT_HOME: /dev/null is no folder that can be written", ""),
    ("a folder with something in it", ["new", "step", "hello", "full"], 5, "full is not empty", ""),
    ("a name that cannot be", ["new", "step", "Hello"], 7, "'Hello': expected lower-case letters", ""),
    ("a manifest that is none", ["apply", "-f", "bad.yaml"], 7, "bad.yaml: expected an object", ""),
    ("a header that is none", ["call", "x", "-H", "nonsense"], 7, "-H: 'nonsense': expected NAME: VALUE", ""),
    ("data that is no JSON", ["events", "send", "t", "-d", "{"], 7, "--data: it is not JSON", ""),
    ("a port that is none", ["status"], 7, "RELIGHT_API_PORT: expected a port", ""),
]


@pytest.mark.parametrize(
    ("arguments", "code", "says", "hint"), [row[1:] for row in LINES], ids=[row[0] for row in LINES]
)
def test_how_a_command_ends(
    relight: Any, tmp_path: Path, arguments: list[str], code: int, says: str, hint: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("")
    (tmp_path / "bad.yaml").write_text("- 1\n")
    environ = {"RELIGHT_API_PORT": "x"} if "RELIGHT_API_PORT" in says else {}
    if says.startswith("RELIGHT_HOME"):
        environ = {"RELIGHT_HOME": "/dev/null"}
    ran = relight(*arguments, **environ)
    assert ran.code == code, ran.err
    lines = ran.err.splitlines()
    if code == 0:
        assert lines == []
        return
    assert ran.out == ""
    assert lines[0].startswith("error: ")
    assert says in lines[0]
    assert lines[1:] == ([f"hint: {hint}"] if hint else [])


def test_several_mistakes_stand_on_a_line_each(relight: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("1\n---\nkind: X\n")
    ran = relight("apply", "-f", "bad.yaml")
    assert ran.code == 7
    assert ran.err.splitlines() == [
        "error: 2 mistakes",
        "  bad.yaml: expected an object with apiVersion, kind and metadata",
        "  bad.yaml (document 2): expected text in apiVersion, metadata.name",
    ]


def test_a_fault_of_ours_is_a_sentence_and_a_file(relight: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    (broken / "json").mkdir(parents=True)
    (broken / "sitecustomize.py").write_text(
        "import relight.cli.version\n"
        "def command() -> None:\n    raise LookupError('on purpose')\n"
        "relight.cli.version.command = command\n"
    )
    ran = relight("version", PYTHONPATH=str(broken), TMPDIR=str(tmp_path))
    assert ran.code == 1
    first, hint = ran.err.splitlines()
    assert first.startswith("error: LookupError: on purpose.")
    log = Path(hint.removeprefix("hint: the traceback is in ").partition(";")[0])
    assert log.parent == tmp_path
    assert "Traceback" in log.read_text()
    shown = relight("version", PYTHONPATH=str(broken), RELIGHT_DEBUG="1")
    assert shown.code == 1
    assert "Traceback" in shown.err


def test_a_second_ctrl_c_on_the_way_out_is_not_heard() -> None:
    app = typer.Typer()

    @app.command()
    def interrupted() -> None:
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    try:
        assert guard(lambda: _invoke(app, [], "relight interrupted")) == 130
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_output_that_nobody_reads_is_no_fault(tmp_path: Path) -> None:
    executable = Path(sys.executable).with_name("relight")
    process = subprocess.Popen([executable, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=30) in (0, 1)


CODES: list[tuple[errors.RelightError, int]] = [
    (errors.Failed("x"), 1),
    (errors.LoadFailed("x"), 1),
    (errors.NoSpace("x"), 1),
    (NotRunning("x"), 3),
    (errors.NotFound("x"), 4),
    (errors.MissingWeights("x"), 4),
    (errors.Conflict("x"), 5),
    (errors.AlreadyRunning("x"), 5),
    (errors.PortTaken("x"), 5),
    (errors.Deadline("x"), 6),
    (errors.BadInput("x"), 7),
    (errors.Unprocessable("x"), 7),
    (errors.TooLarge("x"), 7),
]


@pytest.mark.parametrize(("error", "code"), CODES, ids=[type(error).__name__ for error, _ in CODES])
def test_every_error_has_its_code(error: errors.RelightError, code: int) -> None:
    assert exit_code(error) == code


@pytest.mark.parametrize("name", ["", *(command.name for command in COMMANDS)])
def test_help_fits_on_a_terminal(relight: Any, name: str) -> None:
    ran = relight(*([name] if name else []), "--help")
    assert ran.code == 0, ran.err
    assert ran.err == ""
    assert [line for line in ran.out.splitlines() if len(line) > 80] == []
    command = next((command for command in COMMANDS if command.name == name), None)
    assert command is None or command.help in relight().out


@pytest.mark.parametrize("name", ["new step", "new model", "model push", "model list", "model versions", "events send"])
def test_help_of_subcommands_fits_too(relight: Any, name: str) -> None:
    ran = relight(*name.split(), "--help")
    assert ran.code == 0, ran.err
    assert [line for line in ran.out.splitlines() if len(line) > 80] == []


def test_listing_commands_imports_none_of_them() -> None:
    program = "import sys, relight.cli.main as m; m.overview(); print('\\n'.join(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    heavy = {"typer", "rich", "yaml", "kubernetes", "asyncio", "aiohttp", "urllib3", "numpy"}
    assert heavy & set(loaded) == set()


class TestLocalMode:
    """`status` and `down` against a process that stands for local mode: what they must know is its status file."""

    @pytest.fixture
    def platform(self, relight: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
        """A process that ends on SIGTERM, and the status file that names it."""
        relight.home.mkdir()
        process = subprocess.Popen(
            [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        status = {
            "pid": process.pid,
            "start_time": process_start(process.pid),
            "api": "https://127.0.0.1:8443",
            "functions": "http://127.0.0.1:8080",
            "broker": "http://127.0.0.1:8081",
            "kubeconfig": str(relight.home / "kubeconfig"),
            "repository": (relight.home / "models").as_uri(),
        }
        (relight.home / "status.json").write_text(json.dumps(status))
        yield process, status
        process.kill()
        process.wait()
        process.stdout.close()

    def test_status_shows_the_addresses(self, relight: Any, platform: Any) -> None:
        ran = relight("status")
        assert ran.code == 0, ran.err
        assert "http://127.0.0.1:8080/NAMESPACE/NAME" in ran.out
        assert f"export KUBECONFIG={relight.home / 'kubeconfig'}" in ran.out
        told = json.loads(relight("status", "-o", "json").out)
        assert told["pid"] == platform[0].pid
        assert told["functions"] == "http://127.0.0.1:8080"

    def test_down_ends_it(self, relight: Any, platform: Any) -> None:
        ran = relight("down")
        assert (ran.code, ran.out) == (0, "local mode has stopped\n"), ran.err
        assert platform[0].wait(timeout=10) < 0

    def test_a_process_that_took_over_the_number_is_left_alone(self, relight: Any, platform: Any) -> None:
        process, status = platform
        (relight.home / "status.json").write_text(json.dumps(status | {"start_time": status["start_time"] - 1}))
        assert relight("down").code == 3
        assert relight("status").code == 3
        assert process.poll() is None

    def test_one_that_does_not_end_in_time(self, relight: Any) -> None:
        relight.home.mkdir()
        deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
        with subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            status = {"pid": process.pid, "start_time": process_start(process.pid)}
            status |= {name: "http://127.0.0.1:1" for name in ("api", "functions", "broker", "repository")}
            (relight.home / "status.json").write_text(json.dumps(status))
            ran = relight("down", "--timeout", "0.2")
            assert ran.code == 6
            assert "did not end within 0.2 s of SIGTERM" in ran.err
            ran = relight("down", "--timeout", "0.2", "--force")
            assert (ran.code, ran.out) == (0, "local mode was killed\n")

    def test_a_status_file_that_is_garbage(self, relight: Any) -> None:
        relight.home.mkdir()
        (relight.home / "status.json").write_text('{"pid": ')
        ran = relight("status")
        assert ran.code == 1
        assert "status.json cannot be read" in ran.err

    def test_calling_where_nothing_listens(self, relight: Any) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
            ran = relight("call", f"http://127.0.0.1:{port}")
        assert ran.code == 3
        assert ran.err.splitlines()[-2:] == [f"error: nothing listens on 127.0.0.1:{port}", "hint: relight status"]
