"""Asking a process how it is, as a kubelet does: an HTTP GET, a TCP connection, a command.

Each answers None where all is well, else the reason in a few words; none of them raises for what the other side does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import ssl
from collections.abc import Mapping, Sequence

AGENT = "kube-probe/relight"
"""Knative's functions know probes by the beginning of this word."""
_HEAD = 64 * 1024


async def http_get(
    host: str, port: int, path: str, headers: Sequence[tuple[str, str]], timeout: float, *, secure: bool = False
) -> str | None:
    """200 to 399 is well. ``secure``: TLS, whose certificate is not looked at (a kubelet does not either)."""
    tls: ssl.SSLContext | None = None
    if secure:
        tls = ssl.create_default_context()
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    given = {name.lower() for name, _ in headers}
    lines = [f"GET {path if path.startswith('/') else '/' + path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers]
    lines += [] if "host" in given else [f"Host: {host}:{port}"]
    lines += [] if "user-agent" in given else [f"User-Agent: {AGENT}"]
    lines += ["Connection: close", "", ""]
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls, limit=_HEAD)
            try:
                writer.write("\r\n".join(lines).encode("latin-1", "replace"))
                line = await reader.readline()
            finally:
                writer.close()
    except TimeoutError:
        return f"GET {path} took more than {timeout:g} s"
    except (OSError, ValueError) as error:
        return f"GET {path}: {error}"
    words = line.split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        return f"GET {path}: the answer is not HTTP"
    status = int(words[1])
    return None if 200 <= status < 400 else f"GET {path} answered {status}"


async def connect(host: str, port: int, timeout: float) -> str | None:
    try:
        async with asyncio.timeout(timeout):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return f"no connection to port {port} within {timeout:g} s"
    except OSError as error:
        return f"port {port}: {error.strerror or error}"
    writer.close()
    return None


async def execute(command: Sequence[str], env: Mapping[str, str], folder: str, timeout: float) -> str | None:
    """Exit code 0 is well. What it prints is not kept; it is killed, with all it started, when its time is over."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=dict(env),
            cwd=folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        return f"{command[0]}: {error.strerror or error}"
    try:
        async with asyncio.timeout(timeout):
            code = await process.wait()
    except TimeoutError:
        return f"{command[0]} took more than {timeout:g} s"
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return None if code == 0 else f"{command[0]} exited with code {code}"
