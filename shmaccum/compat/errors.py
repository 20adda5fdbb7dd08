# SPDX-License-Identifier: Apache-2.0
"""Exceptions that are ours and a library's at once, so each ``except`` clause of a program goes on to work."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from shmaccum.exceptions import DeliveryFailedError, NoTransactionError, ShmaccumError, TransactionEndedError

Ours = TypeVar("Ours", bound=ShmaccumError)
Table = Mapping[type[ShmaccumError], type[Exception]]
"""Our class -> the library's class. An error without a row takes that of its nearest base."""


class JoinedError(Exception):
    """Base of the joined classes. Pickle finds such a class by the two that it joins."""

    def __reduce__(self) -> tuple[Any, ...]:
        theirs, ours = type(self).__bases__[1:]
        return _joined, (theirs, ours, self.args, vars(self))

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else type(self).__name__


@functools.cache
def joined_class(theirs: Any, ours: Any) -> type[JoinedError]:
    """The class with the library's name that derives from both.

    Args:
        theirs, ours: an exception class of the library, and one of ours.
    """
    return type(
        theirs.__name__, (JoinedError, theirs, ours), {"__doc__": ours.__doc__, "__module__": theirs.__module__}
    )


def _joined(theirs: Any, ours: Any, args: tuple[Any, ...], facts: Mapping[str, Any]) -> Any:
    error = joined_class(theirs, ours)(*args)
    vars(error).update(facts)
    return error


def nearest(error: ShmaccumError, table: Table) -> type[Exception]:
    """The library's class for an error of ours."""
    return next(table[kind] for kind in type(error).__mro__ if kind in table)


def join(error: Ours, theirs: type[Exception], *args: Any) -> Ours:
    """The same error, which is one of the library's, too. One that is joined already stays as it is.

    Args:
        args: those of the library's class; none: those of the error.
    """
    if issubclass(type(error), JoinedError):
        return error
    joined: Ours = _joined(theirs, type(error), args or error.args, vars(error))
    return joined


def join_of_code(error: Ours, for_code: Callable[[int], type[Exception]], table: Table) -> Ours:
    """The same error, with the library's class for the broker's code; without a code, with that of the table."""
    if isinstance(error, DeliveryFailedError) and error.error_code > 0:
        return join(error, for_code(error.error_code))
    return join(error, nearest(error, table))


@contextlib.contextmanager
def translating(translated: Callable[[ShmaccumError], Exception]) -> Iterator[None]:
    """The block's errors of ours leave it as `translated` gives them."""
    try:
        yield
    except ShmaccumError as error:
        raise translated(error) from None


@contextlib.contextmanager
def aborting() -> Iterator[None]:
    """The block aborts. An abort behind the beginning of a commit is a call out of order, as in each library."""
    try:
        yield
    except TransactionEndedError as error:
        raise NoTransactionError(str(error)) from None
