# SPDX-License-Identifier: Apache-2.0
"""How an option is described: one row of a table, with its type, default, bounds and sentence.

A function here makes a row of each kind as a dataclass field::

    linger_ms: int = duration_ms("5ms", "How long a batch that this producer opens waits for more records.")

No duration is too long. A duration above the maximum of its row, infinity included, means "for ever" and becomes that
maximum, so every clock of the core can add it to the present time. A size or a count above its maximum is refused.
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
"""The longest duration, 73 years: in nanoseconds, a clock that counts from a boot can add it twice below 2**63."""


@dataclass(frozen=True)
class Option:
    """One row of a table.

    Attributes:
        kind: "size", "duration", "count", "percent", "factor", "boolean", "choice", "text", "mode", "function", "list".
        parse: from what a user writes to the attribute; InvalidArgumentError or TypeError when it cannot be.
        default: the value when the user gives none; `unset` is the spelling of None.
        sentence: its purpose.
        kafka: Kafka's dotted name, where it is more than the name with dots; None: Kafka has no such option.
        minimum, maximum: bounds, both included; None is unbounded. A longer duration becomes the maximum.
        choices: the texts it takes.
        unset: how a user writes None, where that is the default.
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
        """The value; a duration above the maximum becomes the maximum."""
        is_long = self.kind == "duration" and value is not None and self.maximum is not None and value > self.maximum
        return self.maximum if is_long else value

    def check(self, name: str, value: Any) -> None:
        """Raises InvalidArgumentError when the value is out of bounds."""
        if self.default is None and value is None:
            return
        if self.minimum is not None and value < self.minimum:
            raise InvalidArgumentError(f"{name} is {value}, it must be at least {self.minimum}")
        if self.maximum is not None and value > self.maximum:
            raise InvalidArgumentError(f"{name} is {value}, it may be at most {self.maximum}")

    def parse_named(self, name: str, given: Any) -> Any:
        """The value of what a user wrote; errors name the option.

        Raises:
            InvalidArgumentError: it cannot be read.
        """
        if self.default is None and (given is None or given == self.unset):
            return None
        try:
            return self.parse(given)
        except (TypeError, ValueError) as error:  # int() has one of its own for thousands of digits
            raise InvalidArgumentError(f"{name}: {error}") from None


def _parse_count(given: Any) -> int:
    if isinstance(given, str) and given.strip().lstrip("-").isdecimal():
        return int(given)
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"{given!r} is no whole number")
    return given


def _parse_mode(given: Any) -> int:
    """Permissions: a number, or a text in octal."""
    if not isinstance(given, str):
        return _parse_count(given)
    try:
        return int(given, base=8)
    except ValueError:
        raise TypeError(f"{given!r} are no permissions: write them in octal, like 0600") from None


def _parse_boolean(given: Any) -> bool:
    known = {"true": True, "false": False, True: True, False: False}
    lowered = given.lower() if isinstance(given, str) else given
    if isinstance(lowered, (str, bool)) and lowered in known:
        return known[lowered]
    raise TypeError(f"{given!r} is neither true nor false")


def _parse_factor(given: Any) -> Fraction:
    """0, or a number from 1/2 to 64: ``4``, ``1.5`` or ``1/2``."""
    if isinstance(given, bool) or not isinstance(given, (int, float, str, Fraction)):
        raise TypeError(f"{given!r} is no number")
    try:
        value = Fraction(given)
    except (ValueError, OverflowError, ZeroDivisionError):
        raise TypeError(f"{given!r} is no number: write it like 4, 1.5 or 1/2") from None
    if value != 0 and not FACTOR_MIN <= value <= FACTOR_MAX:
        raise TypeError(f"{given} has to be 0, which turns it off, or from {FACTOR_MIN} to {FACTOR_MAX}")
    return value


def _parse_text(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError(f"{given!r} is no text")
    return given


def _parse_group(given: Any) -> str | int:
    """A name, or a number in either form."""
    if isinstance(given, str) and not given.isdecimal():
        if not given or any(character.isspace() or character == ":" for character in given):
            raise TypeError(f"{given!r} is no name of a group")
        return given
    number = _parse_count(given)
    if number < 0:
        raise TypeError(f"{number} is no number of a group")
    return number


def _with_minus_one(parse: Callable[[Any], int]) -> Callable[[Any], int]:
    """Kafka writes "no limit" as -1."""
    return lambda given: -1 if given in (-1, "-1") else parse(given)


def _parse_milliseconds(given: Any) -> int:
    """A bare number of an option that ends in ms is what Kafka's configuration files have."""
    if given == math.inf or (isinstance(given, str) and given.strip().lower() == "inf"):
        return LONG_MAX
    return int(given) if isinstance(given, str) and given.strip().isdecimal() else parse_duration_ms(given)


def _parse_choice(choices: tuple[str, ...]) -> Callable[[Any], str]:
    def parse(given: Any) -> str:
        text = str(given)
        if text not in choices:
            raise TypeError(f"{text!r} is none of {', '.join(choices)}")
        return text

    return parse


def _parse_function(names: tuple[str, ...], method: str) -> Callable[[Any], Any]:
    """One of our names, a function, or an object with the method that Kafka's interface of this purpose has."""

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
        raise TypeError(f"{given!r} is no list")
    return tuple(given)


# --- rows of each kind


def _row(option: Option) -> Any:
    """The option as a dataclass field."""
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
    """A row with a factor; 0 turns it off."""
    return _row(Option("factor", _parse_factor, Fraction(default), sentence))


def boolean(default: bool, sentence: str, *, kafka: str | None = None) -> Any:
    """A row that is true or false."""
    return _row(Option("boolean", _parse_boolean, default, sentence, kafka))


def text(default: str | None, sentence: str, *, kafka: str | None = None, unset: str = "off") -> Any:
    """A row with a text."""
    return _row(Option("text", _parse_text, default, sentence, kafka, unset=unset))


def group(sentence: str) -> Any:
    """A row with a group of users, by name or number; the process's own unless the user says so."""
    return _row(Option("group", _parse_group, None, sentence, unset="own"))


def secret(sentence: str, *, kafka: str | None = None) -> Any:
    """A row with a password; unset unless the user says so."""
    return _row(Option("secret", _parse_secret, None, f"{sentence} Write env:NAME or file:PATH.", kafka, unset="none"))


def choice(
    default: str | None, choices: tuple[str, ...], sentence: str, *, kafka: str | None = None, unset: str = "off"
) -> Any:
    """A row with one text of a few."""
    return _row(Option("choice", _parse_choice(choices), default, sentence, kafka, choices=choices, unset=unset))


def function(
    default: str | None, names: tuple[str, ...], method: str, sentence: str, *, kafka: str | None = None
) -> Any:
    """A row with a function of the user, or the name of one of ours."""
    return _row(
        Option("function", _parse_function(names, method), default, sentence, kafka, choices=names, unset="none")
    )


def sequence(sentence: str, *, kafka: str | None = None) -> Any:
    """A row with any number of objects; none unless the user says so."""
    return _row(Option("list", _parse_list, (), sentence, kafka))
