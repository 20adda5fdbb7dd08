# SPDX-License-Identifier: Apache-2.0
"""How many instructions does an append take, in C and from Python?

In C, the figure is the difference between a run with twice the number of records and a run with that number, so the
start is not counted. From Python, the loop around the calls is counted; a loop around an empty C call shows the
interpreter's part. No process drains while Python sends, and there is memory for all records. A count is exact, so
there is one round.

callgrind counts. The count does not show the cost of a cache line that another core has written. valgrind has no
AVX-512, so a checksum takes the path of older processors.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.harness.native import BUILD, SOURCES, native_program
from bench.harness.question import Contender, Figure, Goal, Measurement, Question, UnavailableError
from bench.parts.arenas import PARTITION_COUNT, TOPIC
from bench.parts.sending import VALUE
from setup import ROOT

SEND = f"send({TOPIC!r}, {VALUE!r})"
PEER = "floor: encode and checksum, nothing shared"
ARMED, UNARMED = "Producer.send, idle overflow", "Producer.send, sender without overflow"
CORE_COUNT, PYTHON_COUNT, CALL_COUNT = 20_000, 10_000, 1000


def _core(contender: str, *arguments: str) -> Callable[[], Measurement]:
    program = str(native_program("append", ["workload"]))

    def count(record_count: int) -> int:
        return instructions([program, "-c", contender, "-n", str(record_count), *arguments])

    return lambda: {"instructions": (count(2 * CORE_COUNT) - count(CORE_COUNT)) / CORE_COUNT}


CREATE = """
import os
from shmaccum import Arena, Producer
from bench.harness.cleanup import new_name
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

SENDER = """
import tempfile
from shmaccum import Sender
folder = tempfile.TemporaryDirectory()
sender = Sender(arena, f"log:{folder.name}/sink", overflow=OVERFLOW)
sender.open()
"""
"""A sender that has the role, with or without an overflow, and has nothing to do."""
BESIDE_SENDER = OURS + SENDER.replace("OVERFLOW", "None")
BESIDE_OVERFLOW = OURS + SENDER.replace("OVERFLOW", 'f"log:{folder.name}/overflow"')

REMOVE = """
os.unlink("/dev/shm/" + name)
os._exit(0)
"""
REMOVE_FOLDER = f"folder.cleanup()\n{REMOVE}"

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
    """Return the core, the ways to send from Python, and confluent-kafka."""
    return [
        Contender("C core, append", _core("fill", "-b", "64")),
        Contender("C core, append in runs of 50", _core("fill", "-b", "64", "-r", "50")),
        Contender("C core, append, drain, verify, complete", _core("alone")),
        Contender(PEER, _core("floor")),
        Contender("Producer.send", _python(OURS, SEND, REMOVE)),
        Contender("Producer.send, inside a transaction", _python(IN_TRANSACTION, SEND, REMOVE)),
        Contender(ARMED, _python(BESIDE_OVERFLOW, SEND, REMOVE_FOLDER), peer=UNARMED),
        Contender(UNARMED, _python(BESIDE_SENDER, SEND, REMOVE_FOLDER)),
        Contender("floor: an empty C call from Python", _python(EMPTY, SEND, "os._exit(0)")),
        Contender("send_many", _python(OURS, f"producer.send_many({TOPIC!r}, many)", REMOVE, CALL_COUNT)),
        Contender("confluent-kafka produce", _python(CONFLUENT, f"produce({TOPIC!r}, {VALUE!r})", "os._exit(0)")),
    ]


# --- callgrind

SECONDS_MAX = 100
TOTALS = re.compile(r"^totals: (\d+)", re.MULTILINE)


def instructions(command: Sequence[str], *, is_whole: bool = True) -> int:
    """Return the instructions of a command and its forks. If `is_whole` is False, count only the code in `ENCLOSED`.

    Raises:
        UnavailableError: valgrind is not installed.
    """
    if shutil.which("valgrind") is None:
        raise UnavailableError("valgrind is not installed: apt-get install valgrind")
    with tempfile.TemporaryDirectory(prefix="shmaccum-bench-") as folder:
        environment = {**os.environ, "PYTHONHASHSEED": "0"}  # otherwise no two runs of Python are the same
        start = f"--instr-atstart={'yes' if is_whole else 'no'}"
        words = ["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={folder}/%p", start, *command]
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS_MAX, cwd=ROOT, env=environment)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command[:3])} failed under valgrind: {done.stderr[-500:]}")
        outputs = [path.read_text(encoding="utf-8") for path in Path(folder).iterdir()]
    count = sum(int(total) for output in outputs for total in TOTALS.findall(output))
    if count == 0:
        raise RuntimeError(f"callgrind counted nothing of {' '.join(command[:3])}")
    return count


def _marks() -> Path:
    """Build the library that starts and stops the count of callgrind."""
    target = BUILD / "callgrind.so"
    source = SOURCES / "callgrind.c"
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        if not Path("/usr/include/valgrind/callgrind.h").exists():
            raise UnavailableError("valgrind's headers are not installed: apt-get install valgrind")
        BUILD.mkdir(parents=True, exist_ok=True)
        subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", str(target), str(source)], check=True)
    return target


ENCLOSED = """
import ctypes
marks = ctypes.CDLL({marks!r})
begin, end = marks.instructions_begin, marks.instructions_end
{prepare}
def work():
{work}
begin()
work()
end()
{finish}
"""
"""The work is in a function, as the loop of a program is, because code at the level of a module looks up each name in a
dict.
"""


def python_instructions(prepare: str, work: str, finish: str = "") -> int:
    """Return the instructions of `work`, Python code that becomes the body of a function."""
    code = ENCLOSED.format(marks=str(_marks()), prepare=prepare, work=textwrap.indent(work, "    "), finish=finish)
    return instructions([sys.executable, "-c", code], is_whole=False)


QUESTION = Question(
    title="instructions per record of 100 B",
    figures=(Figure("instructions", "instructions", 1, "lower"),),
    contenders=contenders,
    peer=PEER,
    is_exact=True,
    goals=(
        Goal("instructions of ``Producer.send``", "Producer.send", "instructions", 1000),
        Goal("``send`` beside an idle overflow", ARMED, "instructions", 1.01, is_ratio=True),
    ),
    reason=(
        "The peer shares nothing. An append also guesses the slot, publishes it, and acquires and releases a "
        "lock (decision 0002). Of the 1,214 instructions of ``Producer.send``, 371 are an empty call from Python."
    ),
)
