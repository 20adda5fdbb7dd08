# SPDX-License-Identifier: Apache-2.0
"""The processes of a round. Each function runs in a forked child until it is killed, or until its part is done."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import random
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from shmaccum import Consumer, Producer
from shmaccum.arena import Arena
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import (
    ArenaBusyError,
    BufferExhaustedError,
    NoTransactionError,
    ProducerFencedError,
    TransactionEndedError,
    TransactionOutcomeUnknownError,
)
from shmaccum.producer.transaction import Transaction
from tests.linear.history import Notes, code_of

WORKING, PRODUCERS_LEAVE, CONSUMERS_LEAVE = range(3)
PHASE, TOPICS = range(2)
WORD_COUNT = 2

TOPIC_PREFIX = "linear"
LOCAL_GROUP, KAFKA_GROUP = "local", "kafka"
PARTITIONS = 3
ARENA_OPTIONS: Mapping[str, Any] = {"buffer_memory": "8MiB", "batch_size": "4KiB", "process_count": 128}
BURST_MAX = 60
PAUSE_S_MAX = 0.06
FLUSH_SHARE = 0.02
FILLER_SIZE_MAX = 200
POLL_MS = 50
SESSION_MS, HEARTBEAT_MS = 3000, 300
RECORDS_MAX = 500
CLOSE_S = 120.0

COORDINATORS = 2
"""The first producers coordinate the transactions, and the others join them."""
TRANSACTION_COUNT_MAX = 12
FLUSH_IN_TRANSACTION_SHARE = 0.3
ABORT_SHARE = 0.3
BUSY_MS = 20_000
NOT_JOINED = (NoTransactionError, TransactionEndedError, ProducerFencedError, BufferExhaustedError)
"""The reasons why a transaction does not have a record."""


class Words:
    """Numbers that the director writes and all other processes read: the phase and the number of topics."""

    def __init__(self, path: Path) -> None:
        with path.open("a+b") as file:
            file.truncate(WORD_COUNT * 8)
            self._map = mmap.mmap(file.fileno(), WORD_COUNT * 8)
        self._words = memoryview(self._map).cast("Q")

    @property
    def phase(self) -> int:
        return self._words[PHASE]

    @phase.setter
    def phase(self, phase: int) -> None:
        self._words[PHASE] = phase

    @property
    def topics(self) -> list[str]:
        return [topic_name(number) for number in range(self._words[TOPICS])]

    def add_topic(self) -> str:
        """Add a topic."""
        self._words[TOPICS] += 1
        return topic_name(self._words[TOPICS] - 1)


def topic_name(number: int) -> str:
    return f"{TOPIC_PREFIX}-{number}"


def is_narrow(topic: str) -> bool:
    """True for every second topic. There, a producer waits for each result before it sends again."""
    return int(topic.removeprefix(f"{TOPIC_PREFIX}-")) % 2 == 0


@dataclass(frozen=True)
class Places:
    """The paths and addresses of a round."""

    folder: Path
    arena: str
    address: str
    """Host and port of the server."""
    is_transactional: bool = False
    """True if all records are sent in transactions, and consumers read committed ones."""

    @property
    def isolation_level(self) -> str:
        """The isolation level of the consumers."""
        return "read_committed" if self.is_transactional else "read_uncommitted"

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
        """The file with the end of each partition, written after the last append."""
        return self.folder / "ends"

    def notes(self, seat: str) -> Path:
        """The notes of a seat."""
        return self.folder / f"{seat}.notes"

    def output(self, seat: str) -> Path:
        """The standard output and standard error of a seat's processes."""
        return self.folder / f"{seat}.output"

    def read_ends(self) -> dict[TopicPartition, int]:
        rows = (line.split() for line in self.ends.read_text(encoding="utf-8").splitlines())
        return {TopicPartition(topic, int(partition)): int(end) for topic, partition, end in rows}


# --- producers


class Waiting(NamedTuple):
    """A record whose result is unknown."""

    code: int
    topic: str
    future: Any


def produce(places: Places, seat: str, producer: int, incarnation: int, chance: random.Random) -> None:
    """Sends bursts until the phase ends. The first producer creates the arena."""
    words, notes = Words(places.words), Notes(places.notes(seat))
    arena = Arena.attach_or_create(places.arena, **ARENA_OPTIONS)
    numbers = itertools.count(code_of(producer, incarnation))
    waiting: list[Waiting] = []
    with Producer(arena, linger_ms=chance.choice([0, 1, 5]), max_block_ms=120_000) as one:
        while words.phase == WORKING:
            burst = _burst(words.topics, {sent.topic for sent in waiting}, chance)
            codes = [next(numbers) for _ in burst]
            if burst:
                notes.add("sending", time.monotonic_ns(), codes[0], len(codes))
                for code, topic in zip(codes, burst, strict=True):
                    waiting.append(Waiting(code, topic, _send(one, topic, code, chance)))
                notes.add("sent", codes[-1])
            if chance.random() < FLUSH_SHARE:
                _flush(one, waiting)
            waiting = _told(waiting, notes)
            time.sleep(chance.random() * PAUSE_S_MAX)
        _flush(one, waiting)
        _told(waiting, notes)
    arena.close()


def _burst(topics: list[str], waiting: Container[str], chance: random.Random) -> list[str]:
    """The topics of the next records."""
    drawn = [chance.choice(topics) for _ in range(chance.randrange(1, BURST_MAX))] if topics else []
    narrow = [topic for topic in dict.fromkeys(drawn) if is_narrow(topic) and topic not in waiting]
    return narrow + [topic for topic in drawn if not is_narrow(topic)]


def _send(one: Producer, topic: str, code: int, chance: random.Random) -> Any:
    value = b"%d %s" % (code, b"x" * chance.randrange(FILLER_SIZE_MAX))
    return one.send(topic, value, key=b"%d" % chance.randrange(20) if chance.random() < 0.3 else None)


def _flush(one: Producer, waiting: list[Waiting]) -> None:
    one.flush(timeout=CLOSE_S)
    left = sum(not sent.future.done() for sent in waiting)
    assert not left, f"flush returned, and {left} futures have no result"


def _told(waiting: list[Waiting], notes: Notes) -> list[Waiting]:
    """Notes the known results, and returns the other records."""
    found: dict[tuple[str, int], list[int]] = {}
    left = []
    for sent in waiting:
        if sent.future.done():
            result = sent.future.get(0)
            found.setdefault((result.topic, result.partition), []).extend((sent.code, result.offset))
        else:
            left.append(sent)
    ns = time.monotonic_ns()
    notes.add_all(("told", ns, *place, *pairs) for place, pairs in found.items())
    return left


def produce_in_transactions(places: Places, seat: str, producer: int, incarnation: int, chance: random.Random) -> None:
    """Coordinates one transaction after another, or sends in any open transaction."""
    words, notes = Words(places.words), Notes(places.notes(seat))
    arena = Arena.attach_or_create(places.arena, transactional_id="linear", **ARENA_OPTIONS)
    codes = itertools.count(code_of(producer, incarnation))
    with Producer(arena, max_block_ms=BUSY_MS) as one:
        while words.phase == WORKING:
            if not words.topics:
                time.sleep(PAUSE_S_MAX)
            elif producer < COORDINATORS:
                with contextlib.suppress(ArenaBusyError, ProducerFencedError):
                    _run_transaction(one, words.topics, codes, notes, chance)
            else:
                if number := one.arena.native.transaction[0]:
                    _join(one, number, words.topics, codes, notes, chance)
                time.sleep(chance.random() * PAUSE_S_MAX)
    arena.close()


def _run_transaction(
    one: Producer, topics: list[str], codes: Iterator[int], notes: Notes, chance: random.Random
) -> None:
    """Runs one transaction, and notes its outcome."""
    transaction = one.transaction()
    for _ in range(chance.randrange(4)):
        _join(one, transaction.number, topics, codes, notes, chance)
        time.sleep(chance.random() * PAUSE_S_MAX / 4)
    try:
        if chance.random() < FLUSH_IN_TRANSACTION_SHARE:
            one.flush(timeout=CLOSE_S)  # so that aborts also affect records in the log
        if chance.random() >= ABORT_SHARE:
            _commit_transaction(transaction, notes)
            return
    except (NoTransactionError, TransactionEndedError, ProducerFencedError):
        pass
    transaction.abort()
    notes.add("ended", transaction.number, time.monotonic_ns(), "aborted")


def _join(
    one: Producer, number: int, topics: list[str], codes: Iterator[int], notes: Notes, chance: random.Random
) -> None:
    """Sends some records in a transaction."""
    for _ in range(chance.randrange(TRANSACTION_COUNT_MAX)):
        code = next(codes)
        place = TopicPartition(chance.choice(topics), chance.randrange(PARTITIONS))
        notes.add("joining", number, code, *place)
        try:
            one.join(number)
            one.send(place.topic, b"%d" % code, partition=place.partition)
        except NOT_JOINED:
            notes.add("refused", number, code)
            return
        notes.add("joined", number, code)


def _commit_transaction(transaction: Transaction, notes: Notes) -> None:
    notes.add("ending", transaction.number, time.monotonic_ns())
    while not transaction.is_over:
        with contextlib.suppress(TransactionOutcomeUnknownError):
            transaction.commit()
            notes.add("ended", transaction.number, time.monotonic_ns(), "committed")


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
    end_ns = time.monotonic_ns()
    notes.add_all(
        ("read", begin_ns, end_ns, place.topic, place.partition, offset, *codes)
        for place, records in polled.items()
        for offset, codes in _runs(records)
    )


class Listener:
    """Notes the partitions that are assigned."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self.poll_ns = time.monotonic_ns()
        """The begin of the poll."""

    def on_partitions_assigned(self, partitions: Iterable[Any]) -> None:
        now_ns = time.monotonic_ns()
        self._notes.add_all(("assigned", self.poll_ns, now_ns, place.topic, place.partition) for place in partitions)

    def on_partitions_revoked(self, partitions: Iterable[Any]) -> None:
        pass


def read_alone(places: Places, seat: str) -> None:
    """Reads every record from the first one to the ends."""
    words, notes = Words(places.words), Notes(places.notes(seat))
    notes.add("begin", 0)
    options = {"auto_offset_reset": "earliest", "isolation_level": places.isolation_level}
    with Consumer(places.log, **options) as consumer:
        consumer.subscribe(pattern=TOPIC_PREFIX)
        while True:
            begin_ns = time.monotonic_ns()
            if polled := consumer.poll(timeout_ms=POLL_MS):
                _note_read(notes, begin_ns, polled)
            elif words.phase == CONSUMERS_LEAVE:
                ends = {place: end for place, end in places.read_ends().items() if end}
                if all(place in consumer.assignment() and consumer.position(place) >= ends[place] for place in ends):
                    return


def read_in_group(places: Places, seat: str, chance: random.Random) -> None:
    """Reads as a member of a group, notes, and commits, until the group has committed the ends."""
    words, notes = Words(places.words), Notes(places.notes(seat))
    notes.add("begin", 0)
    listener = Listener(notes)
    options = {"auto_offset_reset": "earliest", "isolation_level": places.isolation_level}
    with Consumer(places.log, group_id=LOCAL_GROUP, enable_auto_commit=False, **options) as consumer:
        consumer.subscribe(pattern=TOPIC_PREFIX, listener=listener)
        while True:
            listener.poll_ns = begin_ns = time.monotonic_ns()
            if polled := consumer.poll(timeout_ms=POLL_MS):
                _note_read(notes, begin_ns, polled)
                if chance.random() < 0.8:
                    _commit(consumer, notes)
            elif words.phase == CONSUMERS_LEAVE:
                _commit(consumer, notes)
                ends = {place: end for place, end in places.read_ends().items() if end}
                if all(_committed(consumer, place) >= ends[place] for place in ends):
                    return


def _committed(consumer: Consumer, place: TopicPartition) -> int:
    found = consumer.committed(place)
    return found if isinstance(found, int) else 0


def _commit(consumer: Consumer, notes: Notes) -> None:
    offsets = {place: consumer.position(place) for place in consumer.assignment()}
    begin_ns = time.monotonic_ns()
    notes.add_all(("committing", begin_ns, *place, offset) for place, offset in offsets.items())
    consumer.commit(offsets)
    end_ns = time.monotonic_ns()
    notes.add_all(("committed", begin_ns, end_ns, *place, offset) for place, offset in offsets.items())


def read_by_kafka(places: Places, seat: str, chance: random.Random) -> None:
    """Like `read_in_group`, by librdkafka from the server.

    The member names the offset at which it begins, and `auto.offset.reset` is `error`. librdkafka 2.16 must not look it
    up: if the answer to ListOffsets arrives after the next assignment, librdkafka requests the first offset again
    after 500 ms, and returns to it although it has read and committed meanwhile. So an answer of the server that
    would move the position is an error, too. If librdkafka finds a new topic during a
    rebalance, it may omit it permanently. A member that owns no partition of such a topic at the end resubscribes.

    kafka-python is not used here. If it loses a partition while it is stopped and gets it again, it keeps its old
    position, although another member has committed meanwhile.
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
        "isolation.level": places.isolation_level,
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
        listener.poll_ns = begin_ns = time.monotonic_ns()
        polled = _by_place(consumer.consume(RECORDS_MAX, POLL_MS / 1000))
        _note_read(notes, begin_ns, polled)
        if polled and chance.random() < 0.8:
            ends = {place: records[-1].offset + 1 for place, records in polled.items()}
            _commit_by_kafka(consumer, [KafkaPartition(*place, end) for place, end in ends.items()], notes)
        if not polled and words.phase == CONSUMERS_LEAVE:
            owned = consumer.assignment()
            _commit_by_kafka(consumer, [one for one in consumer.position(owned) if one.offset >= 0], notes)
            left = {place: end for place, end in places.read_ends().items() if end}
            with contextlib.suppress(KafkaException):
                found = consumer.committed([KafkaPartition(*place) for place in left], timeout=POLL_MS / 50)
                if all(one.offset >= left[TopicPartition(one.topic, one.partition)] for one in found):
                    break
            if owned and {place.topic for place in left} - {one.topic for one in owned}:
                subscribe()
    consumer.close()


def _commit_by_kafka(consumer: Any, wanted: list[Any], notes: Notes) -> None:
    """Commits. Errors are ignored: the server may be dead, or the session of a stopped member over."""
    from confluent_kafka import KafkaException

    if not wanted:
        return
    begin_ns = time.monotonic_ns()
    notes.add_all(("committing", begin_ns, one.topic, one.partition, one.offset) for one in wanted)
    with contextlib.suppress(KafkaException):
        done = consumer.commit(offsets=wanted, asynchronous=False)
        end_ns = time.monotonic_ns()
        taken = [one for one in done or () if one.error is None]
        notes.add_all(("committed", begin_ns, end_ns, one.topic, one.partition, one.offset) for one in taken)


def _begins(consumer: Any, given: list[Any]) -> list[Any]:
    """The committed positions of the group, or 0. A server that is dead or returns an error is asked again."""
    from confluent_kafka import KafkaException
    from confluent_kafka import TopicPartition as KafkaPartition

    while True:
        with contextlib.suppress(KafkaException):
            found = consumer.committed(given, timeout=POLL_MS / 50)
            if all(one.error is None for one in found):
                return [KafkaPartition(one.topic, one.partition, max(one.offset, 0)) for one in found]


@dataclass(frozen=True)
class _Message:
    """A librdkafka record in the form of the notes."""

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
