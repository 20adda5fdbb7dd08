# SPDX-License-Identifier: Apache-2.0
"""Kafka's tools accept the log directories: kafka-python, and Apache Kafka's own DumpLogSegments."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from kafka.record import MemoryRecords

from shmaccum.config import LogSinkOptions
from shmaccum.log.files import LogDirectory, LogReader, StagedAttempt, TransactionId, Winner, transactions
from tests.kafka.distribution import require
from tests.kafka.dumping import dump, dump_each
from tests.support.segment_log import (
    TOPIC,
    A,
    B,
    MadeBatch,
    batch_of,
    log_files,
    make_batch,
    make_batches,
    open_log,
    partition_folder,
)

WAYS = ("closed", "open", "killed", "recovered", "applied")
"""Every state in which a log can be left."""


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """For each state, a log of several segments with two kinds of batches."""
    with contextlib.ExitStack() as still_open:
        yield {way: leave(way, tmp_path_factory.mktemp(way), still_open) for way in WAYS}


@pytest.fixture(params=WAYS)
def path(request: pytest.FixtureRequest, paths: dict[str, Path]) -> Path:
    return paths[request.param]


def leave(way: str, path: Path, still_open: contextlib.ExitStack) -> Path:
    """Write a log and leave it in this state."""
    batches = make_batches(40, value_size=900)
    others = [make_batch([b"1", None, b"3"], headers=[("h", b"v"), ("n", None)])]
    if way == "applied":
        stage_and_apply(path, batches, others)
        return path
    log = open_log(path, segment_bytes=20_000)
    log.partition(TOPIC, 0).append([*batches, *others])
    if way == "open":
        still_open.enter_context(log)
    elif way == "closed":
        log.close()
    else:
        log.abandon()
    if way == "recovered":
        injure_and_recover(path, batches[0].wire)
    return path


def stage_and_apply(path: Path, *parts: list[MadeBatch]) -> None:
    """Write the log as a transaction of several attempts, one of which loses."""
    transaction, winners = TransactionId("job"), []
    for batches in (*parts, parts[0]):
        with StagedAttempt(path, transaction, "part") as attempt:
            with open_log(Path(attempt.log)) as log:
                log.partition(TOPIC, 0).append(batches)
            attempt.keep(is_synced=False)
        winners.append(Winner(attempt.name, sum(batch.record_count for batch in batches)))
    transactions.conclude(path, transaction, winners[:-1], LogSinkOptions(segment_bytes=20_000))


def injure_and_recover(path: Path, wire: bytes) -> None:
    """Leave a torn batch at the end, a missing index and a torn one. Then let the next writer recover."""
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


class Dumped(NamedTuple):
    """The output of DumpLogSegments for one log."""

    data: str
    sane: str
    verified: str


@pytest.fixture(scope="module")
def dumped(paths: dict[str, Path]) -> dict[Path, Dumped]:
    """All logs, dumped by three Java processes, which each take longer to start than to read all five."""
    require()
    folders = [partition_folder(path) for path in paths.values()]
    options = (("--deep-iteration", "--print-data-log"), ("--index-sanity-check",), ("--verify-index-only",))
    said = zip(*(dump_each(folders, *each) for each in options), strict=True)
    return {path: Dumped(*words) for path, words in zip(paths.values(), said, strict=True)}


@pytest.mark.xdist_group("dumped")
@pytest.mark.timeout(1800)
def test_dump_log_segments_accepts_every_segment_index_and_snapshot(path: Path, dumped: dict[Path, Dumped]) -> None:
    data, sane, verified = dumped[path]
    assert [int(offset) for offset in re.findall(r"^\| offset: (\d+)", data, re.MULTILINE)] == list(range(123))
    assert len(re.findall(r"^Log starting offset", data, re.MULTILINE)) == len(log_files(path)) > 3
    indexes = [file for suffix in (".index", ".timeindex") for file in log_files(path, suffix) if file.stat().st_size]
    assert sane.count("passed sanity check") == len(indexes) > 6
    assert "Mismatches" not in verified
    assert len(list(partition_folder(path).glob("*.snapshot"))) == data.count(".snapshot\n")


@pytest.mark.xdist_group("dumped")
@pytest.mark.timeout(1800)
def test_dump_log_segments_reads_transactions(tmp_path: Path) -> None:
    require()
    with open_log(tmp_path, segment_bytes=1000) as log:
        partition = log.partition(TOPIC, 0)
        for sequence in range(20):
            partition.append([batch_of(A, sequence, b"a" * 100), batch_of(B, sequence, b"b" * 100)])
            partition.end_transaction(A, 0, is_commit=True)
            partition.end_transaction(B, 0, is_commit=False)
        partition.append([batch_of(A, 20, b"open")])
    said = dump(partition_folder(tmp_path), "--deep-iteration", "--print-data-log")
    assert said.count("endTxnMarker: COMMIT") == said.count("endTxnMarker: ABORT") == 20
    assert said.count("isTransactional: true isControl: true") == 40
    assert len(re.findall(rf"version: 0 producerId: {B} firstOffset: \d+ lastOffset: \d+", said)) == 20
    assert re.search(rf"producerId: {A} .*currentTxnFirstOffset: Optional(Long)?\[80\]", said)
