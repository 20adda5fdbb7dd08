# SPDX-License-Identifier: Apache-2.0
"""Long requests, in steps: the loop answers other clients between two steps.

A client chooses how many topics, partitions or groups a request names. So the handler of such a request is a generator,
which yields after each element. The server runs it for a few milliseconds at a time, one request after another. A
handler that yields a function gets its result back: the server calls it in a thread, because it takes long.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar

Element = TypeVar("Element")
Answer = TypeVar("Answer")
Stepwise = Generator["Callable[[], Any] | None", Any, Answer]
"""A part of a handler that answers in steps, and its result."""
Steps = Stepwise[None]
"""Steps that have no result."""


def answer_each(elements: Iterable[Element], answer: Callable[[Element], Answer]) -> Stepwise[list[Answer]]:
    """The answers for all elements, each a step."""
    answers = []
    for element in elements:
        answers.append(answer(element))
        yield None
    return answers


def take_all(steps: Stepwise[Answer]) -> Answer:
    """The result of steps that are taken at once, in the caller's thread."""
    found: Any = None
    while True:
        try:
            compute = steps.send(found)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        found = None if compute is None else compute()
