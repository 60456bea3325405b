"""Refusals as the Kubernetes API words them: a ``Status`` object with a reason that clients act on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relight.base.errors import Conflict, RelightError
from relight.local.kube.kinds import Kind
from relight.local.kube.merging import ApplyConflict
from relight.local.kube.store import AlreadyExists

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True)
class Cause:
    """One mistake: the field, Kubernetes' word for what is wrong with it, and the sentence."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"

    @classmethod
    def invalid(cls, field: str, value: str, why: str) -> Cause:
        return cls(field, f'Invalid value: "{value}": {why}')

    @classmethod
    def required(cls, field: str, why: str) -> Cause:
        return cls(field, f"Required value: {why}", "FieldValueRequired")


class Failure(RelightError):
    """An answer other than success; ``details`` as in ``metav1.StatusDetails``."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        reason: str | None = None,
        details: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.http_status = status
        self.reason = reason or _REASONS.get(status, "InternalError")
        self.details = details
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
        }
        if self.details is not None:
            body["details"] = self.details
        return {**body, "code": self.http_status}


def details(kind: Kind, name: str) -> dict[str, Any]:
    """Which resource it is about; the group only where there is one, as Kubernetes does."""
    group = {"group": kind.group} if kind.group else {}
    return {"name": name, **group, "kind": kind.plural}


def bad_request(message: str) -> Failure:
    return Failure(400, message)


def not_found(kind: Kind, name: str) -> Failure:
    return Failure(404, f'{kind.resource} "{name}" not found', details=details(kind, name))


def forbidden(kind: Kind, name: str, why: str) -> Failure:
    return Failure(403, f'{kind.resource} "{name}" is forbidden: {why}', details=details(kind, name))


def invalid(kind: Kind, name: str, causes: Sequence[Cause]) -> Failure:
    """422: the API server's own validation. Several mistakes are listed in brackets, as it does."""
    sentences = [f"{cause.field}: {cause.message}" for cause in causes]
    text = sentences[0] if len(sentences) == 1 else "[" + ", ".join(sentences) + "]"
    group = {"group": kind.group} if kind.group else {}
    found = [{"reason": cause.reason, "message": cause.message, "field": cause.field} for cause in causes]
    return Failure(
        422,
        f'{kind.kind_group} "{name}" is invalid: {text}',
        details={**({"name": name} if name else {}), **group, "kind": kind.kind, "causes": found},
    )


def of(error: RelightError, kind: Kind | None = None, name: str = "") -> Failure:
    """Any error of ours as a failure of this API."""
    if isinstance(error, Failure):
        return error
    about = details(kind, name) if kind else None
    if isinstance(error, ApplyConflict):
        causes = [
            {"reason": "FieldManagerConflict", "message": f'conflict with "{clash.manager}"', "field": clash.path}
            for clash in error.clashes
        ]
        return Failure(409, error.message, details={"causes": causes})
    if isinstance(error, AlreadyExists):
        return Failure(409, error.message, reason="AlreadyExists", details=about)
    if isinstance(error, Conflict):
        return Failure(409, error.message, details=about)
    return Failure(error.status, error.message)
