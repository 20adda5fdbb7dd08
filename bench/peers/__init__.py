# SPDX-License-Identifier: Apache-2.0
"""Products that do the same work or a part of it, each configured as its documentation recommends for throughput.

Each module is one product. Its ``WORKS`` maps the name of a workload to a function that returns its contenders. A
workload is the same for all products, with records of 100 bytes:

=========  =========================================================================================================
send       one process queues 400,000 records one by one, another reads them: ``ns_per_record``, ``cpu_ns_per_record``
send_many  the same in calls of 10,000, or of the size that is recommended: ``records_per_s``, ``cpu_ns``
drained    two processes send, a third one reads: ``records_per_s``, ``cpu_per_record_s`` of all three
append     single appends in a compiled language while a consumer reads: ``records_per_s``
kafka      one process sends to Apache Kafka until all records are acknowledged: ``records_per_s``, ``cpu_per_record_s``
latency    from a paced send until another process has it: ``p50_ns``, ``p99_ns``, ``p999_ns``
echo       a record at a time to another process and back through a second queue: the same figures
=========  =========================================================================================================
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

from bench.harness.question import Contender

Works = dict[str, Callable[[], list[Contender]]]


def of(work: str) -> list[Contender]:
    """Return all contenders of a workload, in the order of the products' names."""
    modules = (importlib.import_module(f"{__name__}.{name}") for name in sorted(_names()))
    return [contender for module in modules if work in module.WORKS for contender in module.WORKS[work]()]


def _names() -> list[str]:
    return [module.name for module in pkgutil.iter_modules(__path__)]
