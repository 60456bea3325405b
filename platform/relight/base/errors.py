"""One tree of errors. Each leaf says what it is (code), what it means over HTTP (status), whether a retry may help.

::

    RelightError
    |- BadInput             400   the caller's fault; ``problems`` names every mistake by field path
    |  |- Unsupported       415   a media type or format that is not spoken here
    |  |- TooLarge          413   over a limit; the message names the limit
    |- Unauthorized         401   no credentials, or wrong ones
    |- Forbidden            403   credentials that do not reach that far
    |- NotFound             404   an unknown path, model, object
    |- NotAllowed           405   a known path, another method
    |- Conflict             409   the object changed meanwhile, or exists already
    |- Unprocessable        422   well-formed, but against the rules of what it describes
    |- Overloaded           503   a bounded queue is full; retry later
    |- NotReady             503   still loading, or draining; retry later
    |- Deadline             504   not done in the time that was given
    |- LoadFailed           503   the function's ``load`` raised; a retry will not help until it is deployed again
    |- OverBudget           507   a model takes more memory than this process may give it
    |- Failed               500   the function's own code raised; its text stays in the log
    |- StoreError           500   object storage or the node's cache
    |  |- MissingWeights    500   the repository has no such model, version or file
    |  |- CorruptWeights    500   a digest or a size differs
    |  |- NoSpace           507   the disk, or the cache's limit, is full
   |  |- Unreachable       503   object storage does not answer, or is too busy; retry later
    |- PlatformError        500   the platform on this machine
       |- PortTaken               a listener's port is in use
       |- AlreadyRunning          another platform uses the same state folder

Nothing here knows a framework: V2, OpenAI and Kubernetes bodies are renderings of these fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

__all__ = [
    "AlreadyRunning",
    "BadInput",
    "Conflict",
    "CorruptWeights",
    "Deadline",
    "Failed",
    "Forbidden",
    "LoadFailed",
    "MissingWeights",
    "NoSpace",
    "NotAllowed",
    "NotFound",
    "NotReady",
    "OverBudget",
    "Overloaded",
    "PlatformError",
    "PortTaken",
    "Problem",
    "RelightError",
    "StoreError",
    "TooLarge",
    "Unauthorized",
    "Unprocessable",
    "Unreachable",
    "Unsupported",
]


@dataclass(frozen=True)
class Problem:
    """One mistake of an input: where it is (a field path such as ``inputs[0].shape``) and what was expected."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class RelightError(Exception):
    """The root. The message is a sentence fit for the caller: it never holds a traceback or another's data.

    ``retry_after`` is in seconds; None where a retry does not help or nothing is known about when.
    """

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after


class BadInput(RelightError):
    """The caller sent something that cannot be used. All mistakes of one input are reported together."""

    code = "invalid_input"
    status = 400

    def __init__(self, message: str, *, param: str | None = None, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message, param=param)
        self.problems = tuple(problems)

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> BadInput:
        """One error for a non-empty list of problems."""
        return cls("; ".join(map(str, problems)), param=problems[0].path or None, problems=problems)


class Unsupported(BadInput):
    code = "unsupported_media_type"
    status = 415


class TooLarge(BadInput):
    code = "too_large"
    status = 413


class Unauthorized(RelightError):
    code = "unauthorized"
    status = 401


class Forbidden(RelightError):
    code = "forbidden"
    status = 403


class NotFound(RelightError):
    code = "not_found"
    status = 404


class NotAllowed(RelightError):
    code = "method_not_allowed"
    status = 405


class Conflict(RelightError):
    code = "conflict"
    status = 409


class Unprocessable(BadInput):
    code = "invalid"
    status = 422


class Overloaded(RelightError):
    code = "overloaded"
    status = 503
    retryable = True


class NotReady(RelightError):
    code = "not_ready"
    status = 503
    retryable = True


class Deadline(RelightError):
    code = "deadline_exceeded"
    status = 504
    retryable = True


class LoadFailed(RelightError):
    code = "load_failed"
    status = 503


class OverBudget(RelightError):
    code = "over_budget"
    status = 507


class Failed(RelightError):
    code = "internal"
    status = 500


class StoreError(RelightError):
    code = "store"


class MissingWeights(StoreError):
    code = "missing_weights"


class CorruptWeights(StoreError):
    code = "corrupt_weights"


class NoSpace(StoreError):
    code = "no_space"
    status = 507


class Unreachable(StoreError):
    code = "store_unreachable"
    status = 503
    retryable = True


class PlatformError(RelightError):
    code = "platform"


class PortTaken(PlatformError):
    code = "port_taken"


class AlreadyRunning(PlatformError):
    code = "already_running"
