# SPDX-License-Identifier: Apache-2.0
"""One instance of inotify, and one timer, for all consumers of a process. A user has 128 instances by default.

::

    take     any consumer: reads all events, and puts each path into the box of every consumer that watches it
    enter    a consumer begins to wait. The first one becomes the listener: its selector has the instance and the timer.
    leave    the wait is over. Another consumer that waits becomes the listener.
    looked   a consumer has looked at the plan of its group

Rules: one selector at a time has the instance, so an event wakes the listener alone. The listener reads it, and rings
the consumers that watch its path and wait. While some consumer waits, the listener is one that waits. A listener stays
it after its wait until another consumer waits, so a consumer that is alone makes no call for that. The lock file of a
group is its bell (`bell`): its path goes into the box of one consumer, and the timer tells when the bell strikes next.

Why no event is lost: boxes, bells, waiting consumers and the listener change under one lock. A consumer whose box has a
path does not begin to wait. A selector that gets an instance with unread events is ready at once.

A forked child closes its copies, and changes no watch, timer or selector, which it shares with its parent.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import threading
from typing import Protocol, final

from shmaccum.common import clock
from shmaccum.log.consumer.bell import Bell
from shmaccum.log.consumer.timer import Timer
from shmaccum.log.files.log_watch import LogWatch
from shmaccum.log.groups.plan import Plan

TOLD = "plan"
"""Stands in the box of a consumer that is told to look at the plan. No file has this path."""


class Watcher(Protocol):
    """A consumer, as the watch sees it.

    Attributes:
        box: paths that changed and that the consumer has not taken yet.
    """

    box: set[str]

    def tell(self) -> None:
        """Ends the wait of this consumer."""

    def listen(self, descriptor: int) -> None:
        """Adds the descriptor of instance and timer to the selector."""

    def stop_listening(self, descriptor: int) -> None:
        """Takes this descriptor out of the selector."""

    def is_concerned(self, plan: Plan) -> bool:
        """True when the consumer has to act on a plan that another one has read."""


@final
class SharedWatch:
    """The instance, and the consumers that use it; see above."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a consumer that is collected as garbage goes in the middle of anything
        self._watch = LogWatch()
        self._timer = Timer()
        self._selector = selectors.EpollSelector()
        self._selector.register(self._timer.descriptor, selectors.EVENT_READ)
        if self.is_open:
            self._selector.register(self._watch.descriptor, selectors.EVENT_READ)
        else:
            self._close()
        self._bells: dict[str, Bell[Watcher]] = {}
        self._bell_of: dict[Watcher, str] = {}
        self._paths: dict[Watcher, set[str]] = {}
        self._watchers: dict[str, set[Watcher]] = {}
        self._waiting: dict[Watcher, None] = {}
        self._listener: Watcher | None = None

    @property
    def is_open(self) -> bool:
        """False where the kernel gave no instance, when the last consumer has gone, and in a forked child."""
        return self._watch.descriptor >= 0

    def add(self, user: Watcher) -> bool:
        """A consumer begins to use the instance; False when there is none."""
        with self._lock:
            if self.is_open:
                self._paths[user] = set()
            return self.is_open

    def watch(self, user: Watcher, paths: set[str], bell: str | None = None) -> bool:
        """Watches these folders and files for a consumer, and no others; False when the kernel does not watch all.

        Args:
            user: the consumer.
            paths: the folders and files.
            bell: the one of them that is the lock file of the consumer's group.
        """
        if not self.is_open:
            return not paths
        with self._lock:
            self._set_bell(user, bell)
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

    def _set_bell(self, user: Watcher, path: str | None) -> None:
        former = self._bell_of.get(user)
        if former == path:
            return
        if former is not None:
            del self._bell_of[user]
            self._bells[former].remove(user)
            if not self._bells[former].users:
                del self._bells[former]
        if path is not None:
            self._bell_of[user] = path
            self._bells.setdefault(path, Bell()).users[user] = None

    def take(self, user: Watcher) -> set[str]:
        """The paths of a consumer that changed since its last call."""
        if not self.is_open:
            return set()
        with self._lock:
            for path in self._watch.changed():
                self._distribute(path, user)
            self._strike(user)
            found, user.box = user.box, set()
            return found

    def _distribute(self, path: str, user: Watcher) -> None:
        """Something changed there."""
        if path in self._bells:
            self._bells[path].ring()
            return
        for watcher in tuple(self._watchers.get(path, ())):
            self._tell(watcher, path, user)

    def _tell(self, watcher: Watcher, path: str, user: Watcher) -> None:
        """Puts a path into the box of a consumer, and ends its wait; `user` is the one that is awake."""
        watcher.box.add(path)
        if watcher is not user and watcher in self._waiting:
            watcher.tell()

    def _strike(self, user: Watcher) -> None:
        """Strikes the bells whose time has come."""
        if not self._bells:
            return
        now_s = clock.monotonic()
        for path, bell in self._bells.items():
            hearer = bell.strike(now_s, user, self._waiting)
            if hearer is not None:
                self._tell(hearer, path, user)
        self._set_timer()

    def _set_timer(self) -> None:
        self._timer.set(min((bell.next_s for bell in self._bells.values()), default=math.inf))

    def looked(self, user: Watcher, plan: Plan, pause_s: float) -> None:
        """A consumer has looked at the plan of its group; the others that have to act on it are told.

        Args:
            user: the consumer.
            plan: the plan that it read or published.
            pause_s: the time after which it wants to look again; infinity: when its bell strikes.
        """
        if not self.is_open:
            return
        with self._lock:
            path = self._bell_of.get(user)
            if path is not None:
                for other in self._bells[path].looked(user, plan, clock.monotonic() + pause_s):
                    self._tell(other, TOLD, user)
                self._set_timer()

    def enter(self, user: Watcher) -> bool:
        """A consumer is about to wait; False when it has news already. `leave` follows in either case."""
        if not self.is_open:
            return True
        with self._lock:
            self._waiting[user] = None
            if self._listener not in self._waiting:
                self._choose(user)
            self._strike(user)
            return not user.box

    def leave(self, user: Watcher) -> None:
        """The wait of a consumer is over."""
        if self.is_open:
            with self._lock:
                self._waiting.pop(user, None)
                if self._listener is user and self._waiting:
                    self._choose(next(iter(self._waiting)))

    def _choose(self, user: Watcher | None) -> None:
        """Makes a consumer the listener."""
        if self._listener is user:
            return
        if self._listener is not None:
            self._listener.stop_listening(self._selector.fileno())
        self._listener = user
        if user is not None:
            user.listen(self._selector.fileno())

    def remove(self, user: Watcher) -> None:
        """A consumer goes. The last one closes the instance."""
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
        """A forked child lets go of its copies. It takes no lock, which a thread of the parent may have held."""
        with contextlib.suppress(OSError):
            self._close()


class _CurrentWatch:
    """The watch that new consumers of this process use."""

    lock = threading.RLock()
    watch: SharedWatch | None = None


def shared_watch(user: Watcher) -> SharedWatch:
    """The watch of this process, which a consumer uses from now on until `SharedWatch.remove`."""
    with _CurrentWatch.lock:
        watch = _CurrentWatch.watch
        if watch is None or not watch.add(user):
            watch = _CurrentWatch.watch = SharedWatch()
            watch.add(user)
        return watch


def _start_anew_in_child() -> None:
    _CurrentWatch.lock = threading.RLock()
    if _CurrentWatch.watch is not None:
        _CurrentWatch.watch.abandon()
        _CurrentWatch.watch = None


os.register_at_fork(after_in_child=_start_anew_in_child)
