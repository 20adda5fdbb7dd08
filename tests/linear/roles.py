# SPDX-License-Identifier: Apache-2.0
"""The processes of a round. Each function runs in a forked child until it is killed, or until its part is done."""

from __future__ import annotations

import contextlib
import mmap
import random
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shmaccum import Consumer, Producer
from shmaccum.arena import Arena
from shmaccum.common.format.topic_partition import TopicPartition
from tests.linear.history import Notes, code_of

WORKING, PRODUCERS_LEAVE, CONSUMERS_LEAVE = range(3)
PHASE, TOPICS = range(2)
WORD_COUNT = 2

TOPIC_PREFIX = "linear"
LOCAL_GROUP, KAFKA_GROUP = "local", "kafka"
ARENA_OPTIONS: Mapping[str, Any] = {"buffer_memory": "8MiB", "batch_size": "4KiB", "process_count": 128}
BURST_MAX = 60
PAUSE_S_MAX = 0.06
FILLER_SIZE_MAX = 200
POLL_MS = 50
SESSION_MS, HEARTBEAT_MS = 3000, 300
RECORDS_MAX = 500
CLOSE_S = 120.0


class Words:
    """Numbers that the director writes and all other processes read: the phase, and how many topics there are."""

    def __init__(self, path: Path) -> None:
        with path.open("a+b") as file:
            file.truncate(WORD_COUNT * 8)
            self._map = mmap.mmap(file.fileno(), WORD_COUNT * 8)
        self._words = memoryview(self._map).cast("Q")

    @property
    def phase(self) -> int:
        """The phase of the round."""
        return self._words[PHASE]

    @phase.setter
    def phase(self, phase: int) -> None:
        self._words[PHASE] = phase

    @property
    def topics(self) -> list[str]:
        """The topics that producers send to."""
        return [topic_name(number) for number in range(self._words[TOPICS])]

    def add_topic(self) -> str:
        """One more."""
        self._words[TOPICS] += 1
        return topic_name(self._words[TOPICS] - 1)


def topic_name(number: int) -> str:
    """The name of a topic."""
    return f"{TOPIC_PREFIX}-{number}"


@dataclass(frozen=True)
class Places:
    """Where everything of a round is."""

    folder: Path
    arena: str
    address: str
    """Host and port of the server."""

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def shipped(self) -> Path:
        return self.folder / "shipped"

    @property
    def overflow(self) -> Path:
        return self.folder / "overflow"

    @property
    def words(self) -> Path:
        return self.folder / "words"

    @property
    def ends(self) -> Path:
        """The end of each partition, once nothing is appended any more."""
        return self.folder / "ends"

    def notes(self, seat: str) -> Path:
        """The notes of a seat."""
        return self.folder / f"{seat}.notes"

    def output(self, seat: str) -> Path:
        """The standard output and standard error of a seat's processes."""
        return self.folder / f"{seat}.output"

    def read_ends(self) -> dict[TopicPartition, int]:
        """The content of `ends`."""
        rows = (line.split() for line in self.ends.read_text(encoding="utf-8").splitlines())
        return {TopicPartition(topic, int(partition)): int(end) for topic, partition, end in rows}


# --- producers


def produce(places: Places, seat: str, producer: int, incarnation: int, chance: random.Random) -> None:
    """Sends bursts until the phase ends. The first producer makes the arena."""
    words, notes = Words(places.words), Notes(places.notes(seat))
    arena = Arena.attach_or_create(places.arena, **ARENA_OPTIONS)
    first = code_of(producer, incarnation)
    code = first
    waiting: list[tuple[int, Any]] = []
    with Producer(arena, linger_ms=chance.choice([0, 1, 5]), max_block_ms=120_000) as one:
        while words.phase == WORKING:
            topics = words.topics
            for _ in range(chance.randrange(1, BURST_MAX) if topics else 0):
                value = b"%d %s" % (code, b"x" * chance.randrange(FILLER_SIZE_MAX))
                key = b"%d" % chance.randrange(20) if chance.random() < 0.3 else None
                waiting.append((code, one.send(chance.choice(topics), value, key=key)))
                code += 1
            if code > first:
                notes.add("sent", code - 1)
            waiting = _told(waiting, notes)
            time.sleep(chance.random() * PAUSE_S_MAX)
        one.flush(timeout=CLOSE_S)
        waiting = _told(waiting, notes)
        assert not waiting, f"flush returned, and {len(waiting)} futures have no result"
    arena.close()


def _told(waiting: list[tuple[int, Any]], notes: Notes) -> list[tuple[int, Any]]:
    """Notes the results that are known; the others."""
    done = [(code, future.get(0)) for code, future in waiting if future.done()]
    notes.add_all(("told", code, found.topic, found.partition, found.offset) for code, found in done)
    return [(code, future) for code, future in waiting if not future.done()] if len(done) < len(waiting) else []


# --- consumers


def _runs(records: Iterable[Any]) -> list[tuple[int, list[int]]]:
    """Codes of consecutive offsets, with the first of these offsets."""
    runs: list[tuple[int, list[int]]] = []
    for record in records:
        if not runs or record.offset != runs[-1][0] + len(runs[-1][1]):
            runs.append((record.offset, []))
        runs[-1][1].append(int(record.value.split()[0]))
    return runs


def _note_read(notes: Notes, begin_ns: int, polled: Mapping[Any, Iterable[Any]]) -> None:
    notes.add_all(
        ("read", begin_ns, place.topic, place.partition, offset, *codes)
        for place, records in polled.items()
        for offset, codes in _runs(records)
    )


class Listener:
    """Notes the partitions that are assigned."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def on_partitions_assigned(self, partitions: Iterable[Any]) -> None:
        now_ns = time.monotonic_ns()
        self._notes.add_all(("assigned", now_ns, place.topic, place.partition) for place in partitions)

    def on_partitions_revoked(self, partitions: Iterable[Any]) -> None:
        pass


def read_alone(places: Places, seat: str) -> None:
    """Reads every record from the first one on, until it is at the ends."""
    words, notes = Words(places.words), Notes(places.notes(seat))
    notes.add("begin", 0)
    with Consumer(places.log, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(pattern=TOPIC_PREFIX)
        while True:
            begin_ns = time.monotonic_ns()
            if polled := consumer.poll(timeout_ms=POLL_MS):
                _note_read(notes, begin_ns, polled)
            elif words.phase == CONSUMERS_LEAVE:
                ends = {place: end for place, end in places.read_ends().items() if end}
                if all(place in consumer.assignment() and consumer.position(place) == ends[place] for place in ends):
                    return


def read_in_group(places: Places, seat: str, chance: random.Random) -> None:
    """Reads as a member of a group, notes, and commits, until the group has committed the ends."""
    words, notes = Words(places.words), Notes(places.notes(seat))
    notes.add("begin", 0)
    with Consumer(places.log, group_id=LOCAL_GROUP, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.subscribe(pattern=TOPIC_PREFIX, listener=Listener(notes))
        while True:
            begin_ns = time.monotonic_ns()
            if polled := consumer.poll(timeout_ms=POLL_MS):
                _note_read(notes, begin_ns, polled)
                if chance.random() < 0.8:
                    _commit(consumer, notes)
            elif words.phase == CONSUMERS_LEAVE:
                _commit(consumer, notes)
                ends = {place: end for place, end in places.read_ends().items() if end}
                if all(consumer.committed(place) == ends[place] for place in ends):
                    return


def _commit(consumer: Consumer, notes: Notes) -> None:
    offsets = {place: consumer.position(place) for place in consumer.assignment()}
    begin_ns = time.monotonic_ns()
    consumer.commit(offsets)
    end_ns = time.monotonic_ns()
    notes.add_all(("committed", begin_ns, end_ns, *place, offset) for place, offset in offsets.items())


def read_by_kafka(places: Places, seat: str, chance: random.Random) -> None:
    """As `read_in_group`, by librdkafka from the server.

    The member names the offset at which it begins, and `auto.offset.reset` is `error`. librdkafka 2.16 must not look it
    up: where the answer to ListOffsets comes after the next assignment, librdkafka asks for the first offset once more
    after 500 ms, and goes back to it although it has read and committed meanwhile. So an answer of the server that
    would move the position is an error too. librdkafka may leave a topic out for good that it meets in the middle of a
    rebalance. A member that owns no partition of such a topic at the end subscribes once more.

    kafka-python is no judge here. It keeps its position in a partition that it lost while it was stopped, when it gets
    the partition again, although another member has committed meanwhile.
    """
    from confluent_kafka import Consumer as KafkaConsumer
    from confluent_kafka import KafkaException
    from confluent_kafka import TopicPartition as KafkaPartition

    words, notes = Words(places.words), Notes(places.notes(seat))
    notes.add("begin", 0)
    options = {
        "bootstrap.servers": places.address,
        "group.id": KAFKA_GROUP,
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "topic.metadata.refresh.interval.ms": 500,
        "reconnect.backoff.max.ms": 200,
        "log_level": 0,
    }
    consumer = KafkaConsumer(options)
    listener = Listener(notes)

    def begin(_: KafkaConsumer, given: list[KafkaPartition]) -> None:
        listener.on_partitions_assigned(given)
        consumer.assign(_begins(consumer, given))

    def subscribe() -> None:
        consumer.subscribe([f"^{TOPIC_PREFIX}"], on_assign=begin)

    subscribe()
    while True:
        begin_ns = time.monotonic_ns()
        polled = _by_place(consumer.consume(RECORDS_MAX, POLL_MS / 1000))
        _note_read(notes, begin_ns, polled)
        if polled and chance.random() < 0.8:
            ends = {place: records[-1].offset + 1 for place, records in polled.items()}
            wanted = [KafkaPartition(*place, end) for place, end in ends.items()]
            begin_ns = time.monotonic_ns()
            # A member that was stopped longer than its session is no member any more, and a dead server answers later.
            with contextlib.suppress(KafkaException):
                done = consumer.commit(offsets=wanted, asynchronous=False)
                end_ns = time.monotonic_ns()
                taken = [one for one in done or () if one.error is None]
                notes.add_all(("committed", begin_ns, end_ns, one.topic, one.partition, one.offset) for one in taken)
        if not polled and words.phase == CONSUMERS_LEAVE:
            owned = consumer.assignment()
            with contextlib.suppress(KafkaException):
                consumer.commit(offsets=consumer.position(owned), asynchronous=False) if owned else None
            left = {place: end for place, end in places.read_ends().items() if end}
            with contextlib.suppress(KafkaException):
                found = consumer.committed([KafkaPartition(*place) for place in left], timeout=POLL_MS / 50)
                if all(one.offset == left[TopicPartition(one.topic, one.partition)] for one in found):
                    break
            if owned and {place.topic for place in left} - {one.topic for one in owned}:
                subscribe()
    consumer.close()


def _begins(consumer: Any, given: list[Any]) -> list[Any]:
    """Where the group has committed, and 0 elsewhere. A server that is dead or cannot tell is asked again."""
    from confluent_kafka import KafkaException
    from confluent_kafka import TopicPartition as KafkaPartition

    while True:
        with contextlib.suppress(KafkaException):
            found = consumer.committed(given, timeout=POLL_MS / 50)
            if all(one.error is None for one in found):
                return [KafkaPartition(one.topic, one.partition, max(one.offset, 0)) for one in found]


@dataclass(frozen=True)
class _Message:
    """A record of librdkafka, as the notes take it."""

    offset: int
    value: bytes


def _by_place(messages: Iterable[Any]) -> dict[TopicPartition, list[_Message]]:
    from confluent_kafka import KafkaError

    found: dict[TopicPartition, list[_Message]] = {}
    for one in messages:
        error = one.error()
        assert error is None or error.code() != KafkaError._AUTO_OFFSET_RESET, error.str()
        if error is None:
            place = TopicPartition(one.topic(), one.partition())
            found.setdefault(place, []).append(_Message(one.offset(), one.value()))
    return found


# --- commands


def command(*words: object) -> None:
    """Runs a command of shmaccum in this process."""
    from shmaccum.cli import main

    main(args=[str(word) for word in words], prog_name="shmaccum")
