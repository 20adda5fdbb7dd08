# SPDX-License-Identifier: Apache-2.0
"""The other files of a log: offsets of groups, transactional ids, staging, shipping positions, settings and users."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmaccum import Shipper
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import LogBusyError, NotALogError, ShmaccumError
from shmaccum.log.files import BrokerError, LogDirectory, LogReader, StagedAttempt, TransactionId, Winner, transactions
from shmaccum.log.files.record_writer import NewRecord, make_batch
from shmaccum.log.files.shipping_positions import forget_shipped, read_shipped
from shmaccum.log.files.transaction_files import Decision, TransactionFiles
from shmaccum.log.groups import offsets_file
from shmaccum.log.groups.offsets_file import Committed, OffsetsFile
from shmaccum.log.server import transactions_file
from shmaccum.log.server.consumer_group import ConsumerLimits
from shmaccum.log.server.coordinator import Coordinator
from shmaccum.log.server.group import GroupLimits
from shmaccum.log.server.steps import take_all
from shmaccum.log.server.topics import LogTopics
from shmaccum.log.server.transaction_coordinator import TransactionCoordinator
from shmaccum.log.server.transactional_id import TransactionalId
from shmaccum.log.server.users import User, Verifier, changed_users, parse_grant, read_users
from tests.power_images.log_scenarios import (
    BATCH,
    INTERVAL,
    PARTITIONS,
    RECORDS,
    TOPIC,
    LogScenario,
    batch_at,
    log_options,
    read_log,
)
from tests.power_images.scenario import Marks, Scenario, mark
from tests.support.segment_log import batch_of, offsets

PLACE = TopicPartition(TOPIC, 0)
REWRITE_SIZE = 50
"""The size above which files are rewritten. It is so small that a short recording has rewrites."""


class GroupScenario(Scenario):
    """Commits of a group, by its members or by a server. The level is that of the log."""

    name = "groups"
    levels = ("interval/local", "batch/local", "interval/served", "batch/served")

    def __init__(self, level: str) -> None:
        super().__init__(level)
        self.sync, _, who = level.partition("/")
        self.is_served = who == "served"

    def record(self, place: Path) -> None:
        offsets_file.DEAD_SIZE_MIN = REWRITE_SIZE
        log = LogDirectory(place / "log", log_options(self.sync))
        log.create_topic(TOPIC, 1)
        file = None
        for number in range(8):
            offsets(log.partition(TOPIC, 0).append([batch_at(0, 0, number)]))
            file = file or OffsetsFile(log.path, "g", is_writer=True, is_created=False, is_synced=self.is_served)
            committed = {PLACE: Committed((number + 1) * RECORDS, -1, "x" * 40, number)}
            mark("committing", (number + 1) * RECORDS)
            if number % 3 == 2:
                file.commit_pending(7, committed)
                file.end_pending(7, is_commit=True)
            else:
                file.commit(committed)
            mark("committed", (number + 1) * RECORDS)

    def check(self, place: Path, marks: Marks) -> Iterator[str]:
        committed, tried = marks.last("committed", 0), marks.last("committing", 0)
        with LogDirectory(place / "log", log_options(self.sync)) as log:
            log.create_topic(TOPIC, 1)
            end_offset = log.partition(TOPIC, 0).log_end_offset
            found = OffsetsFile(log.path, "g", is_writer=False).offsets.get(PLACE)
            offset = 0 if found is None else found.offset
            if not committed <= offset <= tried:
                yield f"the group is at {offset}; {committed} was committed"
            if offset > end_offset:
                yield f"the group is at {offset}, and the log ends at {end_offset}"
            file = OffsetsFile(log.path, "g", is_writer=True)
            file.commit({PLACE: Committed(tried + 1, -1, "", 0)})
            file.close()
            if OffsetsFile(log.path, "g", is_writer=False).offsets[PLACE].offset != tried + 1:
                yield "a commit after the power cut is not there"


class Server:
    """The log and the coordinators of a server."""

    group = "g"

    def __init__(self, path: Path) -> None:
        self.log = LogDirectory(path, log_options(BATCH))
        self.log.create_topic(TOPIC, PARTITIONS)
        self.groups = Coordinator(
            self.log.path, LogTopics(self.log.path), GroupLimits(), ConsumerLimits(), is_synced=True
        )
        self.transactions = TransactionCoordinator(self.log, self.groups, is_synced=True)
        self.key: dict[str, Any] = {}

    def ask(self, handler: Any, version: int, **fields: Any) -> Any:
        """Return the response to a request."""
        values = {**self.key, **fields}
        values |= {f"v3_and_below_{name}": value for name, value in values.items()}
        found = handler(SimpleNamespace(message=SimpleNamespace(**values), version=version))
        return found if isinstance(found, dict) else take_all(found)

    def begin(self) -> tuple[int, int]:
        """Take the transactional id, and store its producer id and epoch."""
        self.key = {"transactional_id": "etl", "producer_id": -1, "producer_epoch": -1}
        found = self.ask(self.transactions.init_producer_id, 4, transaction_timeout_ms=60_000)
        assert found["error_code"] == BrokerError.NONE, found
        self.key |= {"producer_id": found["producer_id"], "producer_epoch": found["producer_epoch"]}
        return found["producer_id"], found["producer_epoch"]

    def send(self, sequence: int, number: int) -> None:
        """Send a value to each partition and an offset of the group, in one transaction."""
        topics: Any = [SimpleNamespace(name=TOPIC, partitions=list(range(PARTITIONS)))]
        self.ask(self.transactions.add_partitions, 3, topics=topics)
        for partition in range(PARTITIONS):
            key = self.key["producer_id"], sequence, b"%d" % number
            offsets(self.log.partition(TOPIC, partition).append([batch_of(*key, epoch=self.key["producer_epoch"])]))
        self.ask(self.transactions.add_offsets, 3, group_id=self.group)
        one = SimpleNamespace(
            partition_index=0, committed_offset=number + 1, committed_leader_epoch=-1, committed_metadata=""
        )
        topics = [SimpleNamespace(name=TOPIC, partitions=[one])]
        member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
        self.ask(self.transactions.commit_offsets, 3, group_id=self.group, topics=topics, **member)

    def end(self, *, is_commit: bool) -> None:
        """End the transaction."""
        assert self.ask(self.transactions.end, 3, committed=is_commit)["error_code"] == BrokerError.NONE

    def close(self) -> None:
        """Close everything."""
        self.transactions.close()
        self.groups.close()
        self.log.close()


class ServedTransactionScenario(Scenario):
    """Transactions of a client of a server, with offsets of a group."""

    name = "served-transactions"
    levels = (BATCH,)

    def record(self, place: Path) -> None:
        transactions_file.DEAD_SIZE_MIN = 2 * REWRITE_SIZE
        server = Server(place / "log")
        for number in range(6):
            if number % 4 == 0:
                mark("producer", *server.begin())
            is_commit = number not in {1, 4}
            mark("aborting" if not is_commit else "committing", number)
            server.send(number % 4, number)
            server.end(is_commit=is_commit)
            mark("ended", number)

    def check(self, place: Path, marks: Marks) -> Iterator[str]:
        server = Server(place / "log")
        producer = server.begin()
        ids = [tuple(values) for values in marks.of("producer")]
        if strange := [former for former in ids if former[0] == producer[0] and former[1] >= producer[1]]:
            yield f"the producer {producer} does not fence {strange}"
        reader = LogReader(server.log.path, isolation_level="read_committed")
        found = [
            [int(record.value or b"") for record in reader.partition(TOPIC, number).records()]
            for number in range(PARTITIONS)
        ]
        offset = server.groups.offsets_of(server.group).get(PLACE)
        server.close()
        if len({tuple(values) for values in found}) != 1:
            yield f"a transaction is visible in part: {found}"
        aborted, committing = marks.of("aborting"), marks.of("committing")
        if strange_values := [number for number in found[0] if [number] in aborted or [number] not in committing]:
            yield f"the transactions {strange_values} are visible"
        ended = [number for (number,) in marks.of("ended") if [number] in committing]
        if lost := [number for number in ended if number not in found[0]]:
            yield f"the transactions {lost} are lost"
        if found[0] != sorted(set(found[0])):
            yield f"{found[0]} are visible"
        if (0 if offset is None else offset.offset) != (found[0][-1] + 1 if found[0] else 0):
            yield f"the group is at {offset}, and {found[0]} are visible"


class StagingScenario(Scenario):
    """Staged records and their decisions, as Spark's tasks and commits make them."""

    name = "staging"
    levels = (INTERVAL, BATCH)
    count = 3

    def stage(self, place: Path, number: int, attempt_name: str = "task") -> str:
        """Stage the records of a transaction, and return the name of the attempt."""
        with StagedAttempt(place / "x" / "log", TransactionId("query", number), attempt_name) as attempt:
            with LogDirectory(attempt.log) as log:
                log.create_topic(TOPIC, PARTITIONS)
                for partition in range(PARTITIONS):
                    record = NewRecord(0, None, b"%d" % number, [])
                    log.partition(TOPIC, partition).append([make_batch([record], [])])
            attempt.keep(is_synced=True)
            return attempt.name

    def conclude(self, place: Path, number: int, name: str) -> None:
        """Decide for an attempt."""
        winner = Winner(name, PARTITIONS)
        transactions.conclude(place / "x" / "log", TransactionId("query", number), [winner], log_options(self.level))

    def withdraw(self, place: Path, number: int, name: str) -> None:
        """Decide while another process writes the log, and withdraw the decision."""
        with LogDirectory(place / "x" / "log", log_options(self.level)):
            with pytest.raises(LogBusyError, match="nothing was written"):
                transactions.conclude(
                    place / "x" / "log", TransactionId("query", number), [Winner(name, PARTITIONS)], timeout_s=0
                )
            mark("withdrawn", number)
        mark("deciding", number)

    def record(self, place: Path) -> None:
        for number in range(self.count):
            name = self.stage(place, number)
            mark("staged", number, name)
            if number == 1:
                self.withdraw(place, number, name)
            if number == 0:
                files = TransactionFiles(str(place / "x" / "log"))
                files.decide(TransactionId("query", number), Decision((Winner(name, PARTITIONS),)))
                mark("decided", number)
            self.conclude(place, number, name)
            mark("concluded", number)
        with StagedAttempt(place / "y", TransactionId("kafka", 0), "task", is_for_kafka=True) as attempt:
            attempt.keep(is_synced=True)
        mark("for kafka")

    def check(self, place: Path, marks: Marks) -> Iterator[str]:
        path = place / "x" / "log"
        concluded = [number for (number,) in marks.of("concluded")]
        with contextlib.suppress(NotALogError):
            yield from self._broken(path, concluded, all_of=False)
        if marks.of("staged"):
            LogDirectory(path, log_options(self.level)).close()
            decided = [number for (number,) in marks.of("decided")]
            yield from self._broken(path, [*concluded, *decided], all_of=True)
            withdrawn = [each for each in marks.of("withdrawn") if each not in marks.of("deciding")]
            if strange := [number for (number,) in withdrawn if b"%d" % number in read_log(path, 0).values()]:
                yield f"the transactions {strange} were withdrawn, and are applied"
        names: dict[Any, str] = dict(marks.of("staged"))
        for number in range(self.count):
            self.conclude(place, number, names.get(number) or self.stage(place, number, "again"))
        yield from self._broken(path, list(range(self.count)), all_of=True)
        if marks.of("for kafka"):
            try:
                LogDirectory(place / "y").close()
                yield "a staging directory for Kafka is taken for a log"
            except NotALogError:
                pass

    def _broken(self, path: Path, concluded: list[int], *, all_of: bool) -> Iterator[str]:
        found = [[int(value) for value in read_log(path, number).values()] for number in range(PARTITIONS)]
        for values in found:
            if values != sorted(set(values)):
                yield f"transactions are there more than once: {values}"
            if lost := [number for number in concluded if all_of and number not in values]:
                yield f"the transactions {lost} are lost"


class ShippingScenario(LogScenario):
    """A log, and the log to which it is shipped."""

    name = "shipping"
    levels = (INTERVAL, BATCH)
    batches = (0, 6)

    def record(self, place: Path) -> None:
        self._place = place
        super().record(place)

    def between(self, log: LogDirectory, number: int) -> None:
        self.ship(self._place)

    def end(self, log: LogDirectory, place: Path) -> None:
        super().end(log, place)
        mark("forgetting")
        forget_shipped(log.path)
        mark("forgotten")

    def ship(self, place: Path) -> None:
        """Ship everything."""
        with Shipper(place / "log", f"log:{place}/copy") as shipper:
            shipper.run(follow=False)

    def check(self, place: Path, marks: Marks) -> Iterator[str]:
        yield from super().check(place, marks)
        if marks.of("forgotten") and read_shipped(str(place / "log")).positions:
            yield "positions that were forgotten are there again"
        elif (place / "log").exists() and not marks.of("forgetting"):
            self.ship(place)
            for partition in range(PARTITIONS):
                source, copy = (list(read_log(place / name, partition).values()) for name in ("log", "copy"))
                if source != copy:
                    numbers = [value.split(b" ")[0] for value in copy]
                    yield f"partition {partition} has {len(source)} records, and the copy {numbers}"


class UsersScenario(Scenario):
    """The users of a server."""

    name = "users"
    levels = ("always",)

    def record(self, place: Path) -> None:
        for number in range(3):
            with changed_users(str(place / "users")) as users:
                users[f"user{number}"] = users.get(f"user{number}") or self._user(number)
            mark("added", number)

    @staticmethod
    def _user(number: int) -> User:
        verifier = Verifier.of("secret", "SCRAM-SHA-256", salt=b"salt", iterations=4096)
        return User(f"user{number}", {"SCRAM-SHA-256": verifier}, (parse_grant("read", "topic:t"),))

    def check(self, place: Path, marks: Marks) -> Iterator[str]:
        added = {f"user{number}" for (number,) in marks.of("added")}
        try:
            found = set(read_users(str(place / "users")))
        except ShmaccumError as error:
            found = set()
            if added:
                yield f"the users cannot be read: {error}"
        if lost := added - found:
            yield f"the users {sorted(lost)} are lost"


class DamageScenario(Scenario):
    """Files of frames that are damaged in the middle. The next writer makes a copy before it rewrites them."""

    name = "damage"
    levels = (BATCH,)

    def record(self, place: Path) -> None:
        directory = str(place / "log")
        LogDirectory(directory, log_options(BATCH)).close()
        for number in range(4):
            offsets = OffsetsFile(directory, "g", is_writer=True)
            offsets.commit({PLACE: Committed(number, -1, "", number)})
            offsets.close()
            ids = transactions_file.TransactionsFile(directory, is_synced=True)
            ids.put(TransactionalId(f"id{number}", number))
            ids.close()
        for path in (place / "log" / ".groups" / "g.offsets", place / "log" / "transactional-ids"):
            with path.open("r+b") as file:
                file.seek(path.stat().st_size // 2)
                file.write(b"?" * 8)
                file.flush()
                os.fsync(file.fileno())
        mark("damaged")
        OffsetsFile(directory, "g", is_writer=True).close()
        transactions_file.TransactionsFile(directory, is_synced=True).close()
        mark("copied")

    def check(self, place: Path, marks: Marks) -> Iterator[str]:
        if not marks.of("damaged"):
            return
        for folder, name in ((place / "log" / ".groups", "g.offsets"), (place / "log", "transactional-ids")):
            copies = [path.read_bytes() for path in folder.glob(f"{name}.damaged-*")]
            kept = [content for content in [*copies, (folder / name).read_bytes()] if b"?" * 8 in content]
            if not kept:
                yield f"the damaged {name} is neither there nor copied"
        if OffsetsFile(str(place / "log"), "g", is_writer=True).offsets[PLACE].offset != 3:
            yield "the last offset is lost"
        ids = transactions_file.TransactionsFile(str(place / "log"), is_synced=True)
        if not {"id0", "id3"} <= set(ids.ids):
            yield f"of the ids {sorted(ids.ids)} are left"
        ids.close()
