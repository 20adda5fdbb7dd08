# SPDX-License-Identifier: Apache-2.0
"""Questions of other threads to a loop that owns the facts: a scrape asks, and the loop answers between two rounds."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar, final

if TYPE_CHECKING:
    from concurrent import futures

Answer = TypeVar("Answer")


@final
class Questions(Generic[Answer]):
    """The questions of one kind that nobody has answered yet.

    Args:
        owner: the owner of the loop, for people: "the sender".
        wake: wakes the loop, from any thread.
    """

    def __init__(self, owner: str, wake: Callable[[], None]) -> None:
        self._owner = owner
        self._wake = wake
        self._open: SimpleQueue[futures.Future[Answer]] = SimpleQueue()

    def ask(self, timeout_s: float) -> Answer:
        """The answer of the loop, for another thread than the loop's.

        Raises:
            TimeoutError: the loop did not answer in time.
            Exception: as the function raises that makes the answer.
        """
        from concurrent import futures  # slow to import, and most loops are never asked

        question: futures.Future[Answer] = futures.Future()
        self._open.put(question)
        self._wake()
        try:
            return question.result(timeout_s)
        except futures.TimeoutError:  # another one than Python's own before 3.11
            raise TimeoutError(f"{self._owner} did not answer within {timeout_s:g} s") from None

    @property
    def has_any(self) -> bool:
        """True while a question is open."""
        return not self._open.empty()

    def answer(self, make: Callable[[], Answer]) -> None:
        """Answers every open question, each by a call of the function."""
        while not self._open.empty():
            question = self._open.get()
            try:
                question.set_result(make())
            except Exception as error:  # noqa: BLE001 - it is told where the question was asked
                question.set_exception(error)
