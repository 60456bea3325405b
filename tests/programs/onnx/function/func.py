"""The model of the repository that the environment names."""

from __future__ import annotations

from relight.sdk import OnnxModel


def new() -> OnnxModel:
    return OnnxModel()
