"""Serves every model of the model repository by its name, and loads it when it is first asked for."""

from relight import sdk


def new() -> sdk.ModelServer:
    return sdk.ModelServer()
