# SPDX-License-Identifier: Apache-2.0
"""The description of an option: one row of a table, with type, default, bounds and sentence.

Each kind of option has a function here that makes its row as a dataclass field::

    linger_ms: int = duration_ms("5ms", "How long a batch that this producer opens waits for more records.")

A duration above the maximum of its row, including infinity, means forever. It becomes the maximum, so that the clocks
of the core can add it to the current time. A size or a count above its maximum is rejected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from shmaccum.common.units import parse_duration_ms, parse_percent, parse_size
from shmaccum.config.secret import Secret
from shmaccum.exceptions import InvalidArgumentError

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
FACTOR_MIN, FACTOR_MAX = Fraction(1, 2), 64
FOREVER_MS = 2**61 // 10**6
"""The longest duration, 73 years. In nanoseconds, twice this value plus the time since boot is less than 2**63."""


@dataclass(frozen=True)
class Option:
    """One row of a table.

    Attributes:
        kind: "size", "duration", "count", "percent", "factor", "boolean", "choice", "text", "mode", "function", "list".
        parse: converts the user's value. Raises InvalidArgumentError or TypeError if the value is invalid.
        default: the value if the user gives none.
        sentence: the purpose of the option.
        kafka: Kafka's dotted name, if it differs from the option's name with dots.
        minimum, maximum: inclusive bounds, or None if unbounded. A longer duration becomes the maximum.
        choices: the accepted texts.
        unset: the user's spelling of None, if None is the default.
    """

    kind: str
    parse: Callable[[Any], Any]
    default: Any
    sentence: str
    kafka: str | None = None
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()
    unset: str = "off"

    def bounded(self, value: Any) -> Any:
        """Returns the value, or the maximum if the value is a longer duration."""
        is_long = self.kind == "duration" and value is not None and self.maximum is not None and value > self.maximum
        return self.maximum if is_long else value

    def check(self, name: str, value: Any) -> None:
        """Raises InvalidArgumentError if the value is out of bounds."""
        if self.default is None and value is None:
            return
        if self.minimum is not None and value < self.minimum:
            raise InvalidArgumentError(f"{name} is {value}, but must be at least {self.minimum}")
        if self.maximum is not None and value > self.maximum:
            raise InvalidArgumentError(f"{name} is {value}, but must be at most {self.maximum}")

    def parse_named(self, name: str, given: Any) -> Any:
        """Parses a user's value. Errors name the option.

        Raises:
            InvalidArgumentError: the value is invalid.
        """
        if self.default is None and (given is None or given == self.unset):
            return None
        try:
            return self.parse(given)
        except (TypeError, ValueError) as error:  # int() raises ValueError for thousands of digits
            raise InvalidArgumentError(f"{name}: {error}") from None


def _parse_count(given: Any) -> int:
    if isinstance(given, str) and given.strip().lstrip("-").isdecimal():
        return int(given)
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"{given!r} is not a whole number")
    return given


def _parse_mode(given: Any) -> int:
    """Parses permissions: a number, or octal text."""
    if not isinstance(given, str):
        return _parse_count(given)
    try:
        return int(given, base=8)
    except ValueError:
        raise TypeError(f"{given!r} is not a file mode: write it in octal, such as 0600") from None


def _parse_boolean(given: Any) -> bool:
    known = {"true": True, "false": False, True: True, False: False}
    lowered = given.lower() if isinstance(given, str) else given
    if isinstance(lowered, (str, bool)) and lowered in known:
        return known[lowered]
    raise TypeError(f"{given!r} is neither true nor false")


def _parse_factor(given: Any) -> Fraction:
    """Parses 0, or a number from 1/2 to 64, such as ``4``, ``1.5`` or ``1/2``."""
    if isinstance(given, bool) or not isinstance(given, (int, float, str, Fraction)):
        raise TypeError(f"{given!r} is not a number")
    try:
        value = Fraction(given)
    except (ValueError, OverflowError, ZeroDivisionError):
        raise TypeError(f"{given!r} is not a number: write it as 4, 1.5 or 1/2") from None
    if value != 0 and not FACTOR_MIN <= value <= FACTOR_MAX:
        raise TypeError(f"{given} is out of range: it must be 0 (off), or from {FACTOR_MIN} to {FACTOR_MAX}")
    return value


def _parse_text(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError(f"{given!r} is not text")
    return given


def _parse_group(given: Any) -> str | int:
    """Parses the name of a group, or its number as an int or as text."""
    if isinstance(given, str) and not given.isdecimal():
        if not given or any(character.isspace() or character == ":" for character in given):
            raise TypeError(f"{given!r} is not a group name")
        return given
    number = _parse_count(given)
    if number < 0:
        raise TypeError(f"{number} is not a group number")
    return number


def _with_minus_one(parse: Callable[[Any], int]) -> Callable[[Any], int]:
    """Also accepts -1, which means "no limit" in Kafka."""
    return lambda given: -1 if given in (-1, "-1") else parse(given)


def _parse_milliseconds(given: Any) -> int:
    """Parses a duration. A bare number is in milliseconds, as in Kafka's configuration files."""
    if given == math.inf or (isinstance(given, str) and given.strip().lower() == "inf"):
        return LONG_MAX
    return int(given) if isinstance(given, str) and given.strip().isdecimal() else parse_duration_ms(given)


def _parse_choice(choices: tuple[str, ...]) -> Callable[[Any], str]:
    def parse(given: Any) -> str:
        text = str(given)
        if text not in choices:
            raise TypeError(f"{text!r} is not one of {', '.join(choices)}")
        return text

    return parse


def _parse_function(names: tuple[str, ...], method: str) -> Callable[[Any], Any]:
    """Accepts a built-in name, a function, or an object with the method of Kafka's interface for this purpose."""

    def parse(given: Any) -> Any:
        is_text = isinstance(given, (str, bytes))  # both have a method called partition
        if given in names if is_text else callable(given) or hasattr(given, method):
            return given
        raise TypeError(f"{given!r} is neither one of {', '.join(names)} nor a function")

    return parse


def _parse_secret(given: Any) -> Secret:
    return given if isinstance(given, Secret) else Secret(_parse_text(given))


def _parse_list(given: Any) -> tuple[Any, ...]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(f"{given!r} is not a list")
    return tuple(given)


# --- rows of each kind


def _row(option: Option) -> Any:
    """Returns the option as a dataclass field."""
    return field(default=option.default, metadata={"option": option})


def size(
    default: int | str | None,
    sentence: str,
    *,
    kafka: str | None = None,
    minimum: int = 1,
    maximum: int = LONG_MAX,
    unset: str = "off",
) -> Any:
    """A row in bytes."""
    parse = _with_minus_one(parse_size) if minimum == -1 else parse_size
    number = None if default is None else parse(default)
    return _row(Option("size", parse, number, sentence, kafka, minimum, maximum, unset=unset))


def duration_ms(
    default: int | str | None,
    sentence: str,
    *,
    kafka: str | None = None,
    minimum: int = 0,
    maximum: int = FOREVER_MS,
    unset: str = "off",
) -> Any:
    """A row in milliseconds."""
    parse = _with_minus_one(_parse_milliseconds) if minimum == -1 else _parse_milliseconds
    number = None if default is None else parse(default)
    return _row(Option("duration", parse, number, sentence, kafka, minimum, maximum, unset=unset))


def count(
    default: int | None,
    sentence: str,
    *,
    kafka: str | None = None,
    minimum: int = 1,
    maximum: int = INT_MAX,
    unset: str = "off",
) -> Any:
    """A row that counts something."""
    return _row(Option("count", _parse_count, default, sentence, kafka, minimum, maximum, unset=unset))


def mode(default: int, sentence: str) -> Any:
    """A row with the permissions of a file."""
    return _row(Option("mode", _parse_mode, default, sentence, None, 0o600, 0o777))


def percent(default: int, sentence: str) -> Any:
    """A row with a share of a whole."""
    return _row(Option("percent", parse_percent, default, sentence, None, 1, 100))


def factor(default: int, sentence: str) -> Any:
    """A row with a factor. 0 means off."""
    return _row(Option("factor", _parse_factor, Fraction(default), sentence))


def boolean(default: bool, sentence: str, *, kafka: str | None = None) -> Any:
    """A row that is true or false."""
    return _row(Option("boolean", _parse_boolean, default, sentence, kafka))


def text(default: str | None, sentence: str, *, kafka: str | None = None, unset: str = "off") -> Any:
    """A row with a text."""
    return _row(Option("text", _parse_text, default, sentence, kafka, unset=unset))


def group(sentence: str) -> Any:
    """A row with a group of users, by name or number. The default is the process's own group."""
    return _row(Option("group", _parse_group, None, sentence, unset="own"))


def secret(sentence: str, *, kafka: str | None = None) -> Any:
    """A row with a password. It is unset by default."""
    return _row(Option("secret", _parse_secret, None, f"{sentence} Write env:NAME or file:PATH.", kafka, unset="none"))


def choice(
    default: str | None, choices: tuple[str, ...], sentence: str, *, kafka: str | None = None, unset: str = "off"
) -> Any:
    """A row with one of several texts."""
    return _row(Option("choice", _parse_choice(choices), default, sentence, kafka, choices=choices, unset=unset))


def function(
    default: str | None, names: tuple[str, ...], method: str, sentence: str, *, kafka: str | None = None
) -> Any:
    """A row with a user's function, or the name of a built-in function."""
    return _row(
        Option("function", _parse_function(names, method), default, sentence, kafka, choices=names, unset="none")
    )


def provider(sentence: str, method: str, *, kafka: str) -> Any:
    """A row with a user's function, an object with a method, or ``module:name`` of either. It is unset by default."""
    parse = _parse_function((), method)

    def parse_place(given: Any) -> Any:
        if not isinstance(given, str):
            return parse(given)
        module, _, name = given.partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
            raise TypeError(f"{given!r} is not the place of a function: write module:name")
        return given

    return _row(Option("function", parse_place, None, sentence, kafka, unset="none"))


def sequence(sentence: str, *, kafka: str | None = None) -> Any:
    """A row with any number of objects. The default is none."""
    return _row(Option("list", _parse_list, (), sentence, kafka))
