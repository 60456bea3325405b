"""``python -m relight.proc.exec_main TARGET PAYLOAD_FD FD,FD…``: a child that was started by exec, not by fork."""

from __future__ import annotations

import signal
import sys

from relight.proc.passing import read_payload
from relight.proc.target import run


def main(argv: list[str]) -> None:
    target, payload_fd, fds = argv
    # Who was started in the background of a shell has it ignored, and hands that on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run(target, read_payload(int(payload_fd)), [int(fd) for fd in fds.split(",") if fd])


if __name__ == "__main__":
    main(sys.argv[1:])
