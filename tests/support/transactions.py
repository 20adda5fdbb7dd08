# SPDX-License-Identifier: Apache-2.0
"""An arena with transactions, a producer that runs some, and senders that deliver them to Kafka and die."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from shmaccum import Producer, Sender
from shmaccum.arena import Arena
from shmaccum.arena.results import FENCED_STATE, TransactionReason
from shmaccum.common.format.group_offsets import OFFSETS_TOPIC, GroupMember, OffsetToCommit, unpack_offsets
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import ShmaccumError
from shmaccum.sender.sinks import open_sink
from shmaccum.sender.sinks.kafka.library.client import Client
from shmaccum.sender.sinks.kafka.sink import KafkaSink
from shmaccum.sender.sinks.kafka.transaction.protocol import TransactionProtocol
from shmaccum.sender.sinks.memory import MemorySink
from shmaccum.sender.sinks.sink import Sink
from tests.kafka.proxy import RequestProxy
from tests.support.accumulator import Accumulator
from tests.support.arenas import sender_pid
from tests.support.processes import WATCHDOG_S, Child, wait_until

TOPIC = "flights"
PARTITION_COUNT = 3
DEATHS = [
    (Client, "ask", True),
    (Client, "ask", False),
    (Client, "produce", True),
    (TransactionProtocol, "answered", True),
    (TransactionProtocol, "answered", False),
    (KafkaSink, "_finish", True),
]
"""The functions at whose call the sender dies (each request and each response), and whether the transaction is
committed.
"""


API_KEYS: Mapping[str, int] = {
    "InitProducerId": 22,
    "FindCoordinator": 10,
    "AddPartitionsToTxn": 24,
    "Produce": 0,
    "AddOffsetsToTxn": 25,
    "TxnOffsetCommit": 28,
    "EndTxn": 26,
}
"""The requests of a transactional producer. With transaction.version 2, only a new arena needs InitProducerId."""


class MistakeError(Exception):
    """The reason of an abort."""


class DeathError(BaseException):
    """Simulates the death of a sender at a call."""


def make(name: str, topic: str = TOPIC, transactional_id: str = "orders-1", **options: Any) -> Arena:
    """Create an arena of 16 buffers with one topic."""
    sizes: dict[str, Any] = {"buffer_memory": 16 * 1024, "batch_size": 1024, "process_count": 8, "waiter_count": 8}
    topics = {topic: PARTITION_COUNT}
    return Arena.create(name, topics=topics, transactional_id=transactional_id, **{**sizes, **options})


def sender_of(arena: Arena, sink: Sink | str, **options: Any) -> Sender:
    return Sender(arena, sink, linger_ms=0, retry_backoff_ms=10, **options)


@contextlib.contextmanager
def sending(arena: Arena, sink: Sink | str, **options: Any) -> Iterator[Sender]:
    """Run a sender in a thread."""
    with running(sender_of(arena, sink, **options)) as sender:
        yield sender


@contextlib.contextmanager
def running(sender: Sender) -> Iterator[Sender]:
    """Run the sender in a thread. It is open when the block begins. Raise the exception of its thread."""
    failures: list[BaseException] = []

    def work() -> None:
        try:
            sender.run()
        except BaseException as failure:  # noqa: BLE001 - raised again at the end
            failures.append(failure)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        wait_until(lambda: sender.is_open or bool(failures), "the sender is open")
        yield sender
    finally:
        sender.stop()
        thread.join(WATCHDOG_S)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


def send_one_each(producer: Producer, value: bytes) -> None:
    """Send the same record to each partition of the arena's topic."""
    topic = producer.arena.native.topics()[0]
    for partition in range(PARTITION_COUNT):
        producer.send(topic, value, partition=partition)


def survives(sender: Sender, is_over: Callable[[], bool]) -> bool:
    """Run rounds of a sender until a condition is true. If it dies, release its role and connections."""
    with contextlib.suppress(DeathError):
        while not is_over():
            sender.run_once()
        return True
    rounds: Any = sender._rounds
    rounds.finish = lambda _: None
    sender._close(is_in_order=False)
    return False


def fence(arena: Arena) -> None:
    """Make a sender find out that another producer has the transactional id."""
    with Accumulator(arena) as sides:
        sides.become_sender()
        sides.half.store_recovery_state(FENCED_STATE)
        sides.half.fail_transaction(TransactionReason.FENCED)


def offsets_in(sink: MemorySink) -> list[tuple[GroupMember, dict[TopicPartition, OffsetToCommit]]]:
    """Return the committed offsets of groups, in their order."""
    return list(map(unpack_offsets, sink.values(OFFSETS_TOPIC)))


def count_down(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, count: int) -> None:
    """Raise DeathError at the call of a function that follows *count* others."""
    calls = iter(range(count))
    original = getattr(owner, name)

    def dying(self: Any, *arguments: Any, **named: Any) -> Any:
        if next(calls, None) is None:
            raise DeathError
        return original(self, *arguments, **named)

    monkeypatch.setattr(owner, name, dying)


@contextlib.contextmanager
def producing(arena: Arena) -> Iterator[Producer]:
    """A producer that waits for its records only if the block succeeds."""
    producer = Producer(arena)
    try:
        yield producer
    except BaseException:
        with contextlib.suppress(ShmaccumError):
            producer.close(0)
        raise
    producer.close()


def input_of(arena: Arena) -> TopicPartition:
    """Return the partition whose offsets are committed."""
    return TopicPartition(arena.native.topics()[0], 0)


def is_over(arena: Arena) -> bool:
    return arena.native.transaction[1] == "none"


def survives_a_transaction(sender: Sender, producer: Producer, number: int, *, is_commit: bool) -> bool:
    """Run one transaction. Before an abort, its batches are delivered. Return False if the sender died."""
    arena = sender.arena
    producer.begin_transaction()
    send_one_each(producer, b"%d" % number)
    producer.send_offsets_to_transaction({input_of(arena): number}, arena.transactional_id)
    if not is_commit:
        is_delivered = survives(sender, lambda: arena.native.completion_tail >= (number + 1) * (PARTITION_COUNT + 1))
        producer.abort_transaction()
        return is_delivered and survives(sender, lambda: is_over(arena))
    arena.native.commit_transaction(arena.native.transaction[0])
    return survives(sender, lambda: is_over(arena))


def survive_deaths(
    arena: Arena, url: str, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, *, is_commit: bool
) -> int:
    """Run transactions in turn. In each, the sender dies one call later, until it survives.

    Each transaction writes its number to each partition, and as an offset of the group with the arena's id.

    Returns:
        The count of transactions. In all but the last one, a sender died.
    """
    has_died, number = True, -1
    with producing(arena) as producer:
        while has_died:
            number += 1
            sender = sender_of(arena, url)
            sender.open()
            with monkeypatch.context() as patch:
                count_down(patch, owner, name, number)
                has_died = not survives_a_transaction(sender, producer, number, is_commit=is_commit)
            if has_died:
                sender = sender_of(arena, url)
                sender.open()
                assert survives(sender, lambda: is_over(arena))
            sender.close()
            if is_commit:
                producer.commit_transaction()
    return number + 1


# --- cuts between a sender and its brokers


def impatient(url: str) -> Sink:
    """A sink that connects again at once."""
    return open_sink(url, reconnect_backoff_ms=1, reconnect_backoff_max_ms=10)


def run_two_transactions(producer: Producer, number: int) -> None:
    """Abort one transaction, so that the producer asks for an epoch. Commit another with offsets of its own group.

    In the second transaction, the pump delivers the records that follow the flush.
    """
    arena = producer.arena
    with contextlib.suppress(MistakeError), producer.transaction():
        send_one_each(producer, b"aborted")
        producer.flush(WATCHDOG_S)
        raise MistakeError
    with producer.transaction() as transaction:
        send_one_each(producer, b"%d" % number)
        transaction.send_offsets({input_of(arena): number}, f"{arena.transactional_id}-{number}")
        producer.flush(WATCHDOG_S)
        send_one_each(producer, b"%d" % number)


Aim = Callable[[Callable[[], None]], None]
"""Chooses the request to cut, and takes a function that is called before the cut. Call it before the sender starts."""


@contextlib.contextmanager
def cut_off(arena: Arena, url: str, aim: Aim) -> Iterator[None]:
    """Run a sender that loses its connection, and is not killed."""
    aim(lambda: None)
    with sending(arena, impatient(url)):
        yield


def deliver(name: str, url: str) -> None:
    Sender(name, impatient(url), linger_ms=0, retry_backoff_ms=10, standby=True).run()


@contextlib.contextmanager
def killed(arena: Arena, url: str, aim: Aim) -> Iterator[None]:
    """Run two senders in processes. The one with the role is killed before the cut, and the other one takes it."""

    def kill() -> None:
        pid = sender_pid(arena)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    aim(kill)
    children = [Child(deliver, arena.name, url) for _ in range(2)]
    try:
        yield
    finally:
        for child in children:
            child.kill()


Injury = Callable[[Arena, str, Aim], contextlib.AbstractContextManager[None]]
INJURIES: list[Injury] = [cut_off, killed]
"""The faults at a request or a response: its connection is cut, or its sender is killed, too."""


def survive_injuries(
    arena: Arena, url: str, between: RequestProxy, injury: Injury, *, is_answer: bool, is_thorough: bool
) -> tuple[Counter[str], int]:
    """Run two transactions once for each of their requests, with a new sender each time, and cut this request.

    Args:
        between: the proxy between sender and brokers.
        is_answer: True if the cut is after the broker has received the request.
        is_thorough: True to cut each request of the two transactions, and not only the first of each kind.

    Returns:
        The count of cuts by the name of the request, and the count of committed transactions, which are numbered.
    """
    hits: Counter[str] = Counter()
    number = 0
    with producing(arena) as producer:
        for name, key in API_KEYS.items():
            for place in itertools.count():
                aim = functools.partial(between.aim, key, place, is_answer)
                with injury(arena, url, aim):
                    run_two_transactions(producer, number)
                number += 1
                hits[name] += between.is_hit
                if not (is_thorough and between.is_hit):
                    break
    return hits, number


def committed_twice(count: int) -> list[bytes]:
    """Return the sorted values in the committed transactions of `survive_injuries`."""
    return sorted(b"%d" % number for number in range(count) for _ in range(2 * PARTITION_COUNT))
