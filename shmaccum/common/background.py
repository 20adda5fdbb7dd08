# SPDX-License-Identifier: Apache-2.0
"""Rules for code that runs beside a program: in threads, finalizers, signal handlers and event loops.

* A finalizer, ``__del__``, a weak reference's callback, a hook of fork and a method that a signal handler may call take
  no lock that the interrupted code can hold. They put an item into a `SimpleQueue`, change one list or set by a method
  of C, or set a flag. A thread or the next ordinary call does the work.
* A call that is entered again by the same thread works, or raises before it changes anything.
* A thread survives every exception of code that is not ours, also SystemExit, and reports it. A thread that ends all
  the same is replaced by the next call that needs it, once in `RETRY_S` at most, and never while Python ends.
* A thread is stored after it has started, so that a start that fails is tried again.
* A wait takes the time that is left of its caller's timeout. The end of a process has one deadline for all producers.

===================  =========================  ========================================================================
thread               ends with                  what wakes or stops it
===================  =========================  ========================================================================
shmaccum-delivery    two idle seconds, close    an item in its queue; it calls callbacks (`shmaccum.producer.delivery`)
shmaccum-supervisor     the last producer's close  a byte on its socket (`shmaccum.supervisor.supervisor`)
shmaccum-flusher     the arena's close          an item in its queue (`shmaccum.arena.flusher`)
shmaccum-closing     the last call in the       nothing: it looks (`shmaccum.producer.producer`)
                     producer that was closed
shmaccum-server      the sink's close           a byte on its FIFO (`shmaccum.log.server.server_thread`)
workers of servers   the server's, the sink's   an item in their queues (``concurrent.futures``)
and compression      close
shmaccum-resolve     one look-up of a name      nothing
metrics              the sender's close         its socket (`shmaccum.observe.server`)
shmaccum-staging     the end of a Spark task    the doorbell (`shmaccum.spark.staged_task`)
===================  =========================  ========================================================================

===========================  =========================================================================================
lock                         why a finalizer or handler never waits for it
===========================  =========================================================================================
``arena.file._opening``      reentrant; held while descriptors are opened, and by fork
``arena.doorbell`` (sender)  reentrant; held for one write, which does not block
``logging`` drops            reentrant; held for additions
``consumer.shared_watch``    finalizers leave their part to the next call (`shmaccum.log.consumer.change_waiter.forget`)
``groups.shared_offsets``    the same
seat of a delivery thread    only tried, never waited for
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
"""The pause of a thread after an exception that it did not expect."""

Item = TypeVar("Item")


def log_exception(logger: logging.Logger, sentence: str, *arguments: object) -> None:
    """Logs the exception that is being handled. A handler of the program that raises, whatever it is, is ignored."""
    with contextlib.suppress(BaseException):
        logger.error(sentence, *arguments, exc_info=True)  # noqa: LOG014 - the caller handles it


def started_thread(run: Callable[[], object], name: str, logger: logging.Logger) -> threading.Thread | None:
    """A daemon thread that has started; None, with a warning, when the system has none or Python ends."""
    if sys.is_finalizing():
        return None
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        with contextlib.suppress(BaseException):
            logger.warning("the thread %s could not start, which is tried again: %s", name, error)
        return None
    return thread


def listed(living: Iterable[Item]) -> list[Item]:
    """The items of a weak set, which another thread may change meanwhile."""
    while True:
        try:
            return list(living)
        except RuntimeError:  # noqa: PERF203 - its size changed
            continue
