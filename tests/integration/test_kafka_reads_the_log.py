# SPDX-License-Identifier: Apache-2.0
"""Other people's readers take our log directories for Kafka's: kafka-python, and Apache Kafka's own DumpLogSegments."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.record import MemoryRecords

from shmaccum.config import LogSinkOptions
from shmaccum.segment_log import LogDirectory, LogReader, StagedAttempt, TransactionId, Winner, transactions
from tests.kafka.distribution import require
from tests.kafka.dumping import dump
from tests.log_support import TOPIC, MadeBatch, log_files, make_batch, make_batches, open_log, partition_folder


@pytest.fixture(params=["closed", "open", "killed", "recovered", "applied"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A log of several segments with two kinds of batches, left in every way a log can be left."""
    batches = make_batches(40, value_size=900)
    others = [make_batch([b"1", None, b"3"], headers=[("h", b"v"), ("n", None)])]
    if request.param == "applied":
        stage_and_apply(tmp_path, batches, others)
        yield tmp_path
        return
    log = open_log(tmp_path, segment_bytes=20_000)
    log.partition(TOPIC, 0).append([*batches, *others])
    if request.param == "closed":
        log.close()
    if request.param in {"killed", "recovered"}:
        log.abandon()
    if request.param == "recovered":
        injure_and_recover(tmp_path, batches[0].wire)
    yield tmp_path
    log.close()


def stage_and_apply(path: Path, *parts: list[MadeBatch]) -> None:
    """The same as a transaction of several attempts, of which one loses."""
    transaction, winners = TransactionId("job"), []
    for batches in (*parts, parts[0]):
        with StagedAttempt(path, transaction, "part") as attempt:
            with open_log(Path(attempt.log)) as log:
                log.partition(TOPIC, 0).append(batches)
            attempt.keep(is_synced=False)
        winners.append(Winner(attempt.name, sum(batch.record_count for batch in batches)))
    transactions.conclude(path, transaction, winners[:-1], LogSinkOptions(segment_bytes=20_000))


def injure_and_recover(path: Path, wire: bytes) -> None:
    """A torn batch at the end, an index that is missing and one that is torn; then the next writer."""
    with open(log_files(path)[-1], "ab") as file:
        file.write(wire[:-1])
    log_files(path, ".index")[0].unlink()
    os.truncate(log_files(path, ".timeindex")[1], 5)
    with LogDirectory(path) as log:
        log.partition(TOPIC, 0)
        assert len(log.findings) == 3


def test_kafka_python_reads_every_segment(path: Path) -> None:
    ours = iter(LogReader(path).partition(TOPIC, 0).records())
    for file in log_files(path):
        records = MemoryRecords(file.read_bytes())
        while (batch := records.next_batch()) is not None:
            assert batch.validate_crc()
            for theirs in batch:
                mine = next(ours)
                assert (theirs.offset, theirs.timestamp, theirs.key, theirs.value) == mine[:4]
                assert tuple(theirs.headers) == mine.headers
    assert next(ours, None) is None


@pytest.mark.timeout(900)
def test_dump_log_segments_accepts_every_segment_index_and_snapshot(path: Path) -> None:
    require()
    data = dump(partition_folder(path), "--deep-iteration", "--print-data-log")
    assert [int(offset) for offset in re.findall(r"^\| offset: (\d+)", data, re.MULTILINE)] == list(range(123))
    assert len(re.findall(r"^Log starting offset", data, re.MULTILINE)) == len(log_files(path)) > 3
    sane = dump(partition_folder(path), "--index-sanity-check")
    indexes = [file for suffix in (".index", ".timeindex") for file in log_files(path, suffix) if file.stat().st_size]
    assert sane.count("passed sanity check") == len(indexes) > 6
    assert "Mismatches" not in dump(partition_folder(path), "--verify-index-only")
    assert len(list(partition_folder(path).glob("*.snapshot"))) == data.count(".snapshot\n")
