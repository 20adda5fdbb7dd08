# SPDX-License-Identifier: Apache-2.0
"""Waits in a process whose threads are greenlets, because gevent or eventlet has patched the standard library.

A wait in C would block every greenlet of the process. So each wait for a result or a buffer polls with the patched
`time.sleep`, which lets other greenlets run. A wait for the disk runs in the library's own pool of threads. A library
that is imported and has patched neither ``time`` nor ``threading`` changes nothing.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from shmaccum.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    from shmaccum import _native

Answer = TypeVar("Answer")

SLICE_S = 0.005
"""The polling interval for a result, a buffer or another process."""


def patched_by() -> str | None:
    """Returns the library that replaced threads with greenlets, or None."""
    gevent: Any = sys.modules.get("gevent.monkey")
    if gevent is not None and (gevent.is_module_patched("threading") or gevent.is_module_patched("time")):
        return "gevent"
    eventlet: Any = sys.modules.get("eventlet.patcher")
    if eventlet is not None and (eventlet.is_monkey_patched("thread") or eventlet.is_monkey_patched("time")):
        return "eventlet"
    return None


def refuse_greenlets(what: str, advice: str) -> None:
    """Rejects an object whose waits are in C.

    Raises:
        InvalidArgumentError: gevent or eventlet has patched this process.
    """
    library = patched_by()
    if library is not None:
        raise InvalidArgumentError(
            f"{what} would block every greenlet of a process that {library} has patched: {advice}"
        )


def sleep(timeout_s: float) -> None:
    """Pauses once between two checks."""
    time.sleep(min(SLICE_S, max(timeout_s, 0)))


def wait_completion(native: _native.Arena, tail: int, timeout_ns: int) -> int:
    """Waits until the number of results is not `tail`, and returns the number."""
    if patched_by() is None:
        return native.wait_completion(tail, timeout_ns)
    if native.completion_tail == tail:
        sleep(timeout_ns / 1e9)
    return native.completion_tail


def wait_transaction(native: _native.Arena, word: int, timeout_ns: int) -> int:
    """Waits until the word of the transaction is not `word`, and returns it."""
    if patched_by() is None:
        return native.wait_transaction(word, timeout_ns)
    if native.transaction_word == word:
        sleep(timeout_ns / 1e9)
    return native.transaction_word


def call(function: Callable[..., Answer], *arguments: Any) -> Answer:
    """Calls a function that waits for the disk. If threads are greenlets, it runs in a thread of the system."""
    library = patched_by()
    if library is None:
        return function(*arguments)
    answer: Answer
    if library == "gevent":
        answer = sys.modules["gevent"].get_hub().threadpool.apply(function, arguments)
    else:
        answer = importlib.import_module("eventlet.tpool").execute(function, *arguments)
    return answer
