"""What functions import: the bases ``Model`` and ``Step``, tensor specifications, events, and the errors to raise."""

from __future__ import annotations

from relight.base.errors import (
    BadInput,
    Conflict,
    Deadline,
    Failed,
    NotFound,
    NotReady,
    Overloaded,
    Problem,
    TooLarge,
    Unprocessable,
    Unsupported,
)
from relight.decide.batching import BatchingSettings, QueuePolicy
from relight.runtime.calls import CurrentRequest, current_request, headers_onward
from relight.runtime.context import FunctionContext
from relight.runtime.model import EmbeddingsMap, Model
from relight.runtime.modelserver import ModelServer
from relight.runtime.onnx import OnnxModel
from relight.runtime.publishing import EventPublisher
from relight.runtime.repository import RepositoryModel
from relight.runtime.step import Step
from relight.wire.cloudevents import Event
from relight.wire.tensors import Array, TensorSpec

__all__ = [
    "Array",
    "BadInput",
    "BatchingSettings",
    "Conflict",
    "CurrentRequest",
    "Deadline",
    "EmbeddingsMap",
    "Event",
    "EventPublisher",
    "Failed",
    "FunctionContext",
    "Model",
    "ModelServer",
    "NotFound",
    "NotReady",
    "OnnxModel",
    "Overloaded",
    "Problem",
    "QueuePolicy",
    "RepositoryModel",
    "Step",
    "TensorSpec",
    "TooLarge",
    "Unprocessable",
    "Unsupported",
    "current_request",
    "headers_onward",
]
