# SPDX-License-Identifier: Apache-2.0
"""Products that do the same work, or a part of it; each set up as its own documentation recommends for throughput.

A module is one product and has ``WORKS``: by name of the work, what makes its contenders. A work is the same for
everybody, records of 100 bytes, so that any question can ask for all that do it:

=========  =========================================================================================================
send       one process queues 400,000 records one by one, somebody takes them: ``ns_per_record``, ``cpu_ns_per_record``
send_many  the same in calls of 10,000, or of what the product recommends: ``records_per_s``, ``cpu_ns``
drained    two processes to a third that takes them all: ``records_per_s``, ``cpu_per_record_s`` of all three
append     one append after the other from a compiled language, a consumer beside it: ``records_per_s``
kafka      one process sends to Apache Kafka until all is acknowledged: ``records_per_s``, ``cpu_per_record_s``
latency    from a send to the moment another process has the record, paced: ``p50_ns``, ``p99_ns``, ``p999_ns``
=========  =========================================================================================================
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

from bench.harness.question import Contender

Works = dict[str, Callable[[], list[Contender]]]


def of(work: str) -> list[Contender]:
    """Everybody who does it, in the order of the products' names."""
    modules = (importlib.import_module(f"{__name__}.{name}") for name in sorted(_names()))
    return [contender for module in modules if work in module.WORKS for contender in module.WORKS[work]()]


def _names() -> list[str]:
    return [module.name for module in pkgutil.iter_modules(__path__)]
