# SPDX-License-Identifier: Apache-2.0
"""Computations that take milliseconds, in a thread of their own, so that the loop answers other clients meanwhile.

::

    loop    request ──> ask ─┐                                   ┌──> conclude: the request is answered
    thread                   └──> compute, one at a time ──> bell ─┘

Passwords are hashed so, and produced batches are decompressed. Rules: the thread computes and touches nothing that the
loop changes. The loop alone changes the server's state and sends answers. A client has one request under way, so at
most one computation of each connection waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, final

T = TypeVar("T")
Proof = Callable[[], bool]
"""Computes for milliseconds whether a password is right."""


@final
class Worker:
    """The thread, which starts with the first computation.

    Args:
        ring: wakes the server's loop, from any thread.
        name: of the thread.
    """

    def __init__(self, ring: Callable[[], None], name: str) -> None:
        self._ring = ring
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"shmaccum-{name}")
        self._computed: deque[Callable[[], None]] = deque()

    def ask(self, compute: Callable[[], T], conclude: Callable[[T], None]) -> None:
        """Has a function called in the thread; `conclude` gets its result in the loop."""
        try:
            computed = self._thread.submit(compute)
        except RuntimeError:  # the system has no thread now, so the loop computes this one
            conclude(compute())
            return

        def note(_: object) -> None:
            self._computed.append(lambda: None if computed.cancelled() else conclude(computed.result()))
            self._ring()

        computed.add_done_callback(note)

    def conclude(self) -> None:
        """Hands the results over that are there; the loop calls this."""
        while self._computed:
            self._computed.popleft()()

    def close(self) -> None:
        """Ends the thread after the present computation. Doing it twice does nothing."""
        self._thread.shutdown(cancel_futures=True)
