# SPDX-License-Identifier: Apache-2.0
"""Pending calls of other threads to a loop that owns the data. The loop runs them between two rounds."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar, final

if TYPE_CHECKING:
    from concurrent import futures

Answer = TypeVar("Answer")


@final
class PendingCalls(Generic[Answer]):
    """The calls of one kind that the loop has not run yet.

    Args:
        owner: the owner of the loop, for messages, such as "the sender".
        wake: wakes the loop, from any thread.
    """

    def __init__(self, owner: str, wake: Callable[[], None]) -> None:
        self._owner = owner
        self._wake = wake
        self._open: SimpleQueue[futures.Future[Answer]] = SimpleQueue()

    def ask(self, timeout_s: float) -> Answer:
        """Returns the result of a call that the loop runs. The caller is another thread.

        Raises:
            TimeoutError: the loop did not run the call in time.
            Exception: the exception of the function that the loop calls.
        """
        from concurrent import futures  # slow to import, and most loops get no call

        question: futures.Future[Answer] = futures.Future()
        self._open.put(question)
        self._wake()
        try:
            return question.result(timeout_s)
        except futures.TimeoutError:  # before 3.11, not Python's TimeoutError
            raise TimeoutError(f"{self._owner} did not answer within {timeout_s:g} s") from None

    @property
    def has_any(self) -> bool:
        """True while a call is pending."""
        return not self._open.empty()

    def answer(self, make: Callable[[], Answer]) -> None:
        """Calls the function for each pending call."""
        while not self._open.empty():
            question = self._open.get()
            try:
                question.set_result(make())
            except Exception as error:  # noqa: BLE001 - the other thread gets it
                question.set_exception(error)
