# SPDX-License-Identifier: Apache-2.0
"""How many records per second does one process append in calls of many, while another process drains them?"""

from __future__ import annotations

import os
from collections.abc import Callable

from bench import peers
from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.harness.stopwatch import Stopwatch
from bench.parts.arenas import GUARANTEES, TOPIC, drained_arena
from shmaccum.producer import Producer
from shmaccum.producer.deliveries import Deliveries

CALL_COUNT = 200
RECORD_COUNT = 10_000
VALUE_SIZE = 100
PARTITION_COUNT = 8
KEY_COUNT = 1000
ARENA = {"buffer_memory": "64MiB", "batch_size": "64KiB"}
COPY_COUNT = 32
"""The number of places to which the floor copies in turn. They are as large as an arena, so they do not fit into the
caches.
"""

SEND_MANY, ARROW, FLOOR = "send_many", "append_arrow", "memcpy of the values"

Call = Callable[[Producer], Deliveries]


def _measured(work: Callable[[], object]) -> Measurement:
    stopwatch = Stopwatch()
    for _ in range(CALL_COUNT):
        work()
    elapsed = stopwatch.elapsed()
    count = CALL_COUNT * RECORD_COUNT
    return {"records_per_s": count / elapsed.wall_s, "cpu_ns": elapsed.cpu_s * 1e9 / count}


def _append(call: Call) -> Callable[[], Measurement]:
    def run() -> Measurement:
        with drained_arena(PARTITION_COUNT, **ARENA) as arena, Producer(arena) as producer:
            return _measured(lambda: call(producer))

    return run


def _copy(source: bytes) -> Measurement:
    target = memoryview(bytearray(COPY_COUNT * len(source)))
    places = iter([number * len(source) for number in range(COPY_COUNT)] * (CALL_COUNT // COPY_COUNT + 1))

    def copy() -> None:
        start = next(places)
        target[start : start + len(source)] = source

    return _measured(copy)


def contenders() -> list[Contender]:
    """Return the ways to send many records, and the floor of copying their bytes."""
    import pyarrow as pa

    values = [os.urandom(VALUE_SIZE) for _ in range(RECORD_COUNT)]
    keys = [b"key-%d" % (number * 7919 % KEY_COUNT) for number in range(RECORD_COUNT)]
    plain = pa.record_batch({"value": values})
    keyed = pa.record_batch({"key": keys, "value": values})
    source = b"".join(values)
    return [
        Contender(SEND_MANY, _append(lambda producer: producer.send_many(TOPIC, values)), guarantees=GUARANTEES),
        Contender(
            f"{SEND_MANY}, keys",
            _append(lambda producer: producer.send_many(TOPIC, values, keys=keys)),
            guarantees=GUARANTEES,
        ),
        Contender(ARROW, _append(lambda producer: producer.append_arrow(plain, topic=TOPIC)), guarantees=GUARANTEES),
        Contender(
            f"{ARROW}, keys", _append(lambda producer: producer.append_arrow(keyed, topic=TOPIC)), guarantees=GUARANTEES
        ),
        Contender(FLOOR, lambda: _copy(source)),
        *peers.of("send_many"),
    ]


QUESTION = Question(
    title="records of 100 B in calls of 10,000, one producer, while another process drains",
    figures=(
        Figure("records_per_s", "M records/s", 1e-6, "higher"),
        Figure("cpu_ns", "ns", 1, "lower", "processor time of the producer, per record"),
    ),
    contenders=contenders,
    peer=FLOOR,
    goals=(
        Goal("``send_many``, 100 B", SEND_MANY, "records_per_s", 15),
        Goal("``append_arrow``, 100 B", ARROW, "records_per_s", 15),
        Goal("``send_many``, of a ``memcpy`` of the values", SEND_MANY, "records_per_s", 0.3, is_ratio=True),
        Goal("``append_arrow``, of a ``memcpy`` of the values", ARROW, "records_per_s", 0.3, is_ratio=True),
    ),
    reason=(
        "The peer copies the values. ``send_many`` takes 464 instructions for a record; its encoding and "
        "checksum alone take 258 (``instructions``)."
    ),
)
