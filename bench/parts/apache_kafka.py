# SPDX-License-Identifier: Apache-2.0
"""The work "kafka": one process sends records of 100 bytes to Apache Kafka on the same machine, and waits for all acks.

The time runs from the first send to the last ack. Before that, the client connects, gets the metadata, and sends one
record. All contenders have acks=all, idempotence, linger 5 ms and batches of 128 KiB; confluent-kafka also runs with
its default of 1 MB.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from bench.harness.question import Figure, Measurement, UnavailableError
from bench.harness.stopwatch import Elapsed, Stopwatch
from bench.parts.sending import VALUE

PARTITION_COUNT = 6
LINGER_MS = 5
BATCH_SIZE = 128 << 10

FIGURES = (
    Figure("records_per_s", "k records/s", 1e-3, "higher", "acknowledged, one process sends"),
    Figure("cpu_per_record_s", "µs CPU/record", 1e6, "lower", "of the client's processes, including a sender's"),
)

_numbers = itertools.count()


@cache
def cluster(*, has_kafkas_jvm: bool = False) -> Any:
    """Start one broker for the lifetime of this process.

    Args:
        has_kafkas_jvm: use the JVM options of kafka-server-start.sh, not those of the tests.

    Raises:
        UnavailableError: Kafka is not available.
    """
    from tests.kafka.broker import running_cluster
    from tests.kafka.distribution import KAFKAS_JVM, TEST_JVM, DistributionMissingError, ensure

    try:
        ensure()
    except DistributionMissingError as error:
        raise UnavailableError(str(error)) from None
    properties = {
        "log.retention.check.interval.ms": "1000",  # delete the files of deleted records soon
        "broker.session.timeout.ms": "3600000",  # a broker that was stopped for a while stays the leader
    }
    stack = contextlib.ExitStack()
    folder = Path(tempfile.mkdtemp(prefix="shmaccum-bench-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(stack.close)
    jvm = KAFKAS_JVM if has_kafkas_jvm else TEST_JVM
    return stack.enter_context(running_cluster(folder, properties=properties, jvm=jvm))


def new_topic() -> str:
    """Create a new topic for a round."""
    name = f"bench-{next(_numbers)}"
    cluster().create_topic(name, PARTITION_COUNT)
    return name


def produced(send: Callable[[str, bytes], object], flush: Callable[[], object], record_count: int) -> Measurement:
    """Send to a new topic. One record is sent before the measured time."""
    topic = new_topic()
    send(topic, VALUE)
    flush()
    stopwatch = Stopwatch()
    for _ in range(record_count):
        send(topic, VALUE)
    flush()
    return acknowledged(stopwatch.elapsed(), record_count)


def acknowledged(elapsed: Elapsed, record_count: int) -> Measurement:
    """Return the figures of this work."""
    return {"records_per_s": record_count / elapsed.wall_s, "cpu_per_record_s": elapsed.cpu_s / record_count}
