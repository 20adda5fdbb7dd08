# SPDX-License-Identifier: Apache-2.0
"""Sees to it that a node has a sender while a task writes.

``sender=auto``: a thread looks every now and then, and starts a sender when there is none; one that is new, whoever has
started it, must deliver to the same sink. All tasks of a node do so,
and exactly one of them starts it (`ensure_sender`). That it is a thread is because the task itself may be waiting for a
buffer, which only a sender can free.

``sender=external``: nothing is started. A task that waits for records fails when nobody has come for ``max_block_ms``.
"""

from __future__ import annotations

import threading
import time
from typing import final

from shmaccum.arena import Arena
from shmaccum.exceptions import OtherSinkError, SenderNotStartedError
from shmaccum.keeper import ensure_sender
from shmaccum.spark.node import on_this_node
from shmaccum.spark.settings import SinkSettings

LOOK_INTERVAL_S = 0.1


@final
class SenderKeeper:
    """Keeps a sender at an arena from `__enter__` to `__exit__`.

    Args:
        arena: attached.
        settings: what to start.

    Raises:
        SenderNotStartedError: `__enter__`: there is no sender, and none could be started.
        OtherSinkError: `__enter__`: there is one, and it delivers to another sink.
    """

    def __init__(self, arena: Arena, settings: SinkSettings) -> None:
        self._arena = arena
        self._settings = settings
        self._failure: SenderNotStartedError | OtherSinkError | None = None
        self._epoch = 0
        self._absent_since_s: float | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="shmaccum-sender-keeper", daemon=True)

    def __enter__(self) -> SenderKeeper:
        if self._settings.sink is not None:
            self._ensure(self._settings.sink)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()

    def check(self) -> None:
        """Call it while you wait for the sender.

        Raises:
            SenderNotStartedError: there is none, and nobody will start one.
            OtherSinkError: somebody has started one that delivers to another sink.
        """
        if self._failure is not None:
            raise self._failure
        if self._settings.sink is None:
            self._check_external()

    # --- auto

    def _watch(self) -> None:
        while not self._is_over.wait(LOOK_INTERVAL_S):
            if self._settings.sink is not None and self._has_lost_its_sender():
                try:
                    self._ensure(self._settings.sink)
                except (SenderNotStartedError, OtherSinkError) as error:
                    self._failure = error
                    return

    def _has_lost_its_sender(self) -> bool:
        """There is none, or another one than at the last look."""
        native = self._arena.native
        return not native.sender_is_alive or native.sender()["epoch"] != self._epoch

    def _ensure(self, sink: str) -> None:
        options = dict(self._settings.sender_options)
        idle_exit = options.pop("idle_exit_ms", None)
        sink = on_this_node(sink)
        self._epoch = self._arena.native.sender()["epoch"]  # before it is looked at: the next one counts as new
        ensure_sender(self._arena, sink, idle_exit=idle_exit, sink_options=self._settings.sink_options, **options)

    # --- external

    def _check_external(self) -> None:
        if self._arena.native.sender_is_alive:
            self._absent_since_s = None
            return
        now_s = time.monotonic()
        self._absent_since_s = now_s if self._absent_since_s is None else self._absent_since_s
        if now_s - self._absent_since_s >= self._settings.max_block_ms / 1000:
            raise SenderNotStartedError(
                f"the arena {self._arena.name!r} has no sender, and sender=external starts none: run shmaccum sender "
                f"{self._arena.name} --sink ... on every node; what was appended is still there"
            )
