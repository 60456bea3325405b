"""The front door: serves the model of the model repository that ``RELIGHT_MODEL`` names, as its file declares it."""

from relight import sdk


def new() -> sdk.Model:
    return sdk.OnnxModel()
