# SPDX-License-Identifier: Apache-2.0
"""Computations that take milliseconds, in a thread, so that the loop can serve other clients.

::

    loop    request ──> ask ─┐                                        ┌──> conclude: the request is answered
    thread                   └──> compute, one at a time ──> wake fd ─┘

The thread hashes passwords and decompresses produced batches. Rules: the thread only computes, and accesses nothing
that the loop changes. Only the loop changes the server's state and sends responses. A client has at most one request in
progress, so at most one computation of each connection waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, final

T = TypeVar("T")
Proof = Callable[[], bool]
"""Computes whether a password is right, which takes milliseconds."""


@final
class Worker:
    """The thread, which starts with the first computation.

    Args:
        wake: wakes the server's loop; thread-safe.
        name: the name of the thread.
    """

    def __init__(self, wake: Callable[[], None], name: str) -> None:
        self._wake = wake
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"shmaccum-{name}")
        self._computed: deque[Callable[[], None]] = deque()

    def ask(self, compute: Callable[[], T], conclude: Callable[[T], None]) -> None:
        """Calls a function in the thread, then passes its result to `conclude` in the loop."""
        try:
            computed = self._thread.submit(compute)
        except RuntimeError:  # no thread can be started now, so the loop computes
            conclude(compute())
            return

        def on_done(_: object) -> None:
            self._computed.append(lambda: None if computed.cancelled() else conclude(computed.result()))
            self._wake()

        computed.add_done_callback(on_done)

    def conclude(self) -> None:
        """Passes on the available results. Called by the loop."""
        while self._computed:
            self._computed.popleft()()

    def close(self) -> None:
        """Ends the thread after the present computation. Idempotent."""
        self._thread.shutdown(cancel_futures=True)
