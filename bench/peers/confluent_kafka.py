# SPDX-License-Identifier: Apache-2.0
"""confluent-kafka (librdkafka). It has no broker to talk to here: `produce` only queues, which can be compared.

Its queue is emptied between rounds. Nothing its documentation recommends for throughput (linger.ms, batch.size,
compression) acts on queueing; the queue is made large enough for a round, so that it never says it is full.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.harness.question import Contender, Measurement
from bench.sending import RECORD_COUNT, send_keyed, send_plain

OPTIONS = {"bootstrap.servers": "127.0.0.1:1", "queue.buffering.max.messages": RECORD_COUNT + 1, "log_level": 0}


def _version() -> str:
    import confluent_kafka

    return f"confluent-kafka {confluent_kafka.__version__}, librdkafka {confluent_kafka.libversion()[0]}"


def _produce(work: Callable[[Callable[..., Any]], Measurement]) -> Callable[[], Measurement]:
    def run() -> Measurement:
        import confluent_kafka

        producer = confluent_kafka.Producer(OPTIONS)
        measured = work(producer.produce)
        producer.purge()
        producer.flush(0)
        return measured

    return run


def _send() -> list[Contender]:
    return [
        Contender("confluent-kafka produce, no key", _produce(send_plain), version=_version),
        Contender("confluent-kafka produce, key", _produce(send_keyed), version=_version),
    ]


WORKS = {"send": _send}
