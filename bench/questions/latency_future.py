# SPDX-License-Identifier: Apache-2.0
"""How long does it take from a send until its future has a result?

The program repeats ``send(...).get()`` with ``linger_ms=0``. shmaccum and confluent-kafka send to the same mock broker
in another process. shmaccum's sender is a third process.

The other contenders use shorter ways, and are not compared with the ways to the broker. shmaccum delivers to ``null:``,
so a record passes between two processes in both directions, and its floor is a byte in each direction through two
pipes. The queues have the same floor; they return the record through a second queue. confluent-kafka also sends to a
mock broker in its own process. The peer of that contender is confluent-kafka with the mock broker in another
process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

from bench import peers
from bench.harness.percentiles import FIGURES, percentiles
from bench.harness.question import Contender, Goal, Measurement, Question
from bench.parts.arenas import TOPIC, temporary_arena
from bench.parts.mock_cluster import mock_cluster
from bench.parts.receiving import forked
from bench.parts.sending import VALUE
from shmaccum.producer import Producer
from shmaccum.sender import Sender

COUNT = 500
CONFLUENT_COUNT = 300
PIPES = "floor: a byte there and back through pipes"
TO_MOCK, PEER_TO_MOCK = "Producer.send(...).get(), mock broker beside", "confluent-kafka, mock broker beside"


def _timed(work: Callable[[], object], count: int) -> Measurement:
    latencies_ns = []
    for _ in range(count):
        begin_ns = time.perf_counter_ns()
        work()
        latencies_ns.append(time.perf_counter_ns() - begin_ns)
    return percentiles(latencies_ns)


def _serve(arena_name: str, sink: str) -> None:
    with Sender(arena_name, sink, linger_ms=0) as sender:
        sender.run()


def _future(sink: str) -> Measurement:
    with temporary_arena() as arena:
        (sender,) = forked(_serve, [(arena.name, sink)])
        sender.start()
        try:
            with Producer(arena, linger_ms=0) as producer:
                producer.send(TOPIC, VALUE).get(30)
                return _timed(lambda: producer.send(TOPIC, VALUE).get(30), COUNT)
        finally:
            sender.kill()
            sender.join()


def _echo(there: int, back: int) -> None:
    while os.read(there, 1):
        os.write(back, b"!")


def _pipes() -> Measurement:
    there_read, there_write = os.pipe()
    back_read, back_write = os.pipe()
    (echo,) = forked(_echo, [(there_read, back_write)])
    echo.start()
    try:
        return _timed(lambda: os.write(there_write, b"!") and os.read(back_read, 1), COUNT)
    finally:
        echo.kill()
        echo.join()
        for descriptor in (there_read, there_write, back_read, back_write):
            os.close(descriptor)


def _confluent(**options: object) -> Measurement:
    from confluent_kafka import Producer as ConfluentProducer

    producer = ConfluentProducer({"linger.ms": 0, "log_level": 0, **options})

    def send() -> None:
        producer.produce(TOPIC, VALUE)
        if producer.flush(30):
            raise RuntimeError("confluent-kafka did not deliver within 30 s")

    send()
    return _timed(send, CONFLUENT_COUNT)


def contenders() -> list[Contender]:
    """Return shmaccum, confluent-kafka, and the floor."""
    return [
        Contender(TO_MOCK, lambda: _future(f"kafka:{mock_cluster()}")),
        Contender(PEER_TO_MOCK, lambda: _confluent(**{"bootstrap.servers": mock_cluster(), "acks": "all"})),
        Contender("Producer.send(...).get(), null:", lambda: _future("null:"), peer=PIPES),
        Contender("confluent-kafka, mock broker in its process", lambda: _confluent(**{"test.mock.num.brokers": 1})),
        Contender(PIPES, _pipes, peer=PIPES),
        *(replace(contender, peer=PIPES) for contender in peers.of("echo")),
    ]


QUESTION = Question(
    title="from a send to its delivered future, 100 B, linger 0, one at a time",
    figures=FIGURES,
    contenders=contenders,
    peer=PEER_TO_MOCK,
    goals=(Goal("a delivered future, of confluent-kafka's to the same broker", TO_MOCK, "p50_ns", 1.0, is_ratio=True),),
)
