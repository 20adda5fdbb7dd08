# SPDX-License-Identifier: Apache-2.0
"""Rules for code that runs beside a program: in threads, finalizers, signal handlers and event loops.

* A finalizer, ``__del__``, a weak reference's callback, a hook of fork and a method that a signal handler may call take
  no lock that the interrupted code can hold. They put an item into a `SimpleQueue`, change one list or set by a method
  in C, or set a flag. A thread or the next ordinary call does the work.
* A reentrant call works, or raises before it changes anything.
* A thread survives every exception of user code, including SystemExit, and reports it. A thread that ends nevertheless
  is replaced by the next call that needs it, at most once in `RETRY_S`, and never while Python ends.
* A thread is stored after it has started, so that a failed start is retried.
* A wait uses the time that is left of its caller's timeout. The end of a process has one deadline for all producers.

===================  =========================  ========================================================================
thread               ends with                  what wakes or stops it
===================  =========================  ========================================================================
shmaccum-delivery    two idle seconds, close    an item in its queue; it calls callbacks (`shmaccum.producer.delivery`)
shmaccum-supervisor     the last producer's close  a byte on its socket (`shmaccum.supervisor.supervisor`)
shmaccum-flusher     the arena's close          an item in its queue (`shmaccum.arena.flusher`)
shmaccum-closing     the last call in the       nothing: it polls (`shmaccum.producer.producer`)
                     producer that was closed
shmaccum-server      the sink's close           a byte on its FIFO (`shmaccum.log.server.server_thread`)
workers of servers   the server's, the sink's   an item in their queues (``concurrent.futures``)
and compression      close
shmaccum-resolve     one look-up of a name      nothing
shmaccum-tokens      the sink's close           an event (`shmaccum.sender.sinks.kafka.library.tokens`)
metrics              the sender's close         its socket (`shmaccum.observe.server`)
shmaccum-staging     the end of a Spark task    the wake FIFO (`shmaccum.spark.staged_task`)
===================  =========================  ========================================================================

===========================  =========================================================================================
lock                         why a finalizer or handler never waits for it
===========================  =========================================================================================
``arena.file._opening``      reentrant; held while descriptors are opened, and by fork
``arena.wake_fifo`` (sender) reentrant; held for one write, which does not block
``logging`` drops            reentrant; held for additions
``consumer.shared_watch``    finalizers leave their part to the next call (`shmaccum.log.consumer.change_waiter.forget`)
``groups.shared_offsets``    the same
run lock of a delivery       only tried, without waiting
thread
===========================  =========================================================================================
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

RETRY_S = 1.0
"""The pause of a thread after an unexpected exception."""

Item = TypeVar("Item")


def log_exception(logger: logging.Logger, sentence: str, *arguments: object) -> None:
    """Logs the exception that is being handled. Exceptions of the program's logging handlers are ignored."""
    with contextlib.suppress(BaseException):
        logger.error(sentence, *arguments, exc_info=True)  # noqa: LOG014 - the caller handles it


def started_thread(run: Callable[[], object], name: str, logger: logging.Logger) -> threading.Thread | None:
    """Starts a daemon thread. Returns None while Python ends, and, with a warning, if the system has no thread."""
    if sys.is_finalizing():
        return None
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        with contextlib.suppress(BaseException):
            logger.warning("the thread %s could not start and will be retried: %s", name, error)
        return None
    return thread


def listed(living: Iterable[Item]) -> list[Item]:
    """Returns the items of a weak set, which another thread may change meanwhile."""
    while True:
        try:
            return list(living)
        except RuntimeError:  # noqa: PERF203 - its size changed
            continue
