"""``relight …`` or ``serve …``, as in a pod; every chunk of weights that is read from storage is a line in $READS."""

from __future__ import annotations

import os
import sys

from relight.store.files import Files

READS = os.open(os.environ["READS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
_read_into = Files.read_into


def read_into(self: Files, key: str, offset: int, buffer: memoryview, tag: str | None = None) -> int:
    os.write(READS, f"{key} {offset}\n".encode())
    return _read_into(self, key, offset, buffer, tag)


Files.read_into = read_into  # type: ignore[method-assign]
# What is cloned is not read at all, where the file system can do that.
Files.place = lambda self, key: None  # type: ignore[method-assign]

if sys.argv[1] == "relight":
    from relight.cli.main import main

    sys.argv[:] = sys.argv[1:]
    main()
else:
    from relight.runtime.serve import main as serve

    sys.exit(serve(sys.argv[2:]))
