# SPDX-License-Identifier: Apache-2.0
"""How long does a send take inside a transaction, beside a send to an arena without transactions?

The work is that of `producer_send`. The transaction is always open, so each batch is opened in it.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.parts.arenas import GUARANTEES, drained_arena
from bench.parts.sending import send_plain
from shmaccum.producer import Producer

PLAIN, INSIDE, JOINED = "a plain arena", "inside a transaction", "in the transaction that was joined"


def _plain() -> Measurement:
    with drained_arena() as arena, Producer(arena) as producer:
        measured = send_plain(producer.send)
        producer.flush()
    return measured


def _inside(*, is_joining: bool) -> Callable[[], Measurement]:
    def run() -> Measurement:
        with drained_arena(transactional_id="bench") as arena, Producer(arena) as producer:
            number = arena.native.begin_transaction()
            if is_joining:
                producer.join(number)
            measured = send_plain(producer.send)
            producer.flush()
            arena.native.leave_transaction()
        return measured

    return run


def contenders() -> list[Contender]:
    """Return the same sends to three arenas."""
    return [
        Contender(INSIDE, _inside(is_joining=False), guarantees=GUARANTEES),
        Contender(PLAIN, _plain, guarantees=GUARANTEES),
        Contender(JOINED, _inside(is_joining=True), guarantees=GUARANTEES),
    ]


QUESTION = Question(
    title="send of 100 B from Python inside a transaction, while another process drains",
    figures=(
        Figure("ns_per_record", "ns", 1.0, "lower"),
        Figure("cpu_ns_per_record", "ns", 1.0, "lower", "processor time of this process"),
    ),
    contenders=contenders,
    peer=PLAIN,
    goals=(Goal("a send inside a transaction, of a plain one", INSIDE, "ns_per_record", 1.03, is_ratio=True),),
)
