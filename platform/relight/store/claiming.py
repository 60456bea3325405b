"""Whose a version's number is, while it is pushed, swept or removed: a chain of claims in storage.

::

    NAME/VERSION/.relight/claim.json      who began
    NAME/VERSION/.relight/claim-1.json    who went on, once the one before was dead; and so forth

The last claim is the owner's. Each link is created, never written over, so that of two who find a dead owner one
becomes the next, and whoever is alive is never robbed: what an owner stores or deletes is stored or deleted by nobody
else. Claims stay when a version is removed, for its number must not come to life again.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass

from relight.base.errors import Conflict
from relight.store import claims
from relight.store.objects import Objects

META = ".relight"
_LINK = re.compile(r"claim(?:-([1-9][0-9]*))?\.json")


@dataclass(frozen=True)
class Claim:
    """One link of a version's chain: which, and what it says."""

    number: int
    data: bytes


def is_claim(path: str) -> bool:
    """Whether a path in a version's folder is one of its claims."""
    folder, _, name = path.partition("/")
    return folder == META and bool(_LINK.fullmatch(name))


def begin(objects: Objects, folder: str) -> Claim:
    """The first claim of a number; Conflict if somebody has it."""
    claim = Claim(0, claims.new())
    objects.put(_key(folder, 0), [claim.data], create=True)
    return claim


def owner(objects: Objects, folder: str) -> Claim | None:
    """The last claim; None where there is none."""
    found = [_LINK.fullmatch(entry.name) for entry in objects.list(f"{folder}/{META}").files]
    numbers = [int(match[1] or 0) for match in found if match]
    if not numbers:
        return None
    try:
        return Claim(max(numbers), objects.read(_key(folder, max(numbers))))
    except FileNotFoundError:
        return None


def take_over(objects: Objects, folder: str, *, removed_too: bool = False) -> Claim | None:
    """Become the owner of what a dead one left; None if it lives, or another was quicker.

    What was left of a version that was removed is only taken over with ``removed_too``, and stays removed.
    """
    before = owner(objects, folder)
    try:
        if before is None or not claims.is_dead(before.data):
            return None
        removed = claims.says_removed(before.data)
    except ValueError:
        return None
    if removed and not removed_too:
        return None
    return _follow(objects, folder, before, claims.new(removed=removed))


def give_up(objects: Objects, folder: str, mine: Claim) -> None:
    """Leave what is there to whoever comes, at once and on any machine."""
    _follow(objects, folder, mine, claims.new(given_up=True))


def close(objects: Objects, folder: str) -> None:
    """The version is removed: nobody is to go on with its number."""
    while True:
        before = owner(objects, folder)
        if before is None:
            with contextlib.suppress(Conflict):
                objects.put(_key(folder, 0), [claims.new(removed=True)], create=True)
                return
        elif _follow(objects, folder, before, claims.new(removed=True)):
            return


def _follow(objects: Objects, folder: str, before: Claim, data: bytes) -> Claim | None:
    claim = Claim(before.number + 1, data)
    try:
        objects.put(_key(folder, claim.number), [data], create=True)
    except Conflict:
        return None
    return claim


def _key(folder: str, number: int) -> str:
    return f"{folder}/{META}/claim{f'-{number}' if number else ''}.json"
