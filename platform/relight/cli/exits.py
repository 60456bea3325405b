"""What ends a command: its exit code, and the one or two lines that say why.

=====  =====================================================================
code   meaning
=====  =====================================================================
0      done
1      failed: the thing itself went wrong, the line on stderr says how
2      usage: an unknown command, option or argument
3      local mode is not running, and there is no other cluster to talk to
4      not found: no such function, object, model or file
5      conflict: it exists already, runs already, or a port is taken
6      timed out
7      refused as invalid: every mistake is named by its field path
130    interrupted
=====  =====================================================================
"""

from __future__ import annotations

from relight.base import errors

OK, FAILED, USAGE, NOT_RUNNING, NOT_FOUND, CONFLICT, TIMED_OUT, INVALID, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 7, 130


class NotRunning(errors.PlatformError):
    """Local mode does not run, and there is no other cluster to talk to. ``hint`` is a command that helps."""

    code = "not_running"
    status = 503

    def __init__(self, message: str, hint: str = "relight up") -> None:
        super().__init__(message)
        self.add_note(hint)


# The first class that an error is an instance of: leaves stand before their parents.
_CODES: tuple[tuple[type[errors.RelightError], int], ...] = (
    (NotRunning, NOT_RUNNING),
    (errors.NotFound, NOT_FOUND),
    (errors.MissingWeights, NOT_FOUND),
    (errors.Conflict, CONFLICT),
    (errors.AlreadyRunning, CONFLICT),
    (errors.PortTaken, CONFLICT),
    (errors.Deadline, TIMED_OUT),
    (errors.BadInput, INVALID),
    (errors.RelightError, FAILED),
)

_HINTS: tuple[tuple[type[errors.RelightError], str], ...] = (
    (errors.AlreadyRunning, "relight status"),
    (errors.PortTaken, "choose another port, 0 for a free one: see relight up --help"),
    (errors.MissingWeights, "relight model list"),
    (errors.NoSpace, "free some space, or move the model repository: RELIGHT_REPOSITORY"),
)


def exit_code(error: errors.RelightError) -> int:
    """The exit code of an error, as the table above has it."""
    return next(code for kind, code in _CODES if isinstance(error, kind))


def hint_for(error: errors.RelightError) -> str | None:
    """A command or a sentence that helps, where there is one: the error's own note, else what goes for its class."""
    notes: list[str] = getattr(error, "__notes__", [])
    return notes[-1] if notes else next((hint for kind, hint in _HINTS if isinstance(error, kind)), None)


def explain(error: errors.RelightError) -> list[str]:
    """The lines for stderr: ``error:`` with the sentence, one line per problem where there are several, ``hint:``."""
    problems = error.problems if isinstance(error, errors.BadInput) else ()
    if len(problems) > 1:
        lines = [f"error: {len(problems)} mistakes", *(f"  {problem}" for problem in problems)]
    else:
        lines = [f"error: {error.message}"]
    hint = hint_for(error)
    return [*lines, f"hint: {hint}"] if hint else lines
