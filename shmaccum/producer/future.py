# SPDX-License-Identifier: Apache-2.0
"""The methods of a `DeliveryFuture`. The native type calls the function of the same name, and passes the future.

A future consists of the numbers that identify the record, and of its tracker (`shmaccum.producer.delivery`). These
functions query the tracker once and call one another, so no result passes through the native type twice. Users see the
docstrings of the native type.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from shmaccum._native import RESULT_SUCCEEDED, DeliveryFuture
from shmaccum.exceptions import DeliveryError, ResultPendingError
from shmaccum.producer.delivery import RecordMetadata, tracker_of

# --- results


def done(future: DeliveryFuture) -> bool:
    """True when the result is known."""
    return future.tracker.is_known(future)


def succeeded(future: DeliveryFuture) -> bool:
    """True when the record was delivered."""
    return done(future) and future.tracker.exception_of(future) is None


def failed(future: DeliveryFuture) -> bool:
    """True if the record was not delivered, or its result is lost."""
    return exception(future) is not None


def exception(future: DeliveryFuture) -> DeliveryError | None:
    """Returns the error of the record, or None if it was delivered or its result is not known."""
    return future.tracker.exception_of(future) if done(future) else None


def value(future: DeliveryFuture) -> RecordMetadata | None:
    """Returns the metadata of the record, or None if it was not delivered or its result is not known."""
    if future.completion is None and not future.tracker.is_known(future):
        return None
    assert future.completion is not None
    return future.tracker.metadata_of(future) if future.completion[0] == RESULT_SUCCEEDED else None


# --- waiting


def get(future: DeliveryFuture, timeout: float | None = None) -> RecordMetadata:
    """Waits for the result. The timeout is in seconds, and None means no limit."""
    if not future.tracker.wait_for(future, timeout):
        left = future.tracker.describe_time_left(future)
        why = f" ({left})" if left else ""
        known = f"the result was not known within {timeout} s"
        raise future.tracker.translated_error(
            ResultPendingError(f"{known}: the record is in the arena and will be sent; ask again{why}")
        )
    return _outcome(future)


def wait(future: DeliveryFuture) -> Generator[Any, None, RecordMetadata]:
    """``await future``: returns the metadata or raises the exception, without a thread."""
    if not done(future):
        from shmaccum.producer.loop_results import wait_in_loop

        yield from wait_in_loop(future)
    return _outcome(future)


def _outcome(future: DeliveryFuture) -> RecordMetadata:
    failure = future.tracker.exception_of(future)
    if failure is not None:
        raise failure
    return future.tracker.metadata_of(future)


# --- callbacks


def add_callback(
    future: DeliveryFuture, function: Callable[..., object], /, *args: Any, **kwargs: Any
) -> DeliveryFuture:
    """Calls ``function(*args, metadata, **kwargs)`` when the record is delivered, or at once if it is already.

    Callbacks run in this process, in the tracker's thread. The callbacks of a partition run in the order of its
    records. Exceptions of callbacks are logged. Callbacks should be short.
    """

    def call(ended: DeliveryFuture) -> None:
        found = value(ended)
        if found is not None:
            function(*args, found, **kwargs)

    future.tracker.observe(future, call)
    return future


def add_errback(
    future: DeliveryFuture, function: Callable[..., object], /, *args: Any, **kwargs: Any
) -> DeliveryFuture:
    """Calls ``function(*args, exception, **kwargs)`` if the record is not delivered."""

    def call(ended: DeliveryFuture) -> None:
        found = exception(ended)
        if found is not None:
            function(*args, found, **kwargs)

    future.tracker.observe(future, call)
    return future


def add_both(future: DeliveryFuture, function: Callable[..., object], /, *args: Any, **kwargs: Any) -> DeliveryFuture:
    """Calls the function with the metadata or with the exception."""
    return add_errback(add_callback(future, function, *args, **kwargs), function, *args, **kwargs)


# --- repr and pickle


def describe(future: DeliveryFuture) -> str:
    """Returns the repr."""
    place = "{}-{}".format(*future.tracker.topic_partition(future.partition_index))
    if done(future):
        return f"<DeliveryFuture of {place}, {'failed' if failed(future) else 'delivered'}>"
    left = future.tracker.describe_time_left(future)
    return f"<DeliveryFuture of {place}, pending{f': {left}' if left else ''}>"


def reduce(future: DeliveryFuture) -> tuple[Any, ...]:
    """Pickles the numbers that identify the record, and the address of its arena."""
    numbers = (
        future.partition_index,
        future.slot_index,
        future.seq,
        future.record_index,
        future.timestamp_ms,
        future.key_size,
        future.value_size,
        future.headers_size,
    )
    return _future_from, (*future.tracker.address, numbers, future.completion)


def _future_from(
    name: str, mode: int, uuid: bytes, numbers: tuple[Any, ...], completion: tuple[int, ...] | None
) -> DeliveryFuture:
    """Unpickles a future."""
    future = DeliveryFuture(tracker_of(name, mode, uuid), *numbers)
    if completion is not None:
        future.completion = completion
    return future
