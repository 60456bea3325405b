"""``relight version``."""

from __future__ import annotations

import platform


def command() -> None:
    """Show the version of relight, and of the Python that runs it."""
    from relight.cli.main import package_version

    print(f"relight {package_version()} (Python {platform.python_version()})")
