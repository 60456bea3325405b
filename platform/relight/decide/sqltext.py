"""LIKE patterns: ``%`` is any text, ``_`` one character, and a backslash takes the meaning off either."""

from __future__ import annotations


def like(text: str, pattern: str) -> bool:
    """Whether all of ``text`` fits ``pattern``, in time of their lengths' product at worst (no backtracking)."""
    parts = _parse(pattern)
    at = place = 0
    star, resume = -1, 0
    while at < len(text):
        if place < len(parts) and parts[place] == "%":
            star, resume, place = place, at, place + 1
        elif place < len(parts) and parts[place] in ("_", "=" + text[at]):
            at, place = at + 1, place + 1
        elif star >= 0:
            # The last % takes one character more.
            resume += 1
            at, place = resume, star + 1
        else:
            return False
    return all(part == "%" for part in parts[place:])


def _parse(pattern: str) -> list[str]:
    """``%``, ``_`` or ``=x`` (exactly that character) per character of the pattern."""
    parts, at = [], 0
    while at < len(pattern):
        if pattern[at] == "\\" and pattern[at + 1 : at + 2] in ("%", "_"):
            at += 1
            parts.append("=" + pattern[at])
        else:
            parts.append(pattern[at] if pattern[at] in "%_" else "=" + pattern[at])
        at += 1
    return parts
