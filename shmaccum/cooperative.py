# SPDX-License-Identifier: Apache-2.0
"""Waits in a process whose threads are greenlets, because gevent or eventlet has patched the standard library.

A wait in C would stop every greenlet of the process. So each wait becomes short sleeps between looks there: the patched
`time.sleep` lets other greenlets run. A library that is imported and has not patched ``time`` and ``threading`` changes
nothing.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from shmaccum.exceptions import InvalidArgumentError

SLICE_S = 0.002
"""Between two looks for a result, a buffer or another process."""


def patched_by() -> str | None:
    """The library that turned threads into greenlets; None when threads are threads."""
    gevent: Any = sys.modules.get("gevent.monkey")
    if gevent is not None and (gevent.is_module_patched("threading") or gevent.is_module_patched("time")):
        return "gevent"
    eventlet: Any = sys.modules.get("eventlet.patcher")
    if eventlet is not None and (eventlet.is_monkey_patched("thread") or eventlet.is_monkey_patched("time")):
        return "eventlet"
    return None


def refuse_greenlets(what: str, advice: str) -> None:
    """Refuses an object whose waits are in C.

    Raises:
        InvalidArgumentError: gevent or eventlet has patched this process.
    """
    library = patched_by()
    if library is not None:
        raise InvalidArgumentError(
            f"{what} would stop every greenlet of a process that {library} has patched: {advice}"
        )


def sleep(timeout_s: float) -> None:
    """One pause between two looks."""
    time.sleep(min(SLICE_S, max(timeout_s, 0)))
