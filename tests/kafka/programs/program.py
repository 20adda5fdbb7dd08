# SPDX-License-Identifier: Apache-2.0
"""A program in a process of its own, and the updates of its counts."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import confluent_kafka
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.support.processes import wait_until

PARTITION_COUNT = 4
SETTLE_S = 180.0
STOP_S = 60.0
WORDS = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf")
OUTPUT_SHOWN = 6000


class Program:
    """A running program. Its output is appended to a file."""

    def __init__(self, command: Sequence[str], output: Path) -> None:
        self._output = output
        self._start = len(self.output()) if output.exists() else 0
        with open(output, "ab") as file:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)

    def check_runs(self) -> None:
        """Fail with its output if it has ended."""
        assert self._process.poll() is None, self.output()[-OUTPUT_SHOWN:]

    def wait_until_says(self, words: str) -> None:
        """Wait until its output has these words after the start of this process."""

        def has_said() -> bool:
            self.check_runs()
            return words in self.output()[self._start :]

        wait_until(has_said, f"the program says {words!r}", SETTLE_S)

    def stop(self) -> None:
        """End it by SIGTERM."""
        self.check_runs()
        self._process.terminate()
        self._process.wait(STOP_S)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()
        self._process.wait()

    def output(self) -> str:
        """Return its output, with that of its former processes."""
        return self._output.read_text(errors="replace")


@contextlib.contextmanager
def running(command: Sequence[str], output: Path) -> Iterator[Program]:
    """A running program, which is killed at the end of the context."""
    program = Program(command, output)
    try:
        yield program
    finally:
        program.kill()


class Counting:
    """A topic of words, and a topic in which a program counts them.

    Attributes:
        name: the prefix of both topics.
        updates: the counts of each word, in order.
    """

    def __init__(self, address: str, name: str) -> None:
        self._address = address
        self._sent = dict.fromkeys(WORDS, 0)
        self.name = name
        self.updates: dict[str, list[int]] = {word: [] for word in WORDS}
        topics = [f"{name}-words", f"{name}-counts"]
        admin = AdminClient({"bootstrap.servers": address})  # ends its requests when it is collected
        for future in admin.create_topics([NewTopic(topic, PARTITION_COUNT, 1) for topic in topics]).values():
            future.result(SETTLE_S)
        settings = {"bootstrap.servers": address, "group.id": f"{name}-reader", "isolation.level": "read_committed"}
        self._reader = confluent_kafka.Consumer({**settings, "enable.auto.commit": False})
        self._reader.assign([TopicPartition(topics[1], partition, 0) for partition in range(PARTITION_COUNT)])

    def send(self, count: int) -> None:
        """Send words. Key and value of each record are the word."""
        producer = confluent_kafka.Producer({"bootstrap.servers": self._address, "enable.idempotence": True})
        for number in range(count):
            word = WORDS[number % len(WORDS)]
            self._sent[word] += 1
            producer.produce(f"{self.name}-words", key=word, value=word)
        assert producer.flush(SETTLE_S) == 0

    def wait_until_counted(self, program: Program) -> None:
        """Wait until the program has counted all words that were sent."""

        def is_counted() -> bool:
            program.check_runs()
            self._read()
            return {word: max(counts, default=0) for word, counts in self.updates.items()} == self._sent

        try:
            wait_until(is_counted, "all words are counted", SETTLE_S)
        except AssertionError as error:
            raise AssertionError(
                f"{error}: {self.updates} of {self._sent}\n{program.output()[-OUTPUT_SHOWN:]}"
            ) from error

    def wait_until_committed(self, program: Program) -> None:
        """Wait until the program's group has committed the ends of the topic of words."""
        places = [TopicPartition(f"{self.name}-words", partition) for partition in range(PARTITION_COUNT)]
        settings = {"bootstrap.servers": self._address, "group.id": self.name, "enable.auto.commit": False}
        with contextlib.closing(confluent_kafka.Consumer(settings)) as member:

            def is_committed() -> bool:
                program.check_runs()
                committed = member.committed(places, SETTLE_S)
                return sum(max(place.offset, 0) for place in committed) == sum(self._sent.values())

            wait_until(is_committed, "all offsets are committed", SETTLE_S)

    def is_each_once(self) -> bool:
        """True if the counts of each word are 1, 2, 3 and so on."""
        return all(counts == list(range(1, len(counts) + 1)) for counts in self.updates.values())

    def is_increasing(self) -> bool:
        """True if each count of a word exceeds the previous one."""
        return all(counts == sorted(set(counts)) for counts in self.updates.values())

    def _read(self) -> None:
        for message in self._reader.consume(1000, timeout=0.2):
            key, value = message.key(), message.value()
            assert message.error() is None, message.error()
            assert key is not None
            assert value is not None
            self.updates[key.decode()].append(int(value))

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()
