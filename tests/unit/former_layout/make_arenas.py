# SPDX-License-Identifier: Apache-2.0
"""Makes ``layout-1.tar.xz``: arenas as the build of revision beda61f left them, and a ledger of their records.

The script runs with that revision, not with this one::

    git worktree add ../former beda61f
    cd ../former && make .venv/installed
    .venv/bin/python .../tests/unit/former_layout/make_arenas.py .../tests/unit/former_layout/layout-1.tar.xz

The archive holds for each case a folder with ``x.arena``, perhaps a log directory ``log`` that has some of the records
already, and a log of dead letters ``dead``. ``cases.json`` is the ledger. For each case it has up to three lists of
values, by topic and partition, in their order:

* ``log``: the records that the log has to hold at the end, each of them once;
* ``dead``: the records that the log of dead letters has to hold at the end, each of them once;
* ``bad``: the records of batches that the script scribbled on, which no sender may deliver.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import tarfile
import tempfile
import traceback
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shmaccum.arena import Arena
from shmaccum.producer import Producer
from shmaccum.sender import Sender
from shmaccum.sender.dead_letters import DeadLetters
from shmaccum.sinks.log import LogSink
from shmaccum.sinks.sink import Ack, Verdict

GEOMETRY: dict[str, Any] = {
    "buffer_memory": "64KiB",
    "batch_size": "4KiB",
    "process_count": 8,
    "waiter_count": 8,
    "topic_count": 8,
    "partition_count": 16,
    "completion_count": 64,
    "max_request_size": "16KiB",
    "options": {"made_by": "beda61f"},
}
TOPICS = {"flights": 3, "airports": 2}
Ledger = dict[str, dict[str, list[str]]]


class Book:
    """The values that were appended, by the list of the ledger they belong to."""

    def __init__(self) -> None:
        self.lists: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))

    def send(self, producer: Producer, which: str, topic: str, partition: int, value: str) -> Any:
        self.lists[which][f"{topic}-{partition}"].append(value)
        return producer.send(
            topic, key=b"key", value=value.encode(), headers=[("source", b"beda61f")], partition=partition
        )


def dies(function: Callable[[], None]) -> None:
    """The function runs in a child that is killed at its end, or before."""
    pid = os.fork()
    if pid == 0:
        try:
            function()
        except BaseException:  # noqa: BLE001 - the parent sees that it was not killed
            traceback.print_exc()
            os._exit(1)
        os.kill(os.getpid(), signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, status


def create(folder: Path, **options: Any) -> str:
    path = str(folder / "x.arena")
    with Arena.create(path, **{**GEOMETRY, **options}) as arena:
        for topic, count in TOPICS.items():
            arena.native.set_topic_partition_count(topic, count)
    return path


def send_some(book: Book, producer: Producer, which: str = "log", count: int = 3) -> None:
    for number in range(count):
        for topic, partitions in TOPICS.items():
            for partition in range(partitions):
                book.send(producer, which, topic, partition, f"{topic} {partition} {number} {'x' * 900}")


def clean(folder: Path, book: Book) -> None:
    """Several topics and partitions, a batch that is full and one that is open in some; everybody left in order."""
    path = create(folder)

    with Arena.attach(path) as arena:
        producer = Producer(arena)
        send_some(book, producer, count=5)
        producer.close(timeout=0)


def killed(folder: Path, book: Book) -> None:
    """Ready and open batches of a producer that was killed."""
    path = create(folder)
    send_in_a_child(path, book, lambda producer, child_book: send_some(child_book, producer, count=5))


def send_in_a_child(path: str, book: Book, send: Callable[[Producer, Book], None]) -> None:
    """A child sends and is killed; this process keeps the same book."""
    dies(lambda: send(Producer(path), Book()))

    class Mute:
        @staticmethod
        def send(*_: Any, **__: Any) -> None:
            return None

    send(Mute(), book)


def oversized(folder: Path, book: Book) -> None:
    """A record of three buffers between two small ones."""
    path = create(folder)

    def send(producer: Producer, own: Book) -> None:
        own.send(producer, "log", "flights", 0, "before")
        own.send(producer, "log", "flights", 0, "chain " + "y" * 10_000)
        own.send(producer, "log", "flights", 0, "after")

    send_in_a_child(path, book, send)


def in_flight(folder: Path, book: Book) -> None:
    """The log has the batches, with their sequences; the sender was killed before it recorded the results."""
    path = create(folder)
    send_in_a_child(path, book, lambda producer, own: send_some(own, producer, count=5))

    def deliver() -> None:
        with Sender(path, LogSink(str(folder / "log"))) as sender:
            sender.open()
            sender._accumulator.complete_many = die
            sender._accumulator.complete = die
            sender.run()

    dies(deliver)
    send_in_a_child(path, book, lambda producer, own: own.send(producer, "log", "flights", 0, "later"))


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class RefusingSink(LogSink):
    """A log that refuses one topic."""

    def write(self, batches: Any) -> Any:
        refused = [wire for wire in batches if wire.topic == "airports"]
        taken = [wire for wire in batches if wire.topic != "airports"]
        acks = [Ack(wire, Verdict.REFUSED, error_code=87, message="bad record") for wire in refused]
        return [*acks, *(super().write(taken) if taken else [])]


def dead_letter(folder: Path, book: Book) -> None:
    """A batch was decided and its letter is written; the sender was killed before it freed the memory. Another batch
    is not even in flight."""
    path = create(folder)

    def send(producer: Producer, own: Book) -> None:
        own.send(producer, "dead", "airports", 0, "refused 1")
        own.send(producer, "dead", "airports", 0, "refused 2")

    send_in_a_child(path, book, send)

    def deliver() -> None:
        write = DeadLetters.write

        def write_and_die(*arguments: Any) -> bool:
            assert write(*arguments)
            die()
            return True

        DeadLetters.write = write_and_die
        with Sender(path, RefusingSink(str(folder / "log")), dead_letter=f"log:{folder / 'dead'}") as sender:
            sender.open()
            sender.run()

    dies(deliver)
    send_in_a_child(path, book, lambda producer, own: own.send(producer, "log", "flights", 1, "later"))


class SmallSink(LogSink):
    """A log that takes at most four records at a time."""

    def write(self, batches: Any) -> Any:
        acks = []
        for wire in batches:
            if wire.record_count > 4:
                acks.append(Ack(wire, Verdict.TOO_LARGE, message="too many"))
            else:
                acks += super().write([wire])
        return acks


def split(folder: Path, book: Book) -> None:
    """A batch of twelve in parts of three: the log has two of them, the arena has the result of the first."""
    path = create(folder)

    def send(producer: Producer, own: Book) -> None:
        for number in range(12):
            own.send(producer, "log", "flights", 2, f"part {number}")

    send_in_a_child(path, book, send)

    def deliver() -> None:
        with Sender(path, SmallSink(str(folder / "log"))) as sender:
            sender.open()
            accumulator = sender._accumulator
            complete_part = accumulator.complete_part
            count = 0

            def complete_one(*arguments: Any) -> None:
                nonlocal count
                count += 1
                if count == 2:
                    die()
                complete_part(*arguments)

            accumulator.complete_part = complete_one
            sender.run()

    dies(deliver)


def synced(folder: Path, book: Book) -> None:
    """durability=sync, killed with open batches."""
    path = create(folder, durability="sync")
    send_in_a_child(path, book, lambda producer, own: send_some(own, producer, count=2))


def damaged(folder: Path, book: Book) -> None:
    """One batch was scribbled on, and the arena has a quarantined one."""
    path = create(folder)

    def send(producer: Producer, own: Book) -> None:
        own.send(producer, "bad", "flights", 0, "scribbled " + "s" * 50)
        own.send(producer, "bad", "flights", 1, "quarantined " + "q" * 50)
        own.send(producer, "log", "flights", 2, "sound")

    send_in_a_child(path, book, send)
    scribble(path, b"quarantined")

    def quarantine() -> None:
        with Sender(path, LogSink(str(folder / "log"))) as sender:
            sender.open()
            sender.sink.plan = lambda ready: [[index for index in ready if index == 1]]
            while not sender._accumulator.arena.native.state_counts()["BAD"]:
                sender.run_once()

    dies(quarantine)
    scribble(path, b"scribbled")


def scribble(path: str, text: bytes) -> None:
    content = Path(path).read_bytes()
    place = content.index(text + b" ")
    with open(path, "r+b") as stream:
        stream.seek(place)
        stream.write(b"X")


CASES = (clean, killed, oversized, in_flight, dead_letter, split, synced, damaged)


def main(archive: str) -> None:
    cases: dict[str, Ledger] = {}
    with tempfile.TemporaryDirectory() as text, tarfile.open(archive, "w:xz") as tar:
        for case in CASES:
            folder = Path(text) / case.__name__
            folder.mkdir()
            book = Book()
            case(folder, book)
            cases[case.__name__] = {name: dict(values) for name, values in book.lists.items()}
            for leftover in folder.glob("*.bell"):
                leftover.unlink()
            tar.add(folder, case.__name__)
        document = json.dumps(cases, indent=1).encode()
        entry = tarfile.TarInfo("cases.json")
        entry.size = len(document)
        tar.addfile(entry, io.BytesIO(document))


if __name__ == "__main__":
    main(sys.argv[1])
