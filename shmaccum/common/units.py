# SPDX-License-Identifier: Apache-2.0
"""Sizes and durations as people write them: ``32MiB``, ``16KiB``, ``500ms``, ``2s``."""

from __future__ import annotations

import math
import numbers
import re
import threading
from collections.abc import Mapping

from shmaccum.exceptions import InvalidArgumentError

Size = int | str
Duration = int | float | str

QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")

TIMEOUT_MAX_S = threading.TIMEOUT_MAX / 2
"""The longest wait. In Python, a longer one could overflow when it is added to a clock."""

SIZE_UNITS: Mapping[str, int] = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
NS_UNITS: Mapping[str, int] = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 24 * 3600 * 10**9,
}


def _parse(text: str, units: Mapping[str, int], what: str, example: str) -> int:
    """Parses the text to a whole number of the smallest unit."""
    match = QUANTITY.fullmatch(text)
    if match is None or match[2] not in units:
        known = ", ".join(unit for unit in units if unit)
        raise InvalidArgumentError(f"{text!r} is not a {what}: write it like {example}, with one of {known}")
    scale = units[match[2]]
    whole, _, fraction = match[1].partition(".")
    denominator: int = 10 ** len(fraction)
    numerator = (int(whole) * denominator + int(fraction or "0")) * scale
    if numerator % denominator:
        raise InvalidArgumentError(f"{text!r} is not a whole number of {'bytes' if what == 'size' else 'nanoseconds'}")
    return numerator // denominator


def parse_size(size: Size) -> int:
    """Returns the bytes of a size: an int, or a text such as ``"32MiB"``, ``"1.5 GiB"``, ``"4096"``.

    KB, MB, GB, TB are powers of 1000; KiB, MiB, GiB, TiB powers of 1024.

    Raises:
        InvalidArgumentError: the size is invalid or negative.
        TypeError: the size is neither int nor str.
    """
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise TypeError(f"a size is an int or a str such as '32MiB', not {type(size).__name__}")
    if isinstance(size, str):
        return _parse(size, SIZE_UNITS, "size", "32MiB")
    if size < 0:
        raise InvalidArgumentError(f"a size cannot be negative: {size}")
    return size


def parse_duration_ns(duration: str) -> int:
    """Returns the nanoseconds of a duration such as ``"500ms"``, ``"2s"``, ``"1.5h"``. Only ``"0"`` needs no unit.

    Raises:
        InvalidArgumentError: the duration is invalid.
        TypeError: the duration is not a str.
    """
    if not isinstance(duration, str):
        raise TypeError(f"a duration is a str such as '500ms', not {type(duration).__name__}")
    return 0 if duration == "0" else _parse(duration, NS_UNITS, "duration", "500ms")


def parse_duration_ms(duration: Duration) -> int:
    """Returns the milliseconds of a duration: a number, or a text such as ``"500ms"``. Fractions are rounded up.

    Raises:
        InvalidArgumentError: the duration is invalid or negative.
        TypeError: the duration is neither a number nor a str.
    """
    if isinstance(duration, str):
        return -(-parse_duration_ns(duration) // 10**6)
    if isinstance(duration, bool) or not isinstance(duration, (int, float)):
        raise TypeError(f"a duration is a number of milliseconds or a str such as '500ms', not {duration!r}")
    if not 0 <= duration < float("inf"):
        raise InvalidArgumentError(f"a duration cannot be {duration}")
    return -int(-duration // 1)


def parse_timeout_s(timeout: float | None) -> float:
    """Returns the seconds to wait at most: infinity for None, and for more than Python supports (292 years).

    Raises:
        InvalidArgumentError: the timeout is NaN.
        TypeError: neither a number nor None.
    """
    if timeout is None:
        return math.inf
    given: object = timeout  # any type that the caller's type checker has let pass
    if isinstance(given, bool) or not isinstance(given, numbers.Real):
        raise TypeError(f"a timeout is a number of seconds, or None for no limit, not {given!r}")
    if abs(timeout) > TIMEOUT_MAX_S:  # it may not fit into a float
        return math.inf if timeout > 0 else -math.inf
    if math.isnan(timeout):
        raise InvalidArgumentError("a timeout cannot be nan")
    return float(timeout)


def parse_timeout_ms(timeout_ms: float) -> float:
    """Converts a timeout in milliseconds to seconds. Raises as `parse_timeout_s`."""
    return parse_timeout_s(timeout_ms) / 1000


def parse_percent(share: int | str) -> int:
    """Returns the percentage of a share: an int from 1 to 100, or a text such as ``"25%"``.

    Raises:
        InvalidArgumentError: the share is invalid.
        TypeError: neither int nor str.
    """
    if isinstance(share, bool) or not isinstance(share, (int, str)):
        raise TypeError(f"a share is an int or a str such as '25%', not {type(share).__name__}")
    number = share.strip().removesuffix("%").strip() if isinstance(share, str) else str(share)
    if not number.isdecimal() or not 1 <= int(number) <= 100:
        raise InvalidArgumentError(f"{share!r} is not a share: write it like 25%, from 1% to 100%")
    return int(number)


def format_size(size: int) -> str:
    """Formats a size for people: ``32 MiB``, ``1.5 KiB``, ``17 B``."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        scale = SIZE_UNITS[unit]
        if size >= scale:
            return f"{size / scale:.1f}".removesuffix(".0") + f" {unit}"
    return f"{size} B"


def format_count(count: int, one: str, many: str = "") -> str:
    """Formats a count for people: ``1 record``, ``12,000 records``, ``2 batches`` (with an irregular plural)."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def format_duration_ns(duration_ns: float) -> str:
    """Formats a duration for people: ``350 ms``, ``1.2 s``, ``2.5 min``, ``0 s``."""
    if duration_ns == 0:
        return "0 s"
    for unit in ("d", "h", "min", "s", "ms", "us"):
        scale = NS_UNITS[unit]
        if abs(duration_ns) >= scale:
            return f"{duration_ns / scale:.1f}".removesuffix(".0") + f" {unit}"
    return f"{duration_ns:.0f} ns"


def _spell(number: int, units: Mapping[str, int], names: tuple[str, ...]) -> str:
    """Spells a number in the first of the named units that divides it. The last unit divides every number."""
    unit = next(name for name in names if (number % units[name] == 0 and number != 0) or name == names[-1])
    return f"{number // units[unit]}{unit}"


def spell_size(size: int) -> str:
    """Returns the shortest text that `parse_size` reads as exactly this size: ``32MiB``, ``1000B``."""
    return _spell(size, SIZE_UNITS, ("TiB", "GiB", "MiB", "KiB", "B"))


def spell_duration_ms(duration_ms: int) -> str:
    """Returns the shortest text that `parse_duration_ms` reads as exactly this: ``500ms``, ``2min``, ``7d``."""
    return _spell(duration_ms * 10**6, NS_UNITS, ("d", "h", "min", "s", "ms"))
