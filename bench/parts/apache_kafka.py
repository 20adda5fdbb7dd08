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
from collections.abc import Callable, Sequence
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


PROPERTIES = {
    "log.retention.check.interval.ms": "1000",  # delete the files of deleted records soon
    "broker.session.timeout.ms": "3600000",  # a broker that was stopped for a while stays the leader
}


@cache
def cluster(*, has_kafkas_jvm: bool = False) -> Any:
    """Start one broker for the lifetime of this process.

    Args:
        has_kafkas_jvm: use the JVM options of kafka-server-start.sh, not those of the tests.

    Raises:
        UnavailableError: Kafka is not available.
    """
    folder = _new_folder()
    from tests.kafka.broker import running_cluster
    from tests.kafka.distribution import KAFKAS_JVM, TEST_JVM

    return _entered(running_cluster(folder, properties=PROPERTIES, jvm=KAFKAS_JVM if has_kafkas_jvm else TEST_JVM))


@cache
def secure_cluster() -> Any:
    """Start one broker that also has a listener with TLS and logins, for the lifetime of this process.

    Raises:
        UnavailableError: Kafka is not available.
    """
    folder = _new_folder()
    from tests.kafka.distribution import TEST_JVM
    from tests.kafka.secure_cluster import secure_cluster as running_secure_cluster

    return _entered(running_secure_cluster(folder, properties=PROPERTIES, jvm=TEST_JVM))


def _new_folder() -> Path:
    """Make a folder that is removed when this process ends, after its brokers have ended."""
    from tests.kafka.distribution import DistributionMissingError, ensure

    try:
        ensure()
    except DistributionMissingError as error:
        raise UnavailableError(str(error)) from None
    folder = Path(tempfile.mkdtemp(prefix="shmaccum-bench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _entered(broker: contextlib.AbstractContextManager[Any]) -> Any:
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(broker)


def new_topic(broker: Any = None) -> str:
    """Create a new topic for a round, in `cluster` or in another one."""
    name = f"bench-{next(_numbers)}"
    (broker or cluster()).create_topic(name, PARTITION_COUNT)
    return name


def produced(
    send: Callable[[str, bytes], object],
    flush: Callable[[], object],
    record_count: int,
    topic: str | None = None,
    values: Sequence[bytes] = (VALUE,),
) -> Measurement:
    """Send values in turn to a topic, or to a new one. One record is sent before the measured time."""
    topic = topic or new_topic()
    send(topic, values[0])
    flush()
    stopwatch = Stopwatch()
    for value in itertools.islice(itertools.cycle(values), record_count):
        send(topic, value)
    flush()
    return acknowledged(stopwatch.elapsed(), record_count)


def acknowledged(elapsed: Elapsed, record_count: int) -> Measurement:
    """Return the figures of this work."""
    return {"records_per_s": record_count / elapsed.wall_s, "cpu_per_record_s": elapsed.cpu_s / record_count}
