"""All models of the repository that the environment names."""

from __future__ import annotations

from relight.sdk import ModelServer


def new() -> ModelServer:
    return ModelServer()
