# SPDX-License-Identifier: Apache-2.0
"""How many records per second pass from two producing processes to a third one that reads them all?

shmaccum's records pass through an arena of 32 MiB to a sender, which verifies every batch and delivers it to a sink
that discards it. The time runs from the producers' start to the last record's delivery. The peers move the same records
through a queue. They do not do the other work: Kafka's format, checksums, order, results for each record, surviving
kill -9.
"""

from __future__ import annotations

from collections.abc import Callable

from bench import peers
from bench.harness.question import Contender, Goal, Measurement, Question
from bench.parts.arenas import GUARANTEES, TOPIC, temporary_arena
from bench.parts.receiving import FIGURES, PRODUCER_COUNT, VALUE, Take, forked, taken
from shmaccum.producer import Producer
from shmaccum.sender import Sender
from shmaccum.sender.sinks.null import NullSink

RUN = [VALUE] * 1000
SEND = "Producer.send, sender, null:"

Work = Callable[[str, int, int], None]


def _append_many(arena_name: str, producer: int, count: int) -> None:
    with Producer(arena_name) as sending:
        for _ in range(count // len(RUN)):
            sending.append_columns(TOPIC, RUN, partition=producer)


def _send(arena_name: str, _producer: int, count: int) -> None:
    with Producer(arena_name) as producer:
        send = producer.send
        for _ in range(count):
            send(TOPIC, VALUE)


def _through_arena(work: Work, count: int) -> Callable[[], Measurement]:
    def run() -> Measurement:
        with temporary_arena() as arena, Sender(arena, NullSink(partitions=PRODUCER_COUNT)) as sender:
            sender.open()
            producers = forked(work, [(arena.name, producer, count) for producer in range(PRODUCER_COUNT)])
            return taken(producers, _take(sender), count * PRODUCER_COUNT)

    return run


def _take(sender: Sender) -> Take:
    """Run a round of the sender. Read the metrics only if the round delivered nothing, because reading them takes
    time.
    """
    seen = 0

    def take() -> tuple[int, int]:
        nonlocal seen
        batches = sender.run_once()
        if batches:
            return 0, batches
        before, seen = seen, int(sender.metrics()["record-send-total"])
        return seen - before, 0

    return take


def contenders() -> list[Contender]:
    """Return shmaccum record by record and in lists, and the queues."""
    return [
        Contender("append_many, sender, null:", _through_arena(_append_many, 6_000_000), guarantees=GUARANTEES),
        Contender(SEND, _through_arena(_send, 2_000_000), guarantees=GUARANTEES),
        *peers.of("drained"),
    ]


QUESTION = Question(
    title="records of 100 bytes from two producer processes to a third one",
    figures=FIGURES,
    contenders=contenders,
    peer="multiprocessing.Queue",
    goals=(Goal("a record from send to drained, 2 producer processes", SEND, "records_per_s", 6),),
)
