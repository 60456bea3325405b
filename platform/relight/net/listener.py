"""Listening sockets: bound here, before anything is served, so that a taken port is one clear sentence."""

from __future__ import annotations

import errno
import socket

from relight.base.errors import PlatformError, PortTaken

BACKLOG = 1024
"""Connections that may wait to be accepted; the kernel caps it at ``net.core.somaxconn``."""


def bind(host: str, port: int, *, setting: str = "") -> socket.socket:
    """A listening, non-blocking TCP socket; port 0 takes a free one.

    PortTaken names the port and how to choose another (``setting``: the environment variable that does).
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        # a port in TIME_WAIT of a platform that just stopped can be taken again; one that is listened on can not
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        choose = f"choose another with {setting}=PORT, or 0 for a free one" if setting else "choose another, or 0"
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(f"port {port} on {host} is in use by another program; {choose}") from error
        if error.errno == errno.EACCES:
            raise PortTaken(f"port {port} on {host} may not be used by this user; {choose}") from error
        raise PlatformError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listening
