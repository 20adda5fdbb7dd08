# SPDX-License-Identifier: Apache-2.0
"""How long does a send of 100 bytes take from Python, while another process drains?

The loop around the call is included for all contenders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bench import peers
from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.harness.stopwatch import Stopwatch
from bench.parts.arenas import GUARANTEES, TOPIC, drained_arena
from bench.parts.sending import KEYS, RECORD_COUNT, VALUE, per_record, send_keyed, send_plain
from shmaccum import aio
from shmaccum.arena import Arena
from shmaccum.producer import Producer

OURS, KEYED, AWAITED = "Producer.send, no key", "Producer.send, key", "aio.Producer.send, no key"


def _send(work: Callable[[Callable[..., object]], Measurement]) -> Callable[[], Measurement]:
    def run() -> Measurement:
        with drained_arena() as arena, Producer(arena) as producer:
            measured = work(producer.send)
            producer.flush()
        return measured

    return run


def _send_by_name(send: Callable[..., object]) -> Measurement:
    stopwatch = Stopwatch()
    for _ in range(RECORD_COUNT):
        send(TOPIC, value=VALUE, key=KEYS[0])
    return per_record(stopwatch.elapsed())


async def _await_each(arena: Arena) -> Measurement:
    async with aio.Producer(arena) as producer:
        stopwatch = Stopwatch()
        for _ in range(RECORD_COUNT):
            await producer.send(TOPIC, VALUE)
        return per_record(stopwatch.elapsed())


def _send_awaited() -> Measurement:
    with drained_arena() as arena:
        return asyncio.run(_await_each(arena))


def contenders() -> list[Contender]:
    """Return shmaccum, and all peers with a call for one record."""
    return [
        Contender(OURS, _send(send_plain), guarantees=GUARANTEES),
        Contender(KEYED, _send(send_keyed), peer="confluent-kafka produce, key", guarantees=GUARANTEES),
        Contender(
            "Producer.send, key and value by name",
            _send(_send_by_name),
            peer="confluent-kafka produce, key",
            guarantees=GUARANTEES,
        ),
        Contender(AWAITED, _send_awaited, peer="aiokafka send", guarantees=GUARANTEES),
        *peers.of("send"),
    ]


QUESTION = Question(
    title="send of 100 B from Python, while another process drains",
    figures=(
        Figure("ns_per_record", "ns", 1.0, "lower"),
        Figure("cpu_ns_per_record", "ns", 1.0, "lower", "processor time of this process"),
    ),
    contenders=contenders,
    peer="confluent-kafka produce, no key",
    goals=(
        Goal("``Producer.send``, 100 B, from Python", OURS, "ns_per_record", 200),
        Goal("``Producer.send``, of confluent-kafka's time", OURS, "ns_per_record", 0.15, is_ratio=True),
        Goal("``aio.Producer.send``, awaited", AWAITED, "ns_per_record", 2000),
        Goal("``aio.Producer.send``, of aiokafka's time", AWAITED, "ns_per_record", 0.2, is_ratio=True),
    ),
    reason=(
        "Of the 1,214 instructions of a call, 371 are an empty call from Python, and 258 the encoding and the "
        "checksum. Both together are 0.19 of the peer's 3,235 (``instructions``)."
    ),
)
