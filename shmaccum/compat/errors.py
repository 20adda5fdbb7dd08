# SPDX-License-Identifier: Apache-2.0
"""Exceptions that derive from both a shmaccum error and a library's, so existing ``except`` clauses work.

`ERRORS` has the libraries' names for each error of shmaccum.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from shmaccum.exceptions import (
    ArenaBusyError,
    BufferExhaustedError,
    DeliveryAbortedError,
    DeliveryFailedError,
    DeliveryTimeoutError,
    FlushTimeoutError,
    InvalidArgumentError,
    NoTransactionError,
    OtherSinkError,
    PartitionCountUnknownError,
    ProducerClosedError,
    ProducerFencedError,
    RecordTooLargeError,
    ResultPendingError,
    SenderNotStartedError,
    ShmaccumError,
    TransactionEndedError,
    TransactionOutcomeUnknownError,
    UnknownPartitionError,
)

T = TypeVar("T")
Ours = TypeVar("Ours", bound=ShmaccumError)


class Names(NamedTuple):
    """The libraries' names for an error of shmaccum. An error without a name has the name of its nearest base.

    Attributes:
        kafka_python: a class of `kafka.errors`.
        aiokafka: a class of `aiokafka.errors`.
        librdkafka: a code of `confluent_kafka.KafkaError`.
    """

    kafka_python: str
    aiokafka: str
    librdkafka: str


ErrorNames = Mapping[type[ShmaccumError], Names]

ERRORS: ErrorNames = {
    ShmaccumError: Names("KafkaError", "KafkaError", "_FAIL"),
    InvalidArgumentError: Names("KafkaConfigurationError", "IllegalArgumentError", "_INVALID_ARG"),
    OtherSinkError: Names("KafkaConfigurationError", "", ""),
    SenderNotStartedError: Names("KafkaConnectionError", "KafkaConnectionError", "_ALL_BROKERS_DOWN"),
    BufferExhaustedError: Names("KafkaTimeoutError", "KafkaTimeoutError", ""),
    PartitionCountUnknownError: Names("KafkaTimeoutError", "UnknownTopicOrPartitionError", "_UNKNOWN_TOPIC"),
    UnknownPartitionError: Names("", "UnknownTopicOrPartitionError", "_UNKNOWN_PARTITION"),
    RecordTooLargeError: Names("MessageSizeTooLargeError", "MessageSizeTooLargeError", "MSG_SIZE_TOO_LARGE"),
    FlushTimeoutError: Names("KafkaTimeoutError", "KafkaTimeoutError", ""),
    ResultPendingError: Names("KafkaTimeoutError", "KafkaTimeoutError", ""),
    DeliveryTimeoutError: Names("KafkaTimeoutError", "KafkaTimeoutError", "_MSG_TIMED_OUT"),
    DeliveryAbortedError: Names("Cancelled", "", "_PURGE_QUEUE"),
    ProducerClosedError: Names("IllegalStateError", "ProducerClosed", ""),
    NoTransactionError: Names("IllegalStateError", "IllegalOperation", "_STATE"),
    TransactionEndedError: Names("TransactionAbortableError", "InvalidTxnState", "_INCONSISTENT"),
    TransactionOutcomeUnknownError: Names("KafkaTimeoutError", "KafkaTimeoutError", "_TIMED_OUT"),
    ProducerFencedError: Names("ProducerFencedError", "ProducerFenced", "_FENCED"),
}
IN_TRANSACTIONS: ErrorNames = {
    InvalidArgumentError: Names("IllegalStateError", "IllegalOperation", "_NOT_CONFIGURED"),
    ArenaBusyError: Names("ConcurrentTransactionsError", "ConcurrentTransactions", "_CONFLICT"),
}
"""The errors that have other names in the calls of transactions."""
OF_OFFSETS: ErrorNames = {
    InvalidArgumentError: Names("IllegalArgumentError", "IllegalOperation", "_INVALID_ARG"),
    BufferExhaustedError: Names("KafkaTimeoutError", "KafkaTimeoutError", "_TIMED_OUT"),
}
"""The errors that have other names for offsets of a transaction."""


def classes_of(library: str, place: object, changes: ErrorNames | None = None) -> Mapping[type[ShmaccumError], Any]:
    """Returns the library's classes, or codes, for the errors of shmaccum.

    Args:
        library: the column of the table.
        place: the object that has them as attributes.
        changes: rows that replace those of the table.
    """
    names = {kind: getattr(row, library) for kind, row in {**ERRORS, **(changes or {})}.items()}
    return {kind: getattr(place, name) for kind, name in names.items() if name}


class JoinedError(Exception):
    """The base of the joined classes. Pickle identifies such a class by the two classes that it joins.

    No constructor of the two classes is called, because each of them takes other arguments.
    """

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __reduce__(self) -> tuple[Any, ...]:
        theirs, ours = type(self).__bases__[1:]
        return _joined, (theirs, ours, self.args, vars(self))

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else type(self).__name__


@functools.cache
def joined_class(theirs: Any, ours: Any) -> type[JoinedError]:
    """Returns a class with the library's name that derives from both.

    Args:
        theirs, ours: an exception class of the library, and one of shmaccum.
    """
    return type(
        theirs.__name__, (JoinedError, theirs, ours), {"__doc__": ours.__doc__, "__module__": theirs.__module__}
    )


def _joined(theirs: Any, ours: Any, args: tuple[Any, ...], facts: Mapping[str, Any]) -> Any:
    error = joined_class(theirs, ours)(*args)
    vars(error).update(facts)
    return error


def nearest(error: ShmaccumError, table: Mapping[type[ShmaccumError], T]) -> T:
    """Returns the entry of an error's class, or of its nearest base."""
    return next(table[kind] for kind in type(error).__mro__ if kind in table)


def join(error: Ours, theirs: type[Exception], *args: Any) -> Ours:
    """Returns the error as one that is also an error of the library. An error that is already joined is unchanged.

    Args:
        args: the arguments of the library's class. The default is the sentence of the error.
    """
    if issubclass(type(error), JoinedError):
        return error
    alone = theirs(*(args or (str(error),)))
    joined: Ours = _joined(theirs, type(error), alone.args, {**vars(alone), **vars(error)})
    return joined


def join_of_code(
    error: Ours, for_code: Callable[[int], type[Exception]], table: Mapping[type[ShmaccumError], type[Exception]]
) -> Ours:
    """Returns the error joined with the library's class for the broker's code. Without a code, its class decides."""
    if isinstance(error, DeliveryFailedError) and error.error_code > 0:
        return join(error, for_code(error.error_code))
    return join(error, nearest(error, table))


@contextlib.contextmanager
def translating(translated: Callable[[ShmaccumError], Exception]) -> Iterator[None]:
    """Replaces the errors of shmaccum that leave the block by the result of `translated`."""
    try:
        yield
    except ShmaccumError as error:
        raise translated(error) from None


@contextlib.contextmanager
def aborting() -> Iterator[None]:
    """Translates the error of an abort that follows the beginning of a commit: the call is in the wrong state."""
    try:
        yield
    except TransactionEndedError as error:
        raise NoTransactionError(str(error)) from None
