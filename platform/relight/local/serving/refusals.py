"""Answers that the router gives itself because a request cannot be passed on."""

from __future__ import annotations

from relight.base.errors import RelightError
from relight.local.serving.http1 import error_body, retry_after
from relight.wire.http import Response

JSON = ("content-type", "application/json")


class Refusal(Exception):
    """One where no error of the platform's tree fits: HTTP's own 4xx, and 502 for a replica that was lost."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after: float | None = None


def answer(error: RelightError | Refusal, openai: bool) -> Response:
    """The answer; 503 always says when to come back."""
    headers: tuple[tuple[str, str], ...] = (JSON,)
    if error.retry_after is not None or error.status == 503:
        headers = (*headers, ("retry-after", retry_after(error.retry_after or 1.0).decode()))
    return Response(error.status, headers, error_body(error.status, error.code, error.message, openai))
