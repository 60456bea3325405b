"""``python -m relight.proc.zygote_main FD MODULE…``: a process that has the imports done, and forks.

It reads requests from the socket FD: target, and as descriptors the payload, the log and what the target gets. For each
it forks, answers with the child's pid and pidfd, and later tells how the child ended. It ends when the socket closes.

What makes the forks safe: nothing but imports happens here. No thread may be running (one that holds a lock at the
moment of the fork holds it in the child for ever), so thread pools are held at one thread while importing, no model is
run, and what threads there are is reported, so that the owner can refuse. ``THREADS`` names those that survive a fork.

What makes them cheap: ``gc.freeze`` moves all that was imported out of the collector's sight, so that no collection in
a child writes to its pages and copies them.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import warnings
from typing import Any, NoReturn

from relight.proc import passing, stamps
from relight.proc.target import run

POOLS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "RAYON_NUM_THREADS")
THREADS = frozenset({"jemalloc_bg_thd"})
"""Threads that may exist at a fork: jemalloc's own (pyarrow brings it), which has fork handlers and is not needed."""


def threads() -> list[str]:
    """Names of all threads of this process but the one that asks."""
    main = str(os.getpid())
    names = []
    for task in os.listdir("/proc/self/task"):
        if task != main:
            with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm") as file:
                names.append(file.read().strip())
    return names


def preload(modules: list[str]) -> dict[str, Any]:
    """Import all; what fails is reported and left out. Pools are one thread wide meanwhile, then as they were."""
    began = time.monotonic()
    before = {name: os.environ.get(name) for name in POOLS}
    os.environ.update(dict.fromkeys(POOLS, "1"))
    failed = {}
    for module in modules:
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:  # whatever a module does at import, the others are of use
            failed[module] = f"{type(error).__name__}: {error}"
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    names = threads()
    return {
        "ready": True,
        "import_s": time.monotonic() - began,
        "failed": failed,
        "threads": names,
        "unsafe": [name for name in names if name not in THREADS],
    }


class Zygote:
    """The loop. ``poll`` and not epoll: it has no descriptor that a child would have to close."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.children: dict[int, int] = {}
        """pidfd → pid"""
        self.poll = select.poll()

    def serve(self) -> None:
        """Until the socket closes."""
        self.poll.register(self.control, select.POLLIN)
        while True:
            for fd, _ in self.poll.poll():
                if fd in self.children:
                    self.reap(fd)
                elif not self.handle():
                    return

    def handle(self) -> bool:
        """One request; False when the platform is gone."""
        message, fds = passing.receive(self.control)
        if message is None:
            return False
        try:
            self.fork(message, fds)
        except OSError as error:  # no more processes, no memory, no descriptors
            passing.send(self.control, {"id": message["id"], "error": f"{error}"})
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def fork(self, message: dict[str, Any], fds: list[int]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of jemalloc's thread
            pid = os.fork()
        if pid == 0:
            self.become_child(message["target"], fds)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)  # not reaped yet, so the pid is still this child's
            os.waitpid(pid, 0)
            raise
        self.children[pidfd] = pid
        self.poll.register(pidfd, select.POLLIN)
        passing.send(self.control, {"id": message["id"], "pid": pid}, [pidfd])

    def become_child(self, target: str, fds: list[int]) -> NoReturn:
        """In the new process: let go of all that is the zygote's, then run."""
        try:
            os.setsid()
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.set_wakeup_fd(-1)
            self.control.close()
            for pidfd in self.children:
                os.close(pidfd)
            payload, log, *rest = fds
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
            reseed()
            gc.enable()
            given = passing.read_payload(payload)
        except BaseException as error:
            os.write(2, f"a child could not be set up: {error!r}\n".encode())
            os._exit(1)
        run(target, given, rest)

    def reap(self, pidfd: int) -> None:
        """A child ended: end what it left behind in its process group, and tell how."""
        pid = self.children.pop(pidfd)
        self.poll.unregister(pidfd)
        os.close(pidfd)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # before waitpid: until then nobody else can get this number
        _, status = os.waitpid(pid, 0)
        passing.send(self.control, {"exited": pid, "status": status})


def reseed() -> None:
    """Other random numbers in each child. ``random`` does that itself after a fork; these do not."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].seed()


def main(argv: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the platform, which ends this by closing the socket
    control = socket.socket(fileno=int(argv[0]))
    control.set_inheritable(False)
    report = preload(argv[1:])
    gc.collect()
    gc.freeze()
    gc.disable()
    made_of = passing.payload_file(stamps.imported(report["failed"]))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        passing.send(control, report, [made_of])
        os.close(made_of)
        Zygote(control).serve()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # modules' exit handlers have nothing to do here, and some take their time


if __name__ == "__main__":
    main(sys.argv[1:])
