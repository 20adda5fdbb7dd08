# SPDX-License-Identifier: Apache-2.0
"""The programs that run when the power is cut. Each records in its ledger what was promised to it, and never ends.

python -m tests.power.worker ROLE LEDGER ARGUMENT...
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

import shmaccum
from shmaccum.config import LogSinkOptions
from shmaccum.log.files import LogDirectory, StagedAttempt, TransactionId, Winner, transactions
from shmaccum.log.files.record_writer import NewRecord, make_batch
from shmaccum.log.server import LogServer
from shmaccum.sender.sinks import Ack, Verdict, WireBatch
from shmaccum.sender.sinks.log import LogSink
from tests.power.ledger import Ledger

TOPIC = "t"
PARTITIONS = 3
GET_EVERY = 20
TIMEOUT_S = 60.0


def _value(name: str, size: int) -> bytes:
    return name.encode() + b" " + b"z" * (size % 700)


def produce(ledger: Ledger, arena: str, prefix: str, waits: str) -> None:
    """Send records. Record each that was sent, and each whose future has returned.

    Args:
        waits: "every" waits for each future, "some" for one in twenty.
    """
    with shmaccum.Producer(arena, linger_ms=1) as producer:
        for number in itertools.count():
            name = f"{prefix}.{number}"
            future = producer.send(TOPIC, _value(name, number * 37))
            if waits == "some":
                ledger.write("sent", name)
            if waits == "every" or number % GET_EVERY == 0:
                future.get(TIMEOUT_S)
                ledger.write("got", name)


def send_alone(ledger: Ledger, arena: str, prefix: str) -> None:
    """Send records, and wait for no future. The pauses keep the ledger short."""
    with shmaccum.Producer(arena, linger_ms=1) as producer:
        for number in itertools.count():
            producer.send(TOPIC, _value(f"{prefix}.{number}", number * 37))
            ledger.write("sent", f"{prefix}.{number}")
            if number % GET_EVERY == 0:
                time.sleep(0.002)


def transact(ledger: Ledger, arena: str, prefix: str, seed: str) -> None:
    """Commit and abort transactions of an arena, with records in every partition."""
    choose = random.Random(seed)
    with shmaccum.Producer(arena, linger_ms=1) as producer:
        for number in itertools.count():
            name, count = f"{prefix}.{number}", choose.randint(1, 6)
            is_commit = choose.random() < 0.7
            ledger.write("begun", f"{name}.{count}")
            transaction = producer.transaction()
            for part in range(count):
                producer.send(TOPIC, f"{name}.{count}/{part}".encode(), partition=part % PARTITIONS)
            if is_commit:
                transaction.commit(TIMEOUT_S)
            else:
                transaction.abort()
            ledger.write("committed" if is_commit else "aborted", f"{name}.{count}")


def transact_at_server(ledger: Ledger, address: str, prefix: str, seed: str) -> None:
    """The same, as a client of a server."""
    from kafka import KafkaProducer

    choose = random.Random(seed)
    producer = KafkaProducer(bootstrap_servers=address, transactional_id="power", linger_ms=1)
    producer.init_transactions()
    for number in itertools.count():
        name, count = f"{prefix}.{number}", choose.randint(1, 6)
        is_commit = choose.random() < 0.7
        ledger.write("begun", f"{name}.{count}")
        producer.begin_transaction()
        for part in range(count):
            producer.send(TOPIC, f"{name}.{count}/{part}".encode(), partition=part % PARTITIONS)
        if is_commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        ledger.write("committed" if is_commit else "aborted", f"{name}.{count}")


def fill(ledger: Ledger, directory: str, sync: str) -> None:
    """Write a log with this level until the process is killed. Record when the log has some records."""
    with LogDirectory(directory, _log_options(sync)) as log:
        log.create_topic(TOPIC, PARTITIONS)
        for number in itertools.count():
            for partition in range(PARTITIONS):
                batch = make_batch([NewRecord(0, None, b"%d" % number, [])] * 20, [])
                log.partition(TOPIC, partition).append([batch])
            log.maintain()
            if number == 100:
                ledger.write("filled", directory)
            time.sleep(0.001 if number < 100 else 0.02)


def consume(ledger: Ledger, directory: str, group: str) -> None:
    """Run a member of a local group. Record each offset whose commit returned."""
    with shmaccum.Consumer(directory, group_id=group, enable_auto_commit=False, auto_offset_reset="earliest") as one:
        one.subscribe([TOPIC])
        while True:
            one.poll(timeout_ms=200, max_records=15)
            positions = {place: one.position(place) for place in one.assignment()}
            one.commit()
            for place, offset in positions.items():
                ledger.write("committed", f"{place.partition}:{offset}")


def consume_at_server(ledger: Ledger, address: str, group: str) -> None:
    """The same, as a client of a server."""
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        TOPIC,
        bootstrap_servers=address,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_poll_records=15,
    )
    while True:
        consumer.poll(timeout_ms=200)
        positions = {place: consumer.position(place) for place in consumer.assignment()}
        if positions:
            consumer.commit()
        for place, offset in positions.items():
            ledger.write("committed", f"{place.partition}:{offset}")


def serve(ledger: Ledger, directory: str, sync: str, is_writable: str, address: str) -> None:
    """Serve a log. A server that only reads has no level, and follows the log."""
    options: dict[str, Any] = {"partitions": PARTITIONS}
    if is_writable == "yes":
        options |= {"sync": sync} | ({"sync_interval_ms": "100ms"} if sync == "interval" else {})
    host = address.rpartition(":")[0]
    with LogServer(directory, address, is_writable=is_writable == "yes", **options) as server:
        ledger.write("serves", f"{host}:{server.address.port}")
        server.run()


class FailingSink(LogSink):
    """A log that fails while a file exists."""

    def __init__(self, place: str, flag: str) -> None:
        super().__init__(place)
        self._flag = flag

    def open(self, host: Any) -> None:
        super().open(host)
        self.log_ends = {}

    def _open_end(self, partition_index: int, log: Any) -> None:
        """Return None, so that each batch is passed to `write`."""

    @property
    def outage(self) -> str | None:
        """Return a sentence while the file exists."""
        return "the file is there" if os.path.exists(self._flag) else super().outage

    def write(self, batches: Sequence[WireBatch]) -> Sequence[Ack]:
        """Accept no batch while the file exists."""
        if os.path.exists(self._flag):
            return [Ack(wire, Verdict.RETRY, message="the file is there") for wire in batches]
        return super().write(batches)


class RefusingSink(LogSink):
    """A log that rejects every batch, so that each becomes a dead letter."""

    def write(self, batches: Sequence[WireBatch]) -> Sequence[Ack]:
        """Reject all batches."""
        return [Ack(wire, Verdict.REFUSED, message="refused") for wire in batches]


def spill(ledger: Ledger, arena: str, out: str, overflow: str, flag: str, idle_exit: str) -> None:
    """Run a sender with an overflow, whose sink fails from time to time."""
    more: dict[str, Any] = {"idle_exit_ms": idle_exit} if idle_exit else {}
    sink = FailingSink(out, flag)
    with shmaccum.Sender(arena, sink, overflow=f"log:{overflow}", overflow_at="10%", **more) as sender:
        ledger.write("opened", arena)
        sender.run()


def bury(ledger: Ledger, arena: str, out: str, letters: str, idle_exit: str) -> None:
    """Run a sender whose sink rejects every batch."""
    more: dict[str, Any] = {"idle_exit_ms": idle_exit} if idle_exit else {}
    with shmaccum.Sender(arena, RefusingSink(out), dead_letter=f"log:{letters}", **more) as sender:
        ledger.write("opened", arena)
        sender.run()


def ship(ledger: Ledger, source: str, target: str, follow: str) -> None:
    """Ship a log to another one."""
    ledger.write("ships", source)
    with shmaccum.Shipper(source, f"log:{target}") as shipper:
        shipper.run(follow=follow == "yes")


def stage(ledger: Ledger, directory: str, sync: str, prefix: str) -> None:
    """Stage records and conclude their transaction, as the tasks and the commit of a query do."""
    options = _log_options(sync)
    for number in itertools.count():
        transaction = TransactionId(f"query-{prefix}", number)
        with StagedAttempt(directory, transaction, "task") as attempt:
            with LogDirectory(attempt.log) as log:
                log.create_topic(TOPIC, PARTITIONS)
                for part in range(PARTITIONS):
                    record = NewRecord(0, None, f"{prefix}.{number}.{PARTITIONS}/{part}".encode(), [])
                    log.partition(TOPIC, part).append([make_batch([record], [])])
            attempt.keep(is_synced=sync != "none")
        ledger.write("begun", f"{prefix}.{number}.{PARTITIONS}")
        transactions.conclude(directory, transaction, [Winner(attempt.name, PARTITIONS)], options)
        ledger.write("committed", f"{prefix}.{number}.{PARTITIONS}")


def apply(ledger: Ledger, directory: str, sync: str) -> None:
    """Open a log once, which applies the decided transactions."""
    LogDirectory(directory, _log_options(sync)).close()
    ledger.write("applied", directory)


def _log_options(sync: str) -> LogSinkOptions:
    return LogSinkOptions.parse({"sync": sync} | ({"sync_interval_ms": "100ms"} if sync == "interval" else {}))


ROLES = {
    one.__name__: one
    for one in (
        produce,
        send_alone,
        transact,
        transact_at_server,
        fill,
        consume,
        consume_at_server,
        serve,
        spill,
        bury,
        ship,
        stage,
        apply,
    )
}

if __name__ == "__main__":
    role, path, *arguments = sys.argv[1:]
    ROLES[role](Ledger(path), *arguments)
