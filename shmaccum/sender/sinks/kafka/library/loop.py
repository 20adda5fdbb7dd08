# SPDX-License-Identifier: Apache-2.0
"""The library's event loop, with cheaper waits."""

from __future__ import annotations

import selectors
from collections.abc import Awaitable
from typing import Any

from kafka.net.selector import KernelEvent, NetworkSelector, Task, TaskState

from shmaccum.common import clock
from shmaccum.sender.sinks.kafka.traffic import LoopTimes


class _TimedSelector(selectors.DefaultSelector):
    """Counts and measures its waits."""

    def __init__(self) -> None:
        super().__init__()
        self.times = LoopTimes()
        self.woke_ns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        started_ns = clock.monotonic_ns()
        ready = super().select(timeout)
        self.woke_ns = clock.monotonic_ns()
        self.times.select_count += 1
        self.times.wait_ns += self.woke_ns - started_ns
        return ready


class Selector(NetworkSelector):  # type: ignore[misc]
    """Remembers which descriptors are registered. The library finds out by an exception, whose text costs two system
    calls in each wait.
    """

    def __init__(self, **configs: Any) -> None:
        super().__init__(selector=_TimedSelector, **configs)
        self._waited_for: dict[int, int] = {}

    @property
    def times(self) -> LoopTimes:
        times: LoopTimes = self._selector.times
        return times

    def poll(self, timeout_ms: float | None = None, future: Any = None) -> None:
        """Run one round: wait once, then do what is ready."""
        super().poll(timeout_ms, future)
        self.times.io_ns += clock.monotonic_ns() - self._selector.woke_ns

    def register_event(self, fileobj: Any, event: int, task: Any) -> None:
        """Wake the task when the file is ready."""
        descriptor = _descriptor(fileobj)
        events = self._waited_for.get(descriptor, 0)
        if events or not isinstance(task, Task):
            super().register_event(fileobj, event, task)
        else:
            self._selector.register(fileobj, event, (task, None) if event == selectors.EVENT_READ else (None, task))
        self._waited_for[descriptor] = events | event

    def wait_readable(self, fileobj: Any) -> Awaitable[None]:
        """Wait for a descriptor, and keep it registered for the next wait."""
        return KernelEvent("_wait_readable", fileobj)  # type: ignore[no-any-return]

    def _wait_readable(self, fileobj: Any) -> None:
        """Register the current task for that event."""
        task = self._current
        if not self._waited_for.get(_descriptor(fileobj), 0) & selectors.EVENT_READ:
            self.register_event(fileobj, selectors.EVENT_READ, task)
        task.state = TaskState.WAIT_IO

    def unregister_event(self, fileobj: Any, event: int) -> None:
        """Undo `register_event`."""
        descriptor = _descriptor(fileobj)
        events = self._waited_for.pop(descriptor, 0) & ~event
        if events:
            self._waited_for[descriptor] = events
        super().unregister_event(fileobj, event)


def _descriptor(fileobj: Any) -> int:
    """Return the descriptor; -1 if it is closed."""
    return fileobj if isinstance(fileobj, int) else int(fileobj.fileno())
