"""Logging: JSON lines in images and replicas, one-line text on a terminal.

Loggers are named ``relight.<package>``; messages are lazy (``log.info("event.name key=%s", value)``); an error line
says what happens next. Times come from the record, so that a line logged late still tells when it happened.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TextIO


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (RFC 3339, UTC), level, logger, message, and the traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def configure(level: str = "info", *, json_lines: bool | None = None, stream: TextIO | None = None) -> None:
    """Set up the root logger of this process. Called from entry points only; calling again replaces the handler.

    ``json_lines`` None means: text on a terminal, JSON elsewhere.
    """
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    as_json = not stream.isatty() if json_lines is None else json_lines
    handler.setFormatter(
        JsonFormatter() if as_json else logging.Formatter("%(asctime)s %(levelname).1s %(message)s", "%H:%M:%S")
    )
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
