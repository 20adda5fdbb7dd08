# SPDX-License-Identifier: Apache-2.0
"""How long does it take from a send until a consumer in another process has the record?

One process sends a record of 100 bytes each millisecond with ``linger_ms=0``. A second one is the sender and writes the
log. A third one consumes it without a server and without a socket.
"""

from __future__ import annotations

from pathlib import Path

from bench import peers
from bench.harness.pacing import GAP_S, RECORD_COUNT, age_ns, send_paced
from bench.harness.percentiles import FIGURES, percentiles
from bench.harness.question import Contender, Goal, Measurement, Question
from bench.parts.arenas import GUARANTEES, TOPIC, temporary_arena
from bench.parts.receiving import forked
from bench.parts.segments import create_log, tmpfs_folder
from shmaccum.log.consumer import Consumer
from shmaccum.producer import Producer
from shmaccum.sender import Sender

OURS = "shmaccum, from the send to the poll"


def _deliver(arena_name: str, folder: Path) -> None:
    with Sender(arena_name, f"log:{folder}", linger_ms=0) as sender:
        sender.run()


def _send(arena_name: str) -> None:
    with Producer(arena_name, linger_ms=0) as producer:
        send_paced(lambda value: producer.send(TOPIC, value), RECORD_COUNT, GAP_S)


def _run() -> Measurement:
    ages_ns: list[int] = []
    with temporary_arena() as arena, tmpfs_folder() as folder:
        create_log(folder, TOPIC)
        (sender,) = forked(_deliver, [(arena.name, folder)])
        (producer,) = forked(_send, [(arena.name,)])
        with Consumer(folder, TOPIC, auto_offset_reset="earliest") as consumer:
            sender.start()
            producer.start()
            while len(ages_ns) < RECORD_COUNT:
                for records in consumer.poll(1000).values():
                    ages_ns += [age_ns(record.value) for record in records]
        producer.join()
        sender.terminate()
        sender.join()
    return percentiles(ages_ns)


def contenders() -> list[Contender]:
    """Return shmaccum through arena and log, and the peers through memory."""
    return [Contender(OURS, _run, guarantees=GUARANTEES), *peers.of("latency")]


QUESTION = Question(
    title="from a send to the poll of a consumer in another process, 100 B, linger 0",
    figures=FIGURES,
    contenders=contenders,
    peer="multiprocessing.Queue",
    goals=(
        Goal("from the append to a consumer in another process, p50", OURS, "p50_ns", 1000),
        Goal("the same, of a ``multiprocessing.Queue``", OURS, "p50_ns", 1.5, is_ratio=True),
    ),
    reason=(
        "A record wakes two processes, first the sender and then the consumer, and is written to a file in between. "
        "The peers wake one process. Here, three processes share two cores."
    ),
)
