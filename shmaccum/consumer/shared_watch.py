# SPDX-License-Identifier: Apache-2.0
"""One instance of inotify for all consumers of a process. A user has 128 instances by default.

::

    take     any consumer: reads all events, and puts each path into the box of every consumer that watches it
    enter    a consumer begins to wait. The first one becomes the listener: its selector has the instance.
    leave    the wait is over. Another consumer that waits becomes the listener.

Rules: one selector at a time has the instance, so an event wakes the listener alone. The listener reads it, and rings
the consumers that watch its path and wait. While some consumer waits, the listener is one that waits. A listener stays
it after its wait until another consumer waits, so a consumer that is alone makes no call for that.

Why no event is lost: boxes, waiting consumers and the listener change under one lock. A consumer whose box has a path
does not begin to wait. A selector that gets an instance with unread events is ready at once.

A forked child closes its copy of the instance, and changes no watch or selector, which it shares with its parent.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Protocol, final

from shmaccum.segment_log.log_watch import LogWatch


class Watcher(Protocol):
    """A consumer, as the watch sees it.

    Attributes:
        box: paths that changed and that the consumer has not taken yet.
    """

    box: set[str]

    def tell(self) -> None:
        """Ends the wait of this consumer."""

    def listen(self, descriptor: int) -> None:
        """Adds the instance to the selector."""

    def stop_listening(self, descriptor: int) -> None:
        """Takes the instance out of the selector."""


@final
class SharedWatch:
    """The instance, and the consumers that use it; see above."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a consumer that is collected as garbage goes in the middle of anything
        self._watch = LogWatch()
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

    def watch(self, user: Watcher, paths: set[str]) -> bool:
        """Watches these folders and files for a consumer, and no others; False when the kernel does not watch all."""
        if not self.is_open:
            return not paths
        with self._lock:
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

    def take(self, user: Watcher) -> set[str]:
        """The paths of a consumer that changed since its last call."""
        if not self.is_open:
            return set()
        with self._lock:
            for path in self._watch.changed():
                for watcher in tuple(self._watchers.get(path, ())):
                    watcher.box.add(path)
                    if watcher is not user and watcher in self._waiting:
                        watcher.tell()
            found, user.box = user.box, set()
            return found

    def enter(self, user: Watcher) -> bool:
        """A consumer is about to wait; False when it has news already. `leave` follows in either case."""
        if not self.is_open:
            return True
        with self._lock:
            self._waiting[user] = None
            if self._listener not in self._waiting:
                self._choose(user)
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
            self._listener.stop_listening(self._watch.descriptor)
        self._listener = user
        if user is not None:
            user.listen(self._watch.descriptor)

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
                self._watch.close()

    def abandon(self) -> None:
        """A forked child lets go of its copy. It takes no lock, which a thread of the parent may have held."""
        with contextlib.suppress(OSError):
            self._watch.close()


class _Current:
    """The watch that new consumers of this process use."""

    lock = threading.RLock()
    watch: SharedWatch | None = None


def shared_watch(user: Watcher) -> SharedWatch:
    """The watch of this process, which a consumer uses from now on until `SharedWatch.remove`."""
    with _Current.lock:
        watch = _Current.watch
        if watch is None or not watch.add(user):
            watch = _Current.watch = SharedWatch()
            watch.add(user)
        return watch


def _start_anew_in_child() -> None:
    _Current.lock = threading.RLock()
    if _Current.watch is not None:
        _Current.watch.abandon()
        _Current.watch = None


os.register_at_fork(after_in_child=_start_anew_in_child)
