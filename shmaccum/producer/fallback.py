# SPDX-License-Identifier: Apache-2.0
"""The fallback: if its arena becomes unusable, a process sends through another object (``on_unusable``).

::

    send ── the arena is poisoned, removed, or its memory is lost ──> on_unusable() ──> an object ──> its send
                                                                      once per process

The function is called outside every lock of the arena and of the producer. If several threads fail at the same time,
one of them calls it, and the others wait for its result. If the function itself sends a record that fails, this send
raises the error, as without the option. A forked child calls the function again, because it must not use the
connections of its parent.

The switch is permanent. If the arena becomes usable again, attach to it with a new producer.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, final

from shmaccum.arena import Arena
from shmaccum.common.background import listed
from shmaccum.exceptions import (
    ArenaPoisonedError,
    ArenaRemovedError,
    CorruptArenaError,
    InvalidArgumentError,
    ShmaccumError,
)

logger = logging.getLogger(__name__)

UNUSABLE = (ArenaPoisonedError, ArenaRemovedError, CorruptArenaError)
"""The exceptions of an arena that accepts no more records of this process."""

OnUnusable: TypeAlias = Callable[[], Any]
Answer = TypeVar("Answer")


@final
class Fallback:
    """Calls the function once, and stores its result.

    Args:
        make: the function.
        methods: the methods that its object must have.
        arena: the arena. The entry of this process in it shows that records go elsewhere.

    Raises:
        InvalidArgumentError: the function is not callable, or the arena has transactions.
    """

    def __init__(self, make: OnUnusable, methods: tuple[str, ...], arena: Arena) -> None:
        if not callable(make):
            raise InvalidArgumentError(
                f"on_unusable must be a function without arguments that returns an object with {_listed(methods)}, or "
                f"None; not {make!r}"
            )
        if arena.transactional_id is not None:
            raise InvalidArgumentError(
                f"on_unusable cannot be used with transactions, because those of {arena.name} end with the arena. Omit "
                "it, and abort the transaction if the arena becomes unusable"
            )
        self._make = make
        self._methods = methods
        self._arena = arena
        self.reset()
        _fallbacks.add(self)

    def reset(self) -> None:
        """Resets the state. A forked child calls it first."""
        self._lock = threading.RLock()  # a signal handler may send
        self._is_called = self._is_over = False
        self._reason = ""
        self._cause: BaseException | None = None
        self.record_count = 0
        """The number of records that went through the object."""
        self.target: Any = None
        """The object, or None if the function was not called or returned None."""

    def send(self, error: Exception, call: Callable[[Any], Answer], record_count: int = 1) -> Answer:
        """Passes records to the object, and returns its result.

        Raises:
            Exception: `error` is raised again if its cause is not the arena, if there is no object, or inside a call of
                the function. If the function failed, an error of the same type names the cause. The object may raise,
                too.
        """
        if not isinstance(error, UNUSABLE):
            raise error
        target = self._target(error)
        answer = call(target)
        self.record_count += record_count
        return answer

    def _target(self, error: Exception) -> Any:
        if not self._is_over:
            with self._lock:
                if not self._is_called:
                    self._is_called = True
                    try:
                        self._call(error)
                    finally:
                        self._is_over = True
        if self.target is None:
            raise type(error)(f"{error}. {self._reason}") from self._cause if self._reason else error
        return self.target

    def _call(self, error: Exception) -> None:
        try:
            target = self._make()
        except Exception as cause:  # noqa: BLE001 - of the user's function
            self._cause = cause.with_traceback(None)  # a traceback would keep the frames of this call alive
            self._reason = f"on_unusable ({self._make!r}) raised {type(cause).__name__}: {cause}"
        else:
            missing = [name for name in self._methods if not callable(getattr(target, name, None))]
            if target is not None and missing:
                self._reason = f"on_unusable ({self._make!r}) returned {target!r}, which has no {_listed(missing)}"
            elif target is not None:
                self.target = target
        reason = f" ({self._reason})" if self._reason else ""
        where = "raise this error" if self.target is None else f"go to {self.target!r}"
        logger.error("%s: %s. Further records of this process %s%s", self._arena.name, error, where, reason)
        if self.target is not None:
            with contextlib.suppress(ShmaccumError):  # an unreadable arena cannot show it
                self._arena.native.show_fallback()

    def call(self, name: str, *arguments: Any) -> Any:
        """Calls a method of the object, such as ``flush``, if there is an object and it has the method."""
        method = getattr(self.target, name, None)
        return method(*arguments) if callable(method) else None


def _listed(names: tuple[str, ...] | list[str]) -> str:
    return " and ".join(f"{name}()" for name in names)


_fallbacks: weakref.WeakSet[Fallback] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for fallback in listed(_fallbacks):
        fallback.reset()


os.register_at_fork(after_in_child=_after_fork_in_child)
