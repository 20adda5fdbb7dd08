# SPDX-License-Identifier: Apache-2.0
"""Hashes of passwords in a thread of their own: a hash takes milliseconds, in which the loop would answer nobody.

::

    loop    SaslAuthenticate ──> ask ─┐                           ┌──> conclude: the login goes on, or fails
    thread                            └──> hash by hash ──> bell ─┘

Rules: the thread computes a hash and touches nothing else. The loop alone changes logins and sends answers. A client
has one request under way, so at most one hash of each connection waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import final

Proof = Callable[[], bool]
"""Computes for milliseconds whether a password is right."""


@final
class Hashing:
    """The thread that computes hashes, which begins with the first of them.

    Args:
        ring: wakes the server's loop, from any thread.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shmaccum-hashing")
        self._computed: deque[tuple[Future[bool], Callable[[bool], None]]] = deque()

    def ask(self, proof: Proof, conclude: Callable[[bool], None]) -> None:
        """Has a proof computed; `conclude` gets the result in the loop."""

        def note(computed: Future[bool]) -> None:
            self._computed.append((computed, conclude))
            self._ring()

        self._thread.submit(proof).add_done_callback(note)

    def conclude(self) -> None:
        """Hands the results over that are there; the loop calls this."""
        while self._computed:
            computed, conclude = self._computed.popleft()
            if not computed.cancelled():
                conclude(computed.result())

    def close(self) -> None:
        """Ends the thread behind the hash that it computes. Doing it twice does nothing."""
        self._thread.shutdown(cancel_futures=True)
