"""An answer that is still being made: a future, and how its result becomes a response."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec

from relight.wire.http import Response


class Waiting(msgspec.Struct, frozen=True, eq=False):
    """What an endpoint returns that has handed work to a thread; ``finish`` may raise as the endpoint may."""

    future: Future[Any]
    finish: Callable[[Any], Response]


class Pending(msgspec.Struct, frozen=True, eq=False):
    """What a host gets: it waits for ``future`` in its own way, then calls exactly one of the two."""

    future: Future[Any]
    respond: Callable[[], Response]
    """The response, once the future is done. Never raises."""
    abandon: Callable[[], None]
    """The caller hung up: what has not begun is not run, and what has is not answered."""


_T = TypeVar("_T")


def settle(future: Future[Any], value: Any = None, error: BaseException | None = None) -> None:
    """End a future, unless it has ended: by who hung up, or by a stop."""
    with suppress(InvalidStateError):
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)


def chained(first: Future[_T], then: Callable[[_T], Response | Waiting], undo: Callable[[_T], None]) -> Waiting:
    """Wait for ``first``, then do ``then`` with its result, in the thread that brought it, and wait for that.

    Giving up cancels whichever of the two is going on; a result of ``first`` that nobody wants any more is undone.
    """
    whole: Future[Callable[[], Response]] = Future()

    def begun(first: Future[_T]) -> None:
        if first.cancelled():
            return
        error = first.exception()
        if error is not None:
            settle(whole, partial(_raise, error))
            return
        value = first.result()
        if whole.cancelled():
            undo(value)
            return
        try:
            answer = then(value)
        except Exception as failure:
            settle(whole, partial(_raise, failure))
            return
        if isinstance(answer, Response):
            settle(whole, lambda: answer)
            return
        whole.add_done_callback(lambda whole: answer.future.cancel() if whole.cancelled() else None)
        answer.future.add_done_callback(lambda inner: settle(whole, lambda: answer.finish(inner.result())))

    whole.add_done_callback(lambda whole: first.cancel() if whole.cancelled() else None)
    first.add_done_callback(begun)
    return Waiting(whole, lambda respond: respond())


def _raise(error: BaseException) -> Response:
    raise error


def as_is(response: Response) -> Response:
    """``finish`` of work whose result is the response."""
    return response


def as_future(answer: Response | Waiting) -> Future[Response]:
    """One future of the response itself; giving it up gives up the work, where that has not begun."""
    if isinstance(answer, Waiting) and answer.finish is as_is:
        return answer.future
    whole: Future[Response] = Future()
    if isinstance(answer, Response):
        whole.set_result(answer)
        return whole

    def ended(inner: Future[Any]) -> None:
        try:
            settle(whole, answer.finish(inner.result()))
        except CancelledError:
            whole.cancel()
        except BaseException as error:  # an author's sys.exit, carried here by the future
            settle(whole, error=error)

    whole.add_done_callback(lambda whole: answer.future.cancel() if whole.cancelled() else None)
    answer.future.add_done_callback(ended)
    return whole
