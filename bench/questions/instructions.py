# SPDX-License-Identifier: Apache-2.0
"""How many instructions does an append take, in C and from Python?

In C it is the difference between twice as many records and as many, so that the start is not counted. From Python it
is the loop around the calls, of which the loop around an empty C call is the interpreter's part. Nobody drains while
Python sends: there is room for all. Counting is exact, so it is done once.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.harness.instructions import instructions, python_instructions
from bench.harness.native import native_program
from bench.harness.question import Contender, Figure, Measurement, Question
from bench.parts.arenas import PARTITION_COUNT, TOPIC
from bench.parts.sending import VALUE

SEND = f"send({TOPIC!r}, {VALUE!r})"
PEER = "floor: encode and checksum, nothing shared"
CORE_COUNT, PYTHON_COUNT, CALL_COUNT = 20_000, 10_000, 1000


def _core(contender: str, *arguments: str) -> Callable[[], Measurement]:
    program = str(native_program("append", ["workload"]))

    def count(record_count: int) -> int:
        return instructions([program, "-c", contender, "-n", str(record_count), *arguments])

    return lambda: {"instructions": (count(2 * CORE_COUNT) - count(CORE_COUNT)) / CORE_COUNT}


CREATE = """
import os
from shmaccum import Arena, Producer
from bench.harness.belongings import new_name
name = new_name()
"""

PRODUCER = f"""
arena.native.set_topic_partition_count({TOPIC!r}, {PARTITION_COUNT})
producer = Producer(arena)
send = producer.send
send({TOPIC!r}, {VALUE!r})
many = [{VALUE!r}] * {CALL_COUNT}
"""

OURS = f"{CREATE}arena = Arena.create(name)\n{PRODUCER}"
IN_TRANSACTION = (
    f"{CREATE}arena = Arena.create(name, transactional_id='bench')\narena.native.begin_transaction()\n{PRODUCER}"
)

REMOVE = """
os.unlink("/dev/shm/" + name)
os._exit(0)
"""

CONFLUENT = f"""
import os, confluent_kafka
producer = confluent_kafka.Producer({{"bootstrap.servers": "127.0.0.1:1", "log_level": 0}})
produce = producer.produce
produce({TOPIC!r}, {VALUE!r})
"""


EMPTY = """
import os
from bench.harness.native import native_extension
send = native_extension("empty_call").nothing
"""


def _python(prepare: str, call: str, finish: str, records_per_call: int = 1) -> Callable[[], Measurement]:
    work = f"for _ in range({PYTHON_COUNT // records_per_call}):\n    {call}"
    return lambda: {"instructions": python_instructions(prepare, work, finish) / PYTHON_COUNT}


def contenders() -> list[Contender]:
    """The core, the ways to send from Python, confluent-kafka."""
    return [
        Contender("C core, append", _core("fill", "-b", "64")),
        Contender("C core, append in runs of 50", _core("fill", "-b", "64", "-r", "50")),
        Contender("C core, append, drain, verify, complete", _core("alone")),
        Contender(PEER, _core("floor")),
        Contender("Producer.send", _python(OURS, SEND, REMOVE)),
        Contender("Producer.send, inside a transaction", _python(IN_TRANSACTION, SEND, REMOVE)),
        Contender("floor: an empty C call from Python", _python(EMPTY, SEND, "os._exit(0)")),
        Contender("send_many", _python(OURS, f"producer.send_many({TOPIC!r}, many)", REMOVE, CALL_COUNT)),
        Contender("confluent-kafka produce", _python(CONFLUENT, f"produce({TOPIC!r}, {VALUE!r})", "os._exit(0)")),
    ]


QUESTION = Question(
    title="instructions per record of 100 B",
    figures=(Figure("instructions", "instructions", 1, "lower"),),
    contenders=contenders,
    peer=PEER,
    is_exact=True,
)
