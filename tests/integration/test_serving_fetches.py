# SPDX-License-Identifier: Apache-2.0
"""Single fetches, read byte by byte: at unusual offsets, during retention and recovery, and within every limit."""

from __future__ import annotations

import errno
import os
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from shmaccum.common.format.batch_header import crc_problem, read_header
from shmaccum.exceptions import LogError
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.server.client_connection import ClientConnection
from shmaccum.log.server.log_heads import LogHead
from shmaccum.log.server.messages import decode_answer, encode_request
from tests.support.log_server import DEADLINE_S, address_of, answer_of, running, served, stranger
from tests.support.processes import wait_until
from tests.support.segment_log import TOPIC, A, B, batch_of, log_files, make_batch, make_batches, open_log

FETCH, VERSION = 1, 11
LARGE = 1 << 20
NO_TOPIC = {"isolation_level": 0, "session_id": 0, "session_epoch": -1, "forgotten_topics_data": [], "rack_id": ""}


def request(
    offset: int, *, max_bytes: int = LARGE, partition_bytes: int = LARGE, min_bytes: int = 1, wait_ms: int = 0
) -> dict[str, Any]:
    partition = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "log_start_offset": -1,
        "partition_max_bytes": partition_bytes,
    }
    limits = {"replica_id": -1, "max_wait_ms": wait_ms, "min_bytes": min_bytes, "max_bytes": max_bytes}
    return {**NO_TOPIC, **limits, "topics": [{"topic": TOPIC, "partitions": [partition]}]}


def fetch(server: ClientConnection, offset: int, **limits: int) -> Any:
    """The response for the one partition."""
    (topic,) = server.ask(FETCH, VERSION, request(offset, **limits)).responses
    (found,) = topic.partitions
    return found


def whole_offsets(records: bytes | None) -> list[int]:
    """The base offsets of the complete batches. Checks the CRC of each."""
    content, found, position = memoryview(records or b""), [], 0
    while position + 61 <= len(content):
        header = read_header(content, position)
        if position + header.size > len(content):
            break
        assert crc_problem(header, content[position : position + header.size]) is None
        found.append(header.base_offset)
        position += header.size
    return found


def test_a_fetch_begins_with_the_batch_that_has_its_offset_in_every_segment(tmp_path: Path) -> None:
    with open_log(tmp_path, segment_bytes=2000) as directory:
        directory.partition(TOPIC, 0).append(make_batches(20))
        assert len(log_files(tmp_path)) > 3
        with served(tmp_path, is_writable=False) as address, ClientConnection(address) as server:
            for offset in range(60):
                found = fetch(server, offset)
                assert whole_offsets(found.records)[0] == offset - offset % 3
                assert (found.high_watermark, found.error_code) == (60, 0)
            assert whole_offsets(fetch(server, 60).records) == []
            assert fetch(server, 61).error_code == BrokerError.OFFSET_OUT_OF_RANGE


def test_fetches_one_after_another_cross_every_roll(tmp_path: Path) -> None:
    with open_log(tmp_path, segment_bytes=2000) as directory:
        directory.partition(TOPIC, 0).append(make_batches(20))
        with served(tmp_path, is_writable=False) as address, ClientConnection(address) as server:
            seen: list[int] = []
            while len(seen) < 20:
                seen += whole_offsets(fetch(server, 3 * len(seen)).records)
    assert seen == [3 * number for number in range(20)]


@pytest.mark.parametrize("limits", [{"max_bytes": 1}, {"partition_bytes": 1}, {"max_bytes": 0}, {"partition_bytes": 0}])
def test_the_first_batch_goes_whole_whatever_the_limits_are(tmp_path: Path, limits: dict[str, int]) -> None:
    with open_log(tmp_path) as directory:
        directory.partition(TOPIC, 0).append([make_batch([bytes(300_000)]), make_batch([b"next"])])
        with served(tmp_path, is_writable=False) as address, ClientConnection(address) as server:
            found = fetch(server, 0, **limits)
            assert whole_offsets(found.records) == [0]
            assert len(found.records) == read_header(found.records).size


def test_a_segment_that_retention_deletes_ends_no_fetch_in_it(tmp_path: Path) -> None:
    with open_log(tmp_path, segment_bytes=200_000) as directory:
        log = directory.partition(TOPIC, 0)
        log.append([make_batch([os.urandom(150_000)]) for _ in range(4)])
        with served(tmp_path, is_writable=False) as address:
            host, _, port = address.partition(":")
            with socket.create_connection((host, int(port)), DEADLINE_S) as client, client.makefile("rb") as answers:
                client.sendall(encode_request(FETCH, VERSION, request(0)))
                size = answers.read(4)  # the response is under way
                directory.delete_records(TOPIC, 0, 3)
                frame = answers.read(struct.unpack(">i", size)[0])
                (topic,) = decode_answer(FETCH, VERSION, frame).responses
                assert whole_offsets(topic.partitions[0].records) == [0]
            with ClientConnection(address) as server:
                while (found := fetch(server, 0)).error_code == 0:
                    assert whole_offsets(found.records) == [0]
                assert found.error_code == BrokerError.OFFSET_OUT_OF_RANGE
                assert whole_offsets(fetch(server, 3).records) == [3]


def test_a_torn_tail_is_never_served_before_and_after_recovery_cuts_it(tmp_path: Path) -> None:
    with open_log(tmp_path) as directory:
        directory.partition(TOPIC, 0).append(make_batches(3))
    size = log_files(tmp_path)[-1].stat().st_size
    os.truncate(log_files(tmp_path)[-1], size - 7)
    with served(tmp_path, is_writable=False) as address, ClientConnection(address) as server:
        assert whole_offsets(fetch(server, 0).records) == [0, 3]
        with open_log(tmp_path) as directory:
            directory.partition(TOPIC, 0)
            assert whole_offsets(fetch(server, 0).records) == [0, 3]
            directory.partition(TOPIC, 0).append(make_batches(1, first=2))
            found = fetch(server, 6, wait_ms=int(DEADLINE_S * 1000))
            assert (whole_offsets(found.records), read_header(found.records).leader_epoch) == ([6], 1)


def test_a_file_that_is_cut_under_a_fetch_ends_its_connection_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_log(tmp_path) as directory:
        directory.partition(TOPIC, 0).append([make_batch([os.urandom(100_000)])])
        file_range = LogHead.file_range

        def cut_behind(head: LogHead, offset: int, size_max: int) -> Any:
            found = file_range(head, offset, size_max)
            os.truncate(log_files(tmp_path)[-1], 50_000)
            return found

        with served(tmp_path, is_writable=False) as address:
            with monkeypatch.context() as patched, ClientConnection(address) as server:
                patched.setattr(LogHead, "file_range", cut_behind)
                with pytest.raises(LogError):
                    fetch(server, 0)
            with ClientConnection(address) as server:
                assert fetch(server, 7).error_code == BrokerError.OFFSET_OUT_OF_RANGE


def test_a_topic_that_is_deleted_beside_a_server_is_unknown_to_it(tmp_path: Path) -> None:
    with open_log(tmp_path) as directory:
        directory.partition(TOPIC, 0).append(make_batches(1))
        with served(tmp_path, is_writable=False) as address, ClientConnection(address) as server:
            assert whole_offsets(fetch(server, 0).records) == [0]
            directory.delete_topic(TOPIC)
            while (found := fetch(server, 0)).error_code == 0:
                assert whole_offsets(found.records) == [0]
            assert found.error_code == BrokerError.UNKNOWN_TOPIC_OR_PARTITION


def cannot_read(_head: LogHead) -> bool:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_waiting_fetch_that_cannot_be_answered_ends_its_connection_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with open_log(tmp_path) as directory, running(tmp_path, is_writable=False) as server:
        log = directory.partition(TOPIC, 0)
        with monkeypatch.context() as patched, stranger(address_of(server)) as client:
            client.sendall(encode_request(FETCH, VERSION, request(0, wait_ms=int(2 * DEADLINE_S * 1000))))
            wait_until(lambda: bool(server._polls._parked), "the fetch waits")
            with ClientConnection(address_of(server)) as other:  # the server answers it after it has parked the fetch
                fetch(other, 0)
            patched.setattr(LogHead, "refresh", cannot_read)
            log.append(make_batches(1))
            assert answer_of(client) == b""
        with ClientConnection(address_of(server)) as other:
            assert whole_offsets(fetch(other, 0).records) == [0]
    assert "waited could not be answered: [Errno 5]" in caplog.text


def test_a_fetch_of_a_log_that_cannot_be_read_is_reported_in_the_log_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with open_log(tmp_path) as directory, served(tmp_path, is_writable=False) as address:
        directory.partition(TOPIC, 0).append(make_batches(1))
        with ClientConnection(address) as server:
            assert fetch(server, 0).error_code == 0
            monkeypatch.setattr(LogHead, "refresh", cannot_read)
            with pytest.raises(LogError):
                fetch(server, 3)
    assert "could not be answered: [Errno 5]" in caplog.text


@pytest.mark.parametrize("limits", [{}, {"min_bytes": LARGE, "wait_ms": 1}], ids=["at once", "after a wait"])
def test_pipelined_fetches_are_answered_in_order(tmp_path: Path, limits: dict[str, int]) -> None:
    with open_log(tmp_path) as directory:
        directory.partition(TOPIC, 0).append(make_batches(40))
        with served(tmp_path, is_writable=False) as address:
            host, _, port = address.partition(":")
            with socket.create_connection((host, int(port)), DEADLINE_S) as client, client.makefile("rb") as answers:
                client.sendall(b"".join(encode_request(FETCH, VERSION, request(at, **limits)) for at in range(120)))
                for offset in range(120):
                    (size,) = struct.unpack(">i", answers.read(4))
                    (topic,) = decode_answer(FETCH, VERSION, answers.read(size)).responses
                    assert whole_offsets(topic.partitions[0].records)[0] == offset - offset % 3


def test_the_partitions_of_a_session_are_served_in_turn(tmp_path: Path) -> None:
    asked = request(0, max_bytes=1)
    (first,) = asked["topics"][0]["partitions"]
    asked["topics"][0]["partitions"] = [first, {**first, "partition": 1}]
    with open_log(tmp_path, partitions=2) as directory:
        for number in range(2):
            directory.partition(TOPIC, number).append(make_batches(2))
        with served(tmp_path, is_writable=False) as address, ClientConnection(address) as server:
            answers = [server.ask(FETCH, VERSION, {**asked, "session_epoch": 0})]
            for epoch in range(1, 4):
                more = {"session_id": answers[0].session_id, "session_epoch": epoch, "topics": []}
                answers.append(server.ask(FETCH, VERSION, {**asked, **more}))
    partitions = [[one for topic in answer.responses for one in topic.partitions] for answer in answers]
    assert [[one.partition_index for one in found if one.records] for found in partitions] == [[0], [1], [0], [1]]


# --- transactions


def committed(server: ClientConnection, offset: int, **limits: int) -> Any:
    """The response for the one partition to a fetch of committed records."""
    (topic,) = server.ask(FETCH, VERSION, {**request(offset, **limits), "isolation_level": 1}).responses
    (found,) = topic.partitions
    return found


def latest(server: ClientConnection, isolation_level: int) -> int:
    """The end offset of ListOffsets."""
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    asked = {
        "replica_id": -1,
        "isolation_level": isolation_level,
        "topics": [{"name": TOPIC, "partitions": [partition]}],
    }
    return int(server.ask(2, 5, asked).topics[0].partitions[0].offset)


def test_a_fetch_of_committed_records_ends_at_the_last_stable_offset(tmp_path: Path) -> None:
    with open_log(tmp_path) as directory:
        log = directory.partition(TOPIC, 0)
        log.append([make_batch([b"plain"]), batch_of(A, 0, b"a"), batch_of(B, 0, b"b"), make_batch([b"behind"])])
        with served(tmp_path, is_writable=False) as address, ClientConnection(address) as server:
            found = committed(server, 0)
            assert whole_offsets(found.records) == [0]
            assert (found.high_watermark, found.last_stable_offset, found.aborted_transactions) == (4, 1, [])
            assert whole_offsets(fetch(server, 0).records) == [0, 1, 2, 3]
            assert not committed(server, 1).records
            assert (latest(server, 0), latest(server, 1)) == (4, 1)
            log.end_transaction(B, 0, is_commit=False)
            log.append([make_batch([b"more"])])
            assert committed(server, 1).last_stable_offset == 1
            log.end_transaction(A, 0, is_commit=True)
            found = committed(server, 1)
            assert whole_offsets(found.records) == [1, 2, 3]
            assert [(one.producer_id, one.first_offset) for one in found.aborted_transactions] == [(B, 2)]
            assert committed(server, 5).aborted_transactions == [], "the aborted transaction ended before"
            assert latest(server, 1) == 7
        # This server learns of transactions only from files.
        with served(tmp_path, is_writable=False) as address, ClientConnection(address) as server:
            found = committed(server, 0)
            assert [(one.producer_id, one.first_offset) for one in found.aborted_transactions] == [(B, 2)]
            assert found.last_stable_offset == 7


def test_a_parked_fetch_of_committed_records_is_answered_by_the_commit(tmp_path: Path) -> None:
    with open_log(tmp_path) as directory, served(tmp_path, is_writable=False) as address:
        log = directory.partition(TOPIC, 0)
        log.append([batch_of(A, 0, b"a")])
        with ClientConnection(address) as server, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(committed, server, 0, wait_ms=60_000)
            log.append([make_batch([b"plain"])])  # it wakes the fetch, which finds no record that it may return
            log.end_transaction(A, 0, is_commit=True)
            assert whole_offsets(waiting.result(DEADLINE_S).records) == [0, 1], (
                "the marker is in a segment of its own time"
            )


def test_a_client_reads_what_is_committed(tmp_path: Path) -> None:
    with open_log(tmp_path, segment_bytes=3000) as directory, served(tmp_path, is_writable=False) as address:
        log = directory.partition(TOPIC, 0)
        for sequence in range(60):
            log.append([batch_of(A, sequence, b"a%d" % sequence), batch_of(B, sequence, b"b%d" % sequence)])
            log.end_transaction(A, 0, is_commit=sequence % 3 == 0)
            log.end_transaction(B, 0, is_commit=sequence % 3 == 1)
        log.append([make_batch([b"end"]), batch_of(A, 60, b"open")])
        expected = {b"a%d" % each for each in range(0, 60, 3)} | {b"b%d" % each for each in range(1, 60, 3)} | {b"end"}
        settings = {"bootstrap.servers": address, "group.id": "g", "enable.partition.eof": True, "check.crcs": True}
        consumer = confluent_kafka.Consumer({**settings, "isolation.level": "read_committed"})
        try:
            consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
            found = set()
            while (message := consumer.poll(DEADLINE_S)) is not None and message.error() is None:
                found.add(message.value())
        finally:
            consumer.close()
        assert found == expected
