# SPDX-License-Identifier: Apache-2.0
"""One inotify instance, and one timer, for all consumers of a process. A user may have 128 instances by default.

::

    take      any consumer: reads all events, and adds each path to the changed paths of every consumer that watches it
    enter     a consumer starts to wait. The first one becomes the listener: its selector gets instance and timer.
    leave     the wait is over. Another waiting consumer becomes the listener.
    checked   a consumer has checked the plan of its group

Rules: only one selector at a time has the instance, so an event wakes the listener alone. The listener reads it, and
wakes the waiting consumers that watch its path. While any consumer waits, the listener is a waiting one. After its
wait, the listener keeps the instance until another consumer waits. So a single consumer needs no system call to pass it
on. The lock file of a group is handled by `plan_checks`: one consumer gets its path, and the timer is set to the next
check.

Why no event is lost: changed paths, plan checks, waiting consumers and the listener change under one lock. A consumer
with a changed path does not start to wait. A selector that gets an instance with unread events is ready at once.

A forked child closes its copies. It does not change a watch, timer or selector, because its parent shares them.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import threading
from typing import Protocol, final

from shmaccum.common import clock
from shmaccum.log.consumer.plan_checks import PlanChecks
from shmaccum.log.consumer.timer import Timer
from shmaccum.log.files.log_watch import LogWatch
from shmaccum.log.groups.plan import Plan

CHECK_PLAN = "plan"
"""The pseudo path for a consumer that must check the plan. No file has this path."""


class Watcher(Protocol):
    """A consumer that uses the shared watch.

    Attributes:
        changed_paths: changed paths that the consumer has not taken yet.
    """

    changed_paths: set[str]

    def end_wait(self) -> None:
        """End the wait of this consumer. Thread-safe."""

    def listen(self, descriptor: int) -> None:
        """Add the descriptor of the instance and the timer to the selector."""

    def stop_listening(self, descriptor: int) -> None:
        """Remove this descriptor from the selector."""

    def is_concerned(self, plan: Plan) -> bool:
        """True if the consumer has to act on a plan that another consumer has read."""


@final
class SharedWatch:
    """The inotify instance, and the consumers that use it. The module docstring has the rules."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # garbage collection may remove a consumer at any point
        self._watch = LogWatch()
        self._timer = Timer()
        self._selector = selectors.EpollSelector()
        self._selector.register(self._timer.descriptor, selectors.EVENT_READ)
        if self.is_open:
            self._selector.register(self._watch.descriptor, selectors.EVENT_READ)
        else:
            self._close()
        self._checks: dict[str, PlanChecks[Watcher]] = {}
        self._lock_path_of: dict[Watcher, str] = {}
        self._paths: dict[Watcher, set[str]] = {}
        self._watchers: dict[str, set[Watcher]] = {}
        self._waiting: dict[Watcher, None] = {}
        self._listener: Watcher | None = None

    @property
    def is_open(self) -> bool:
        """False if the kernel gave no instance, after the last consumer was removed, and in a forked child."""
        return self._watch.descriptor >= 0

    def add(self, user: Watcher) -> bool:
        """Add a consumer; return False if there is no instance."""
        with self._lock:
            if self.is_open:
                self._paths[user] = set()
            return self.is_open

    def watch(self, user: Watcher, paths: set[str], lock_path: str | None = None) -> bool:
        """Watch exactly these folders and files for a consumer; return False if the kernel does not watch all of them.

        Args:
            paths: the folders and files.
            lock_path: the path among them that is the lock file of the consumer's group.
        """
        if not self.is_open:
            return not paths
        with self._lock:
            self._set_lock_path(user, lock_path)
            for path in self._paths[user] - paths:
                self._forget(user, path)
            self._paths[user] = set(paths)
            for path in paths:
                self._watchers.setdefault(path, set()).add(user)
            unwatched = [path for path in paths if not self._watch.add(path)]
            return not unwatched

    def _forget(self, user: Watcher, path: str) -> None:
        watchers = self._watchers[path]
        watchers.discard(user)
        if not watchers:
            del self._watchers[path]
            self._watch.remove(path)

    def _set_lock_path(self, user: Watcher, path: str | None) -> None:
        former = self._lock_path_of.get(user)
        if former == path:
            return
        if former is not None:
            del self._lock_path_of[user]
            self._checks[former].remove(user)
            if not self._checks[former].users:
                del self._checks[former]
        if path is not None:
            self._lock_path_of[user] = path
            self._checks.setdefault(path, PlanChecks()).users[user] = None

    def take(self, user: Watcher) -> set[str]:
        """The paths of a consumer that changed since its last call."""
        if not self.is_open:
            return set()
        with self._lock:
            for path in self._watch.changed():
                self._distribute(path, user)
            self._start_checks(user)
            found, user.changed_paths = user.changed_paths, set()
            return found

    def _distribute(self, path: str, user: Watcher) -> None:
        """Deliver a change of a path to the consumers that watch it."""
        if path in self._checks:
            self._checks[path].wake()
            return
        for watcher in tuple(self._watchers.get(path, ())):
            self._deliver(watcher, path, user)

    def _deliver(self, watcher: Watcher, path: str, user: Watcher) -> None:
        """Add a changed path to a consumer, and end its wait unless it is `user`, which is running."""
        watcher.changed_paths.add(path)
        if watcher is not user and watcher in self._waiting:
            watcher.end_wait()

    def _start_checks(self, user: Watcher) -> None:
        """Start the plan checks that are due."""
        if not self._checks:
            return
        now_s = clock.monotonic()
        for path, checks in self._checks.items():
            checker = checks.next_checker(now_s, user, self._waiting)
            if checker is not None:
                self._deliver(checker, path, user)
        self._set_timer()

    def _set_timer(self) -> None:
        self._timer.set(min((checks.next_s for checks in self._checks.values()), default=math.inf))

    def checked(self, user: Watcher, plan: Plan, pause_s: float) -> None:
        """Account for a plan check of a consumer, and inform the others that have to act on the plan.

        Args:
            plan: the plan that it read or published.
            pause_s: the time until it must check again, or infinity if the regular checks are enough.
        """
        if not self.is_open:
            return
        with self._lock:
            path = self._lock_path_of.get(user)
            if path is not None:
                for other in self._checks[path].checked(user, plan, clock.monotonic() + pause_s):
                    self._deliver(other, CHECK_PLAN, user)
                self._set_timer()

    def enter(self, user: Watcher) -> bool:
        """Start the wait of a consumer; return False if it has changed paths already. `leave` must follow."""
        if not self.is_open:
            return True
        with self._lock:
            self._waiting[user] = None
            if self._listener not in self._waiting:
                self._choose(user)
            self._start_checks(user)
            return not user.changed_paths

    def leave(self, user: Watcher) -> None:
        """End the wait of a consumer."""
        if self.is_open:
            with self._lock:
                self._waiting.pop(user, None)
                if self._listener is user and self._waiting:
                    self._choose(next(iter(self._waiting)))

    def _choose(self, user: Watcher | None) -> None:
        """Make a consumer the listener."""
        if self._listener is user:
            return
        if self._listener is not None:
            self._listener.stop_listening(self._selector.fileno())
        self._listener = user
        if user is not None:
            user.listen(self._selector.fileno())

    def remove(self, user: Watcher) -> None:
        """Remove a consumer. The last one closes the instance."""
        if not self.is_open:
            return
        with self._lock:
            if user not in self._paths:
                return
            self.watch(user, set())
            self.leave(user)
            if self._listener is user:
                self._choose(None)
            del self._paths[user]
            if not self._paths:
                self._close()

    def _close(self) -> None:
        self._watch.close()
        self._timer.close()
        self._selector.close()

    def abandon(self) -> None:
        """Close the copies in a forked child, without the lock, which a thread of the parent may have held."""
        with contextlib.suppress(OSError):
            self._close()


class _CurrentWatch:
    """The shared watch for new consumers of this process."""

    lock = threading.RLock()
    watch: SharedWatch | None = None


def shared_watch(user: Watcher) -> SharedWatch:
    """The shared watch of this process. The consumer uses it until it calls `SharedWatch.remove`."""
    with _CurrentWatch.lock:
        watch = _CurrentWatch.watch
        if watch is None or not watch.add(user):
            watch = _CurrentWatch.watch = SharedWatch()
            watch.add(user)
        return watch


def _reset_in_child() -> None:
    _CurrentWatch.lock = threading.RLock()
    if _CurrentWatch.watch is not None:
        _CurrentWatch.watch.abandon()
        _CurrentWatch.watch = None


os.register_at_fork(after_in_child=_reset_in_child)
