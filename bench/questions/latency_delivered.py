# SPDX-License-Identifier: Apache-2.0
"""How long after its send is a record at the sink, in another process?

A process sends a record of 100 bytes a millisecond, with ``linger_ms=0``; the sender hands each batch to a sink that
looks at the clock. In the middle of traffic the sender naps for a millisecond at a time (docs/decisions/0020), which
is most of what is seen here; with a pause of 20 ms between two records it sleeps, and each of them wakes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench import peers
from bench.harness.pacing import GAP_S, PADDING, RECORD_COUNT, SENT_AT, age_ns, send_paced
from bench.harness.percentiles import FIGURES, percentiles
from bench.harness.question import Contender, Measurement, Question
from bench.parts.arenas import GUARANTEES, TOPIC, temporary_arena
from bench.parts.taking import forked
from shmaccum.producer import Producer
from shmaccum.sender import Sender
from shmaccum.sender.sinks.null import NullSink
from shmaccum.sender.sinks.sink import Ack, WireBatch

RECORD_SIZE = SENT_AT.size + len(PADDING)
RARE_RECORD_COUNT, RARE_GAP_S = 50, 0.02
TRAILER_SIZE = 1
"""A record ends with its value and the number of its headers: none."""


class ClockSink(NullSink):
    """Notes how old the last record of each batch is; paced, with no linger, a batch has one."""

    def __init__(self) -> None:
        super().__init__()
        self.ages_ns: list[int] = []

    def write(self, batches: Sequence[WireBatch]) -> Sequence[Ack]:
        """Looks at the clock, and takes everything."""
        for wire in batches:
            self.ages_ns.append(age_ns(wire.buffers[-1][-RECORD_SIZE - TRAILER_SIZE :]))
        return super().write(batches)


def _send(arena_name: str, record_count: int, gap_s: float) -> None:
    with Producer(arena_name, linger_ms=0) as producer:
        send_paced(lambda value: producer.send(TOPIC, value), record_count, gap_s)


def _run(record_count: int, gap_s: float) -> Callable[[], Measurement]:
    def run() -> Measurement:
        sink = ClockSink()
        with temporary_arena() as arena, Sender(arena, sink, linger_ms=0) as sender:
            sender.open()
            (producer,) = forked(_send, [(arena.name, record_count, gap_s)])
            producer.start()
            while producer.is_alive() or sender.metrics()["record-send-total"] < record_count:
                sender.run_once()
            producer.join()
        return percentiles(sink.ages_ns)

    return run


def contenders() -> list[Contender]:
    """Every millisecond, rarely, and the peers every millisecond."""
    return [
        Contender("shmaccum, a record a millisecond", _run(RECORD_COUNT, GAP_S), guarantees=GUARANTEES),
        Contender("shmaccum, a record in 20 ms", _run(RARE_RECORD_COUNT, RARE_GAP_S), guarantees=GUARANTEES),
        *peers.of("latency"),
    ]


QUESTION = Question(
    title="from a send to the arrival in another process, 100 B, linger 0",
    figures=FIGURES,
    contenders=contenders,
    peer="multiprocessing.Queue",
)
