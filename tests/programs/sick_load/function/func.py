"""A model whose load raises."""

from __future__ import annotations

from relight.sdk import Model


class SickLoad(Model):
    def load(self) -> None:
        raise ValueError("the first line\nno weights in the folder")


def new() -> SickLoad:
    return SickLoad()
