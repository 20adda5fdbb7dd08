# SPDX-License-Identifier: Apache-2.0
"""The processes of a round. Each function runs in a forked child until it is killed, or until its part is done."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

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
from shmaccum.producer.deliveries import Deliveries
from shmaccum.producer.transaction import Transaction
from tests.linear.history import (
    TOPIC_PREFIX,
    Codes,
    Kind,
    Note,
    Notes,
    code_of,
    codes_from,
    codes_in,
    codes_in_values,
    codes_of,
    topic_name,
    topic_number,
    values_of,
    words_of,
)

WORKING, PRODUCERS_LEAVE, CONSUMERS_LEAVE = range(3)
PHASE, TOPICS = range(2)
WORD_COUNT = 2

LOCAL_GROUP, KAFKA_GROUP = "local", "kafka"
PARTITIONS = 8
ARENA_OPTIONS: Mapping[str, Any] = {
    "buffer_memory": "16MiB",
    "batch_size": "16KiB",
    "process_count": 128,
    "completion_count": 1 << 16,
}
RATE = 30_000
"""Records that a producer sends in a second to topics that are not narrow."""
BLOCK_MAX = 20_000
"""Records of one call."""
FEW_MAX = 30
"""Records that are sent one by one."""
PAUSE_S_MAX = 0.06
FLUSH_SHARE = 0.02
SIZE_MAX = 8
"""The largest value, in codes."""
POLL_MS = 50
SESSION_MS, HEARTBEAT_MS = 3000, 300
RECORDS_MAX = 10_000
"""Records of one poll."""
FEW_READ = 5000
CLOSE_S = 120.0

COORDINATORS = 2
"""The first producers coordinate the transactions, and the others join them."""
TRANSACTION_CALLS_MAX, TRANSACTION_BLOCK_MAX = 6, 300
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


def is_narrow(topic: str) -> bool:
    """True for every second topic. There, a producer waits for a partition's result before it sends again."""
    return topic_number(topic) % 2 == 0


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

    def notes(self, seat: str, incarnation: int) -> Path:
        """The notes of a process."""
        return self.folder / f"{seat}.{incarnation}.notes"

    def output(self, seat: str) -> Path:
        """The standard output and standard error of a seat's processes."""
        return self.folder / f"{seat}.output"

    def read_ends(self) -> dict[TopicPartition, int]:
        rows = (line.split() for line in self.ends.read_text(encoding="utf-8").splitlines())
        return {TopicPartition(topic, int(partition)): int(end) for topic, partition, end in rows}


# --- producers


class _Codes:
    """Counts the codes of a process."""

    def __init__(self, producer: int, incarnation: int) -> None:
        self._next = code_of(producer, incarnation)

    def take(self, count: int) -> Codes:
        self._next += count
        return codes_from(self._next - count, count)


class Waiting(NamedTuple):
    """Records whose results are unknown."""

    codes: Codes
    place: TopicPartition | None
    """The partition of a record in a narrow topic."""
    futures: Sequence[Any]

    @property
    def is_done(self) -> bool:
        futures = self.futures
        return futures.is_done if isinstance(futures, Deliveries) else all(future.done() for future in futures)

    def results(self) -> dict[TopicPartition, tuple[Codes, Codes]]:
        """The codes and offsets of each partition."""
        ranges = self.futures.get(0) if isinstance(self.futures, Deliveries) else {}
        if [one.last - one.first + 1 for one in ranges.values()] == [len(self.codes)]:
            ((place, one),) = ranges.items()
            return {place: (self.codes, codes_from(one.first, one.record_count))}
        found: dict[TopicPartition, list[tuple[int, int]]] = defaultdict(list)
        for code, future in zip(self.codes.tolist(), self.futures, strict=True):
            result = future.get(0)
            found[TopicPartition(result.topic, result.partition)].append((code, result.offset))
        columns = {place: np.array(rows).T for place, rows in found.items()}
        return {place: (codes, offsets) for place, (codes, offsets) in columns.items()}


def produce(places: Places, notes: Notes, producer: int, incarnation: int, chance: random.Random) -> None:
    """Sends until the phase ends. The first producer creates the arena."""
    words, codes = Words(places.words), _Codes(producer, incarnation)
    arena = Arena.attach_or_create(places.arena, **ARENA_OPTIONS)
    waiting: list[Waiting] = []
    own = range((producer + incarnation) % 2, PARTITIONS, 2)  # half, so that few calls are open at once
    wide_s = time.monotonic()
    with Producer(arena, linger_ms=chance.choice([0, 1, 5]), max_block_ms=120_000) as one:
        while words.phase == WORKING:
            topics = words.topics
            taken = {sent.place for sent in waiting}
            for topic in filter(is_narrow, topics):
                free = {TopicPartition(topic, number) for number in own} - taken
                if free and chance.random() < 0.9:
                    waiting += _send_narrow(one, list(free), codes, notes, chance)
            if topics and not is_narrow(topic := chance.choice(topics)):
                last_s, wide_s = wide_s, time.monotonic()
                count = min(1 + int(RATE * (wide_s - last_s)), BLOCK_MAX)
                waiting.append(_send_wide(one, topic, codes, count, notes, chance))
            if chance.random() < FLUSH_SHARE:
                _flush(one, waiting)
            waiting = _told(waiting, notes)
            time.sleep(chance.random() * PAUSE_S_MAX)
        _flush(one, waiting)
        _told(waiting, notes)
    arena.close()


def _send_narrow(
    one: Producer, places: list[TopicPartition], codes: _Codes, notes: Notes, chance: random.Random
) -> list[Waiting]:
    """Sends a record to each of these partitions of a topic."""
    taken, topic = _begin(codes, len(places), notes), places[0].topic
    values = _values(taken, chance)
    futures: Sequence[Any]
    if chance.random() < 0.5:
        futures = one.send_many(topic, values, partition=[place.partition for place in places])
    else:
        futures = [
            one.send(topic, value, partition=place.partition) for value, place in zip(values, places, strict=True)
        ]
    notes.add(Kind.SENT, int(taken[-1]))
    return [Waiting(taken[index : index + 1], place, [futures[index]]) for index, place in enumerate(places)]


def _send_wide(one: Producer, topic: str, codes: _Codes, count: int, notes: Notes, chance: random.Random) -> Waiting:
    """Sends a block to one partition or to those that the product chooses, or some records one by one."""
    is_block = chance.random() < 0.8
    taken = _begin(codes, count if is_block else min(count, FEW_MAX), notes)
    values = _values(taken, chance)
    futures: Sequence[Any]
    if is_block:
        partition = chance.randrange(PARTITIONS) if chance.random() < 0.9 else None
        futures = one.send_many(topic, values, partition=partition)
    else:
        futures = [
            one.send(topic, value, key=b"%d" % chance.randrange(20) if chance.random() < 0.3 else None)
            for value in values
        ]
    notes.add(Kind.SENT, int(taken[-1]))
    return Waiting(taken, None, futures)


def _begin(codes: _Codes, count: int, notes: Notes) -> Codes:
    """Takes codes, and records that their sends begin."""
    taken = codes.take(count)
    notes.add(Kind.SENDING, time.monotonic_ns(), int(taken[0]), count)
    return taken


def _values(codes: Codes, chance: random.Random) -> list[bytes]:
    return values_of(codes, np.random.default_rng(chance.getrandbits(32)).integers(1, SIZE_MAX, len(codes)))


def _flush(one: Producer, waiting: list[Waiting]) -> None:
    one.flush(timeout=CLOSE_S)
    left = sum(not sent.is_done for sent in waiting)
    assert not left, f"flush returned, and {left} calls have no result"


def _told(waiting: list[Waiting], notes: Notes) -> list[Waiting]:
    """Notes the known results, and returns the other records."""
    left: list[Waiting] = []
    results: list[tuple[TopicPartition, tuple[Codes, Codes]]] = []
    for sent in waiting:
        if sent.is_done:
            results += sent.results().items()
        else:
            left.append(sent)
    head = (time.monotonic_ns(),)
    notes.add_all(
        Note(Kind.TOLD, head + words_of(place), np.concatenate([codes, offsets])) for place, (codes, offsets) in results
    )
    return left


def produce_in_transactions(
    places: Places, notes: Notes, producer: int, incarnation: int, chance: random.Random
) -> None:
    """Coordinates one transaction after another, or sends in any open transaction."""
    words, codes = Words(places.words), _Codes(producer, incarnation)
    arena = Arena.attach_or_create(places.arena, transactional_id="linear", **ARENA_OPTIONS)
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


def _run_transaction(one: Producer, topics: list[str], codes: _Codes, notes: Notes, chance: random.Random) -> None:
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
    notes.add(Kind.ENDED, transaction.number, time.monotonic_ns(), False)


def _join(one: Producer, number: int, topics: list[str], codes: _Codes, notes: Notes, chance: random.Random) -> None:
    """Sends some blocks in a transaction. A call that raises may have appended the first records of its block."""
    for _ in range(chance.randrange(TRANSACTION_CALLS_MAX)):
        taken = codes.take(chance.randrange(1, TRANSACTION_BLOCK_MAX))
        topic, partition = chance.choice(topics), chance.randrange(PARTITIONS)
        first, count = int(taken[0]), len(taken)
        notes.add(Kind.JOINING, number, first, count, topic_number(topic), partition)
        sent = 0
        try:
            one.join(number)
            sent = len(one.send_many(topic, _values(taken, chance), partition=partition))
        except NOT_JOINED as error:
            sent = len(getattr(error, "appended", ()))
        if sent:
            notes.add(Kind.JOINED, number, first, sent)
        if sent < count:
            notes.add(Kind.REFUSED, number, first + sent, count - sent)
            return


def _commit_transaction(transaction: Transaction, notes: Notes) -> None:
    notes.add(Kind.ENDING, transaction.number, time.monotonic_ns())
    while not transaction.is_over:
        with contextlib.suppress(TransactionOutcomeUnknownError):
            transaction.commit()
            notes.add(Kind.ENDED, transaction.number, time.monotonic_ns(), True)


# --- consumers


def _note_read(notes: Notes, begin_ns: int, polled: Iterable[tuple[TopicPartition, Codes, Codes]]) -> None:
    """Notes the offsets and codes of records. Consecutive offsets are one note."""
    end_ns = time.monotonic_ns()
    notes.add_all(
        Note(Kind.READ, (begin_ns, end_ns, *words_of(place), int(offsets[begin])), codes[begin:end])
        for place, offsets, codes in polled
        for begin, end in itertools.pairwise([0, *(np.flatnonzero(np.diff(offsets) != 1) + 1).tolist(), len(offsets)])
    )


def _rows(polled: Mapping[TopicPartition, list[Any]]) -> Iterator[tuple[TopicPartition, Codes, Codes]]:
    """The partitions, offsets and codes of records that `Consumer.poll` returned."""
    for place, records in polled.items():
        yield place, codes_of(*[one.offset for one in records]), codes_in_values([one.value for one in records])


def _table_rows(table: Any) -> Iterator[tuple[TopicPartition, Codes, Codes]]:
    """The same for `Consumer.poll_arrow`: a batch for each partition, which is empty if it had only markers."""
    for batch in filter(len, table.to_batches()):
        place = TopicPartition(batch["topic"][0].as_py(), batch["partition"][0].as_py())
        _, ends, data = batch["value"].buffers()
        yield place, batch["offset"].to_numpy(), codes_in(data, np.frombuffer(ends, np.int32)[: len(batch) + 1])


class Listener:
    """Notes the partitions that are assigned."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self.poll_ns = time.monotonic_ns()
        """The start of the poll."""

    def on_partitions_assigned(self, partitions: Iterable[Any]) -> None:
        now_ns = time.monotonic_ns()
        times = self.poll_ns, now_ns
        self._notes.add_all(
            Note(Kind.ASSIGNED, times + words_of(TopicPartition(place.topic, place.partition))) for place in partitions
        )

    def on_partitions_revoked(self, partitions: Iterable[Any]) -> None:
        pass


def read_alone(places: Places, notes: Notes, chance: random.Random) -> None:
    """Reads every record from the first one to the ends."""
    words = Words(places.words)
    options = {"auto_offset_reset": "earliest", "isolation_level": places.isolation_level}
    with Consumer(places.log, **options) as consumer:
        consumer.subscribe(pattern=TOPIC_PREFIX)
        while True:
            begin_ns = time.monotonic_ns()
            polled = consumer.poll_arrow(timeout_ms=POLL_MS)
            if count := polled.num_rows:
                _note_read(notes, begin_ns, _table_rows(polled))
                _pause(count, chance)
            elif words.phase == CONSUMERS_LEAVE:
                ends = {place: end for place, end in places.read_ends().items() if end}
                if all(place in consumer.assignment() and consumer.position(place) >= ends[place] for place in ends):
                    return


def _pause(count: int, chance: random.Random) -> None:
    """Waits after a poll that returned few records, so that the next one returns more."""
    if count < FEW_READ:
        time.sleep(chance.random() * PAUSE_S_MAX)


def read_in_group(places: Places, notes: Notes, chance: random.Random) -> None:
    """Reads as a member of a group, notes, and commits, until the group has committed the ends."""
    words = Words(places.words)
    listener = Listener(notes)
    options = {"auto_offset_reset": "earliest", "isolation_level": places.isolation_level}
    with Consumer(places.log, group_id=LOCAL_GROUP, enable_auto_commit=False, **options) as consumer:
        consumer.subscribe(pattern=TOPIC_PREFIX, listener=listener)
        while True:
            listener.poll_ns = begin_ns = time.monotonic_ns()
            if polled := consumer.poll(timeout_ms=POLL_MS, max_records=RECORDS_MAX):
                _note_read(notes, begin_ns, _rows(polled))
                if chance.random() < 0.8:
                    _commit(consumer, polled, notes)
                _pause(sum(map(len, polled.values())), chance)
            elif words.phase == CONSUMERS_LEAVE:
                _commit(consumer, consumer.assignment(), notes)
                ends = {place: end for place, end in places.read_ends().items() if end}
                if all(_committed(consumer, place) >= ends[place] for place in ends):
                    return


def _committed(consumer: Consumer, place: TopicPartition) -> int:
    found = consumer.committed(place)
    return found if isinstance(found, int) else 0


def _commit(consumer: Consumer, wanted: Iterable[TopicPartition], notes: Notes) -> None:
    """Commits the positions of these partitions."""
    offsets = {place: consumer.position(place) for place in wanted}
    begin_ns = time.monotonic_ns()
    rows = [(*words_of(place), offset) for place, offset in offsets.items()]
    notes.add_all(Note(Kind.COMMITTING, (begin_ns, *row)) for row in rows)
    consumer.commit(offsets)
    end_ns = time.monotonic_ns()
    notes.add_all(Note(Kind.COMMITTED, (begin_ns, end_ns, *row)) for row in rows)


def read_by_kafka(places: Places, notes: Notes, chance: random.Random) -> None:
    """Like `read_in_group`, by librdkafka from the server.

    The member names the offset at which it begins, and `auto.offset.reset` is `error`. librdkafka 2.16 must not look
    the offset up. If the response to ListOffsets arrives after the next assignment, librdkafka requests the first
    offset again after 500 ms, and returns to it although it has read and committed meanwhile. So a response that would
    move the position is an error, too. If librdkafka finds a new topic during a rebalance, it may omit the topic
    permanently. A member that owns no partition of such a topic at the end resubscribes.

    kafka-python is not used here. If it loses a partition while it is stopped and gets it again, it keeps its old
    position, although another member has committed meanwhile.
    """
    from confluent_kafka import Consumer as KafkaConsumer
    from confluent_kafka import KafkaException
    from confluent_kafka import TopicPartition as KafkaPartition

    words = Words(places.words)
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
        polled = list(_message_rows(consumer.consume(RECORDS_MAX, POLL_MS / 1000)))
        _note_read(notes, begin_ns, polled)
        if polled and chance.random() < 0.8:
            ends = [KafkaPartition(*place, int(offsets[-1]) + 1) for place, offsets, _ in polled]
            _commit_by_kafka(consumer, ends, notes)
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
    notes.add_all(Note(Kind.COMMITTING, (begin_ns, *_commit_words(one))) for one in wanted)
    with contextlib.suppress(KafkaException):
        done = consumer.commit(offsets=wanted, asynchronous=False)
        end_ns = time.monotonic_ns()
        taken = [one for one in done or () if one.error is None]
        notes.add_all(Note(Kind.COMMITTED, (begin_ns, end_ns, *_commit_words(one))) for one in taken)


def _commit_words(one: Any) -> tuple[int, int, int]:
    return topic_number(one.topic), one.partition, one.offset


def _begins(consumer: Any, given: list[Any]) -> list[Any]:
    """The committed positions of the group, or 0. A server that is dead or returns an error is asked again."""
    from confluent_kafka import KafkaException
    from confluent_kafka import TopicPartition as KafkaPartition

    while True:
        with contextlib.suppress(KafkaException):
            found = consumer.committed(given, timeout=POLL_MS / 50)
            if all(one.error is None for one in found):
                return [KafkaPartition(one.topic, one.partition, max(one.offset, 0)) for one in found]


def _message_rows(messages: Iterable[Any]) -> Iterator[tuple[TopicPartition, Codes, Codes]]:
    """The partitions, offsets and codes of librdkafka's records."""
    from confluent_kafka import KafkaError

    found: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for one in messages:
        if (error := one.error()) is None:
            found[one.topic(), one.partition()].append(one)
        else:
            assert error.code() != KafkaError._AUTO_OFFSET_RESET, error.str()
    for (topic, partition), taken in found.items():
        offsets = codes_of(*[one.offset() for one in taken])
        yield TopicPartition(topic, partition), offsets, codes_in_values([one.value() for one in taken])


# --- commands


def command(*words: object) -> None:
    """Runs a command of shmaccum in this process."""
    from shmaccum.cli import main

    main(args=[str(word) for word in words], prog_name="shmaccum")
