"""Sockets that are bound here and served by a child.

The router connects as soon as there is a port: until the child is up its requests wait in the backlog, so nobody has to
ask whether it listens yet.
"""

from __future__ import annotations

import errno
import socket

from relight.base.errors import PortTaken

BACKLOG = 1024
"""Connections that may wait for a child to come up; the kernel lowers it to ``net.core.somaxconn``."""


def listen(host: str = "127.0.0.1", port: int = 0, *, backlog: int = BACKLOG) -> socket.socket:
    """A listening TCP socket, closed on exec; the caller closes it once the child has its own copy.

    PortTaken where the port is in use. ``getsockname()[1]`` tells the port that 0 turned into.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(f"port {port} on {host} is in use by another program") from error
        raise
    return sock
