"""What a child runs, however it came to be: ``pkg.mod:func``, called as ``func(payload, fds) -> int | None``.

Shared by the zygote's children and by ``exec_main``, so that both end alike: the function's number is the exit code,
None is 0, an exception is 1 with its traceback in the log.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
import traceback
from typing import Any, NoReturn

UNCAUGHT = 1
"""Exit code of a child whose function raised."""
QUIET = {"ORT_DISABLE_TELEMETRY": "1"}
"""Set for every child. onnxruntime's telemetry writes into the user's home, sends over the network, and starts a thread
with an open database at import, which must not be carried over a fork."""


def run(target: str, payload: dict[str, Any], fds: list[int]) -> NoReturn:
    """Call the target and end the process. Never returns, not even by an exception."""
    code = UNCAUGHT
    try:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)  # into a log file Python would buffer 8 kB
        module, _, name = target.partition(":")
        code = _code(getattr(importlib.import_module(module), name)(payload, fds))
    except SystemExit as end:
        code = _code(end.code)
    except BaseException:  # what is not caught here would unwind into the zygote's loop
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code & 0xFF)


def _code(result: object) -> int:
    """As ``sys.exit`` reads it: None is 0, a number is itself, anything else is a message and 1."""
    if result is None:
        return 0
    if isinstance(result, int):
        return result
    sys.stderr.write(f"{result}\n")
    return UNCAUGHT
