# SPDX-License-Identifier: Apache-2.0
"""How long does a commit of one offset take without a sync, in a file and through a server?

A group's file has SQLite as its peer, and a served log has Apache Kafka. The commits of one contender follow one
another. A commit through a server is an OffsetCommit of a group without members and its response.
"""

from __future__ import annotations

import itertools
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.parts.segments import create_log
from bench.parts.servers import TOPIC, Starter, apache_kafka, kafka_version, served_log
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.groups.offsets_file import Committed, GroupLock, OffsetsFile
from shmaccum.log.server.client_connection import ClientConnection

COUNT, REQUEST_COUNT = 20_000, 1000
GROUP = "readers"
OURS, PEER = "offsets file", "SQLite, WAL, synchronous=OFF"
SERVED, PEER_SERVED = "shmaccum serve", "Apache Kafka"
OFFSET_COMMIT, FIND_COORDINATOR = 8, 10

_offsets = itertools.count()


def _timed(commit: Callable[[int], object], count: int) -> Measurement:
    started_s = time.perf_counter()
    for _ in range(count):
        commit(next(_offsets))
    return {"s_per_commit": (time.perf_counter() - started_s) / count}


def _file() -> Measurement:
    place = TopicPartition(TOPIC, 0)
    with tempfile.TemporaryDirectory(prefix="shmaccum-bench-") as folder:
        create_log(folder, TOPIC)
        lock = GroupLock(folder, GROUP)
        file = OffsetsFile(folder, GROUP, is_writer=True)
        try:
            return _timed(lambda offset: file.commit({place: Committed(offset, -1, "", 0)}), COUNT)
        finally:
            file.close()
            lock.release()


def _sqlite() -> Measurement:
    with tempfile.TemporaryDirectory(prefix="shmaccum-bench-") as folder:
        database = sqlite3.connect(Path(folder) / "offsets", isolation_level=None)
        try:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=OFF")
            database.execute("CREATE TABLE offsets (topic, partition, offset, PRIMARY KEY (topic, partition))")
            statement = "INSERT OR REPLACE INTO offsets VALUES (?, 0, ?)"
            return _timed(lambda offset: database.execute(statement, (TOPIC, offset)), COUNT)
        finally:
            database.close()


def _request(offset: int) -> dict[str, object]:
    partition = {
        "partition_index": 0,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    nobody = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    return {"group_id": GROUP, **nobody, "topics": [{"name": TOPIC, "partitions": [partition]}]}


def _through(start: Starter) -> Measurement:
    with ClientConnection(start().address) as client:

        def commit(offset: int) -> None:
            (topic,) = client.ask(OFFSET_COMMIT, 7, _request(offset)).topics
            if error := topic.partitions[0].error_code:
                raise RuntimeError(f"a commit was answered by error {error}")

        while client.ask(FIND_COORDINATOR, 2, {"key": GROUP, "key_type": 0}).error_code:
            time.sleep(0.1)  # Kafka creates its topic of offsets for the first group
        while not _is_ready(commit):
            time.sleep(0.1)
        return _timed(commit, REQUEST_COUNT)


def _is_ready(commit: Callable[[int], None]) -> bool:
    """Return False while a coordinator loads its groups."""
    try:
        commit(0)
    except RuntimeError:
        return False
    return True


def contenders() -> list[Contender]:
    """Return the file and its peer, and the servers."""
    return [
        Contender(OURS, _file),
        Contender(PEER, _sqlite, version=lambda: f"SQLite {sqlite3.sqlite_version}"),
        Contender(SERVED, lambda: _through(served_log), peer=PEER_SERVED),
        Contender(PEER_SERVED, lambda: _through(apache_kafka), peer=PEER_SERVED, version=kafka_version),
    ]


QUESTION = Question(
    title="a commit of one offset, not synced",
    figures=(Figure("s_per_commit", "µs", 1e6, "lower"),),
    contenders=contenders,
    peer=PEER,
    scope="full",
    goals=(Goal("a commit, not synced", OURS, "s_per_commit", 10.0),),
    reason=(
        "A commit checks three files, because a program may have replaced them: the level of the log's writer, the id "
        "of the topic, and its own file. These calls and the write take two thirds of the time."
    ),
)
