# SPDX-License-Identifier: Apache-2.0
"""Long requests as generators: the loop serves other clients between two steps.

A client chooses how many topics, partitions or groups a request names. So the handler of such a request is a generator
that yields after each element. The server runs it for a few milliseconds at a time, in turn with other requests. If a
handler yields a function, the server calls it in a thread and sends its result back.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar

Element = TypeVar("Element")
Answer = TypeVar("Answer")
Stepwise = Generator["Callable[[], Any] | None", Any, Answer]
"""The generator of a handler, and the type of its result."""
Steps = Stepwise[None]
"""A generator without a result."""


def answer_each(elements: Iterable[Element], answer: Callable[[Element], Answer]) -> Stepwise[list[Answer]]:
    """Answer each element in a step, and return the answers."""
    answers = []
    for element in elements:
        answers.append(answer(element))
        yield None
    return answers


def take_all(steps: Stepwise[Answer]) -> Answer:
    """Run all steps in the calling thread, and return their result."""
    found: Any = None
    while True:
        try:
            compute = steps.send(found)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        found = None if compute is None else compute()
