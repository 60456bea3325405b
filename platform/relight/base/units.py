"""Durations and quantities as Go and Kubernetes write them."""

from __future__ import annotations

import math
import re

_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_DECIMAL = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_ISO = re.compile(
    r"P(?:(?P<days>\d+(?:\.\d+)?)D)?(?:T(?=\d)(?:(?P<hours>\d+(?:\.\d+)?)H)?(?:(?P<minutes>\d+(?:\.\d+)?)M)?"
    r"(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)


def parse_duration(text: str) -> float:
    """Seconds from a Go duration such as ``1m30s``, ``300ms``, ``0``; ValueError says what was expected."""
    sign, rest = (-1.0, text[1:]) if text[:1] == "-" else (1.0, text.removeprefix("+"))
    if rest == "0":
        return 0.0
    at, total = 0, 0.0
    while at < len(rest):
        part = _PART.match(rest, at)
        if not part:
            break
        total += float(part[1]) * _SECONDS[part[2]]
        at = part.end()
    if not rest or at != len(rest):
        raise ValueError(f"{text!r} is not a duration such as 30s or 1m30s")
    return sign * total


def format_duration(seconds: float) -> str:
    """A Go duration, as ``time.Duration.String`` writes it: ``1m30s``, ``0s``, ``1.5s``."""
    sign, rest = ("-", -seconds) if seconds < 0 else ("", seconds)
    if 0 < rest < 1:
        return f"{sign}{rest * 1000:g}ms"
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    text = f"{rest:.9f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{sign}{int(hours)}h{int(minutes)}m{text}"
    return f"{sign}{int(minutes)}m{text}" if minutes else f"{sign}{text}"


def parse_iso_duration(text: str) -> float:
    """Seconds from an ISO 8601 duration such as ``PT2.5S``; years and months have no length and are refused."""
    match = _ISO.fullmatch(text)
    if not match or not any(match.groups()):
        raise ValueError(f"{text!r} is not an ISO 8601 duration such as PT2.5S")
    factors = {"days": 86400.0, "hours": 3600.0, "minutes": 60.0, "seconds": 1.0}
    return sum(float(value) * factors[name] for name, value in match.groupdict().items() if value)


def parse_quantity(text: str | int | float) -> float:
    """A Kubernetes quantity: ``500m`` is 0.5, ``2Gi`` is 2147483648."""
    if isinstance(text, int | float):
        return float(text)
    match = re.fullmatch(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)([KMGTP]i|[numkMGTP]?)", text)
    if not match:
        raise ValueError(f"{text!r} is not a quantity such as 500m or 2Gi")
    return float(match[1]) * (_BINARY.get(match[2]) or _DECIMAL[match[2]])


def format_bytes(count: float) -> str:
    """Bytes for people: ``23 MB`` (powers of 1000)."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def parse_amount(name: str, quantity: str | int | float) -> int:
    """How much of a resource a quantity is, rounded up: thousandths of a core for ``cpu``, bytes for ``memory``, pieces
    for anything else. ValueError where it is none."""
    value = parse_quantity(quantity) * (1000 if name == "cpu" else 1)
    if value < 0:
        raise ValueError(f"expected {name} of 0 or more, got {quantity!r}")
    return math.ceil(round(value, 6))


def parse_amounts(text: str) -> dict[str, int]:
    """Read ``cpu=4,memory=8Gi,nvidia.com/gpu=2``. ValueError says which part is wrong."""
    found: dict[str, int] = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, separator, quantity = part.partition("=")
        if not separator or not name.strip() or not quantity.strip():
            raise ValueError(f"{part!r}: expected NAME=QUANTITY such as nvidia.com/gpu=2")
        found[name.strip()] = parse_amount(name.strip(), quantity.strip())
    return found
