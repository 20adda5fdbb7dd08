# SPDX-License-Identifier: Apache-2.0
"""Makes sure that a node has a sender while a task writes.

With ``sender=auto``, the node's supervisor (`shmaccum.supervisor`) starts a sender if there is none, and restarts it if
it dies. All tasks of a node request a sender, and exactly one of them starts it. With ``sender=external``, no sender is
started: if there was none for ``max_block_ms``, a task that waits for records fails.
"""

from __future__ import annotations

from typing import final

from shmaccum.arena import Arena
from shmaccum.common import clock
from shmaccum.exceptions import SenderNotStartedError
from shmaccum.spark.node import on_this_node
from shmaccum.spark.settings import SinkSettings
from shmaccum.supervisor import Recipe, SenderSupervisor


@final
class NodeSender:
    """Supervises the sender of a node's arena from `__enter__` to `__exit__`.

    Args:
        arena: attached.
        settings: the settings of the write.

    Raises:
        SenderNotStartedError: `__enter__`: there is no sender, and none could be started.
        OtherSinkError: `__enter__`: the present sender delivers to another sink.
    """

    def __init__(self, arena: Arena, settings: SinkSettings) -> None:
        self._arena = arena
        self._settings = settings
        self._supervisor: SenderSupervisor | None = None
        self._absent_since_s: float | None = None

    def __enter__(self) -> NodeSender:
        settings = self._settings
        if settings.sink is not None:
            recipe = Recipe(on_this_node(settings.sink), settings.sender_options, settings.sink_options)
            self._supervisor = SenderSupervisor.supervise(self._arena, recipe)
        return self

    def __exit__(self, *_: object) -> None:
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.leave(self._arena)

    def check(self) -> None:
        """Checks that a sender is running. Called repeatedly by a waiting task.

        Raises:
            SenderNotStartedError: no sender runs, and none could be started; or, with ``sender=external``, none ran for
                ``max_block_ms``.
            OtherSinkError: another process has started a sender with another sink.
        """
        if self._supervisor is not None and self._supervisor.failure is not None:
            raise self._supervisor.failure
        self._check_absence()

    def _check_absence(self) -> None:
        native = self._arena.native
        if native.sender_is_alive or (self._supervisor is not None and native.sender_died):
            self._absent_since_s = None
            return
        now_s = clock.monotonic()
        self._absent_since_s = now_s if self._absent_since_s is None else self._absent_since_s
        if now_s - self._absent_since_s >= self._settings.max_block_ms / 1000:
            why = "with sender=external, none is started" if self._supervisor is None else "the last one was stopped"
            raise SenderNotStartedError(
                f"the arena {self._arena.name!r} has no sender, and {why}: run shmaccum sender {self._arena.name} "
                "--sink ... on every node; the records are still in the arena"
            )
