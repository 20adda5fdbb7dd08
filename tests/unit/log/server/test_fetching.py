# SPDX-License-Identifier: Apache-2.0
"""C decodes and encodes Fetch as kafka-python does, in every version."""

from __future__ import annotations

import math
import random
import struct
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.consumer.fetch import FetchRequest as KafkaFetchRequest
from kafka.protocol.consumer.fetch import FetchResponse as KafkaFetchResponse

from shmaccum._native import read_fetch, write_fetch
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.log_file import FileRange, LogFile
from shmaccum.log.server import long_poll
from shmaccum.log.server.fetch import is_enough
from shmaccum.log.server.fetch_frames import (
    FetchRequest,
    PartitionRecords,
    Wanted,
    read_request,
    write_response,
)
from shmaccum.log.server.messages import BadFrameError, Request
from shmaccum.log.server.sessions import Session
from shmaccum.log.server.steps import take_all

VERSIONS = range(4, 18)


def topic_key(version: int, number: int) -> str | bytes:
    return uuid.UUID(int=number + 1).bytes if version >= 13 else f"topic-{number}"


def topic_field(version: int, number: int) -> dict[str, Any]:
    key = topic_key(version, number)
    return {"topic_id": uuid.UUID(bytes=key)} if isinstance(key, bytes) else {"topic": key}


def kafka_request(version: int) -> Any:
    request_type: Any = KafkaFetchRequest
    topic_type, partition_type = request_type.FetchTopic, request_type.FetchTopic.FetchPartition
    more: dict[str, Any] = {}
    if version >= 7:
        forgotten = request_type.ForgottenTopic(version=version, partitions=[7, 8], **topic_field(version, 5))
        more |= {"session_id": 11, "session_epoch": 12, "forgotten_topics_data": [forgotten]}
    if version >= 11:
        more["rack_id"] = "here"

    def partition(number: int) -> Any:
        extra = {"current_leader_epoch": 3} if version >= 9 else {}
        extra |= {"last_fetched_epoch": -1} if version >= 12 else {}
        extra |= {"log_start_offset": -1} if version >= 5 else {}
        values = {"partition": number, "fetch_offset": 100 + number, "partition_max_bytes": 1 << number}
        return partition_type(version=version, **values, **extra)

    topics = [
        topic_type(
            version=version, partitions=[partition(each) for each in range(number + 1)], **topic_field(version, number)
        )
        for number in range(3)
    ]
    return request_type(
        version=version, max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, isolation_level=1, topics=topics, **more
    )


def as_request(version: int) -> Request:
    return Request(1, version, 77, "client", memoryview(bytes(kafka_request(version).encode(version=version))))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_is_read_field_by_field(version: int) -> None:
    found = read_request(as_request(version))
    assert found[:4] == (500, 1, 1 << 20, 1)
    assert (found.session_id, found.session_epoch) == ((11, 12) if version >= 7 else (0, -1))
    epoch = 3 if version >= 9 else -1
    assert found.wanted == [
        Wanted(topic_key(version, topic), number, 100 + number, 1 << number, epoch)
        for topic in range(3)
        for number in range(topic + 1)
    ]
    assert found.forgotten == ([(topic_key(version, 5), 7), (topic_key(version, 5), 8)] if version >= 7 else [])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_that_is_cut_anywhere_is_refused(version: int) -> None:
    request = as_request(version)
    for size in range(len(request.body)):
        with pytest.raises(BadFrameError):
            read_request(request._replace(body=request.body[:size]))
    with pytest.raises(BadFrameError, match="are used"):
        read_request(request._replace(body=memoryview(bytes(request.body) + b"\0")))


@pytest.mark.parametrize("version", VERSIONS)
def test_hostile_bytes_are_refused_or_read_and_never_more(version: int, seeded: Callable[[], random.Random]) -> None:
    dice = seeded()
    request = as_request(version)
    for _ in range(1000):
        body = bytearray(request.body)
        for _ in range(dice.randrange(1, 4)):
            body[dice.randrange(len(body))] = dice.choice([0, 0x7F, 0x80, 0xFF, dice.randrange(256)])
        try:
            found = read_request(request._replace(body=memoryview(bytes(body))))
        except BadFrameError:
            continue
        assert len(found.wanted) <= len(body)


@pytest.mark.parametrize(
    ("count", "sentence"),
    [(50_001, "an array of 50001 elements"), (2**31 - 1, "an array of 2147483647 elements"), (-1, "is null")],
)
def test_a_request_has_a_bounded_number_of_partitions(count: int, sentence: str) -> None:
    limits = struct.pack(">iiiibii", -1, 0, 0, 0, 0, 0, 0)
    topic = struct.pack(">ih1si", 1, 1, b"t", count)
    partitions = struct.pack(">iiqqi", 0, -1, 0, 0, 0) * 50_001
    body = limits + topic + partitions + struct.pack(">ih", 0, 0)
    with pytest.raises(BadFrameError, match=sentence):
        read_request(Request(1, 11, 1, "", memoryview(body)))


def test_a_request_with_tags_is_read_and_one_with_too_many_is_refused() -> None:
    def request(tags: bytes) -> Request:
        body = bytes(as_request(17).body)
        return Request(1, 17, 1, "", memoryview(body[:-1] + tags))

    assert read_request(request(b"\x02\x00\x01x\x01\x00")).max_wait_ms == 500
    for tags in (b"\x21" + b"\x00\x00" * 33, b"\x01\x00\x05x", b"\x01\x00\xff\xff\xff\xff\x0f", b"\xff" * 6):
        with pytest.raises(BadFrameError):
            read_request(request(tags))


@pytest.mark.parametrize("version", VERSIONS)
def test_records_stand_as_ranges_between_the_bytes_of_an_answer(version: int, tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_bytes(b"x" * 300)
    file = LogFile(str(path))
    keys = [topic_key(version, number) for number in (0, 1, 0)]
    found = [
        PartitionRecords(Wanted(key, number, 0, 100, -1), BrokerError.NONE, 9, 0, FileRange(file, 0, 100 + number))
        for number, key in enumerate(keys)
    ]
    pieces = write_response(as_request(version), found)
    ranges = [piece for piece in pieces if isinstance(piece, FileRange)]
    assert [piece is one.records for piece, one in zip(ranges, found, strict=True)] == [True] * 3
    frame = b"".join(b"x" * piece.size if isinstance(piece, FileRange) else piece for piece in pieces)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    response_type: Any = KafkaFetchResponse
    answer = response_type.decode(frame[4:], version=version, header=True)
    assert [topic.topic_id.bytes if version >= 13 else topic.topic for topic in answer.responses] == keys
    assert [len(one.records) for topic in answer.responses for one in topic.partitions] == [100, 101, 102]


def test_objects_that_are_no_findings_are_refused() -> None:
    wanted = Wanted("t", 0, 0, 100, -1)
    whole = PartitionRecords(wanted, BrokerError.NONE)
    aborted: Any
    for aborted in (None, [], (1,), ((1,),), ((1, "x"),), ((1, 2**63),)):
        with pytest.raises((TypeError, OverflowError)):
            write_fetch(12, 1, 0, 0, [whole._replace(aborted=aborted)])
    for one in (None, (), whole[:6], (*whole[:4], b"bytes", -1, ()), (("t",), *whole[1:])):
        with pytest.raises(TypeError):
            write_fetch(12, 1, 0, 0, [one])  # type: ignore[list-item]
    for topic in ("t" * 40_000, b"short", 5):
        asked = wanted._replace(topic=topic)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            write_fetch(12, 1, 0, 0, [PartitionRecords(asked, BrokerError.NONE)])
    with pytest.raises(TypeError, match="list"):
        write_fetch(12, 1, 0, 0, ())
    with pytest.raises(TypeError, match="subclasses of tuple"):
        read_fetch(b"", 12, list, Wanted)  # type: ignore[type-var]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_is_what_kafka_reads(version: int) -> None:
    wanted = [Wanted(topic_key(version, topic), number, 5, 100, -1) for topic in range(2) for number in range(2)]
    errors = [BrokerError.NONE, BrokerError.OFFSET_OUT_OF_RANGE, BrokerError.NONE, BrokerError.CORRUPT_MESSAGE]
    found = [
        PartitionRecords(
            one, error, 900 + number, 10 + number, None, 800 + number, ((77, number), (78, 9)) if number else ()
        )
        for number, (one, error) in enumerate(zip(wanted, errors, strict=True))
    ]
    (frame,) = write_response(as_request(version), found, session_id=99 if version >= 7 else 0)
    assert isinstance(frame, bytes)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    response_type: Any = KafkaFetchResponse
    answer = response_type.decode(bytes(frame[4:]), version=version, header=True)
    assert answer.header.correlation_id == 77
    assert version < 7 or answer.session_id == 99
    partitions = [(topic, one) for topic in answer.responses for one in topic.partitions]
    assert [topic.topic_id.bytes if version >= 13 else topic.topic for topic, _ in partitions] == [
        one.topic for one in wanted
    ]
    assert [one.partition_index for _, one in partitions] == [0, 1, 0, 1]
    assert [one.error_code for _, one in partitions] == errors
    assert [one.high_watermark for _, one in partitions] == [900, 901, 902, 903]
    assert [one.last_stable_offset for _, one in partitions] == [800, 801, 802, 803]
    assert [[(each.producer_id, each.first_offset) for each in one.aborted_transactions] for _, one in partitions] == [
        list(one.aborted) for one in found
    ]
    assert version < 5 or [one.log_start_offset for _, one in partitions] == [10, 11, 12, 13]
    assert [bytes(one.records) for _, one in partitions] == [b""] * 4


@pytest.mark.parametrize(("sizes", "expected"), [([99], False), ([100], True), ([60, 40], True), ([60, 39], False)])
def test_a_fetch_waits_for_as_many_bytes_as_it_asks_for(tmp_path: Path, sizes: list[int], expected: bool) -> None:
    (tmp_path / "file").touch()
    file = LogFile(str(tmp_path / "file"))
    wanted = Wanted("flights", 0, 0, 1 << 20, -1)
    found = [PartitionRecords(wanted, BrokerError.NONE, records=FileRange(file, 0, size)) for size in sizes]
    assert is_enough(FetchRequest(500, 100, 1 << 20, 0, 0, -1, [], []), found) is expected


@pytest.mark.parametrize(("partitions_max", "is_parked"), [(5, False), (6, True)])
def test_a_fetch_of_too_many_partitions_is_answered_at_once(
    monkeypatch: pytest.MonkeyPatch, partitions_max: int, is_parked: bool
) -> None:
    monkeypatch.setattr(long_poll, "PARKED_PARTITIONS_MAX", partitions_max)
    topics: Any = SimpleNamespace(head=lambda *_place: None)
    poll = long_poll.LongPoll(topics, lambda: None, has_reports=True)
    call: Any = type("FakeCall", (), {"began_s": 0.0})()
    fetch = long_poll.Fetch(call, read_request(as_request(4)), None)
    assert len(fetch.wanted) == 6
    fetch.may_have_grown = False
    take_all(poll.park(fetch))
    assert (call in poll._parked) is is_parked
    assert fetch.deadline_s == (0.5 if is_parked else -math.inf)
    assert fetch.may_have_grown is not is_parked


def test_a_session_repeats_an_error_and_no_partition_that_has_not_changed() -> None:
    same, wrong = (Wanted("flights", partition, 0, 100, -1) for partition in range(2))
    session = Session(7, [same, wrong])
    found = [
        PartitionRecords(same, BrokerError.NONE, 5, 0),
        PartitionRecords(wrong, BrokerError.OFFSET_OUT_OF_RANGE, 5, 0),
    ]
    assert session.changes(found) == found
    assert session.changes(found) == found[1:]
    assert session.changes([found[0]._replace(end_offset=6)]) == [found[0]._replace(end_offset=6)]
