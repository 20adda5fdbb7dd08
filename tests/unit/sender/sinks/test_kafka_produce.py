# SPDX-License-Identifier: Apache-2.0
"""The Produce request has the bytes of kafka-python's encoder. Every row of the error table is tested."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from kafka import errors as library_errors
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from shmaccum._native import ProduceRequest as NativeRequest
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.log.files.log_file import FileRange, LogFile
from shmaccum.sender.sinks.kafka.delivery import Topic
from shmaccum.sender.sinks.kafka.errors import TREATMENTS, Action, sentence, treatment
from shmaccum.sender.sinks.kafka.produce import VERSION_MAX, VERSION_MIN, version_for

FLIGHTS, HOPS = uuid.UUID(int=17), uuid.UUID(int=4)
CLIENT_ID = "shmaccum-äöü"
CORRELATION_ID = 2**31 - 1
VERSIONS = range(VERSION_MIN, VERSION_MAX + 1)

TOPICS: tuple[Topic, ...] = (
    ("flights", FLIGHTS.bytes, (0, 300), ((b"a" * 61, b"b" * 200), (memoryview(b"c" * 20_000),))),
    ("hops", HOPS.bytes, (1,), ((b"d" * 63,),)),
)


def request_of(
    version: int, topics: tuple[Topic, ...] = TOPICS, acks: int = -1, transactional_id: str | None = None
) -> NativeRequest:
    request = NativeRequest(version, CLIENT_ID, acks, 30_000, topics, transactional_id)
    request.begin(CORRELATION_ID)
    return request


def written(request: NativeRequest) -> bytes:
    """Return all bytes, read in TLS records."""
    data = b""
    while not request.is_written:
        peeked = request.peek()
        data += peeked
        request.skip(len(peeked))
    return data


def in_memory(piece: bytes | memoryview | FileRange) -> bytes | memoryview:
    """The bytes of a piece of a batch."""
    return os.pread(piece.file.fileno(), piece.size, piece.position) if isinstance(piece, FileRange) else piece


def encoded_by_the_library(version: int, topics: tuple[Topic, ...], transactional_id: str | None = None) -> bytes:
    kind = ProduceRequest.TopicProduceData
    request: Any = ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            kind(
                name=name,
                topic_id=None if topic_id is None else uuid.UUID(bytes=topic_id),
                partition_data=[
                    kind.PartitionProduceData(index=partition, records=b"".join(map(in_memory, buffers)))
                    for partition, buffers in zip(partitions, bodies, strict=True)
                ],
            )
            for name, topic_id, partitions, bodies in topics
        ],
    )
    request.API_VERSION = version
    request.with_header(correlation_id=CORRELATION_ID, client_id=CLIENT_ID)
    return bytes(request.encode(header=True, framed=True))


def many_batches(count: int, size: int) -> tuple[Topic, ...]:
    return (("flights", FLIGHTS.bytes, tuple(range(count)), tuple((bytes([n & 255]) * size,) for n in range(count))),)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "topics",
    [TOPICS, TOPICS[1:], many_batches(130, 61), many_batches(1, 16_383), many_batches(1, 16_384)],
    ids=["many topics", "one", "many batches", "two bytes of size", "three"],
)
def test_the_request_is_the_library_s_to_the_last_byte(version: int, topics: tuple[Topic, ...]) -> None:
    request = request_of(version, topics)
    expected = encoded_by_the_library(version, topics)
    assert request.size == len(expected)
    assert written(request) == expected


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("transactional_id", ["nightly", "flüge-1", "", "x" * 300])
def test_a_request_of_a_transaction_is_the_library_s_to_the_last_byte(version: int, transactional_id: str) -> None:
    request = request_of(version, TOPICS, transactional_id=transactional_id)
    assert written(request) == encoded_by_the_library(version, TOPICS, transactional_id)


def test_a_transactional_id_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError):
        request_of(VERSION_MAX, TOPICS, transactional_id=7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="too long for a request"):
        request_of(VERSION_MAX, TOPICS, transactional_id="x" * 32_768)


@pytest.mark.parametrize("version", [VERSION_MIN, VERSION_MAX])
def test_it_is_sent_in_parts_to_a_socket_that_is_full(version: int) -> None:
    topics = many_batches(1_500, 700)  # more pieces than one sendmsg takes
    request = request_of(version, topics)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        received = b""
        while not request.is_written:
            sent = request.send(ours.fileno())
            if not request.is_written:
                assert request.send(ours.fileno()) == 0
            received += theirs.recv(sent, socket.MSG_WAITALL)
    assert received == encoded_by_the_library(version, topics)


@pytest.fixture
def file(tmp_path: Path) -> LogFile:
    """A file of 300,000 bytes."""
    path = tmp_path / "file"
    path.write_bytes(bytes(range(250)) * 1200)
    return LogFile(str(path))


@pytest.mark.parametrize("version", [VERSION_MIN, VERSION_MAX])
def test_pieces_of_a_file_are_sent_between_buffers(version: int, file: LogFile) -> None:
    pieces = [FileRange(file, 61, 200_000), FileRange(file, 7, 0), FileRange(file, 299_999, 1)]
    in_files: tuple[Topic, ...] = (("flights", FLIGHTS.bytes, (0, 1), ((b"a" * 61, pieces[0]), (b"b", *pieces[1:]))),)
    request = request_of(version, in_files)
    received = bytearray()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        while not request.is_written:
            sent = request.send(ours.fileno())
            received += theirs.recv(sent, socket.MSG_WAITALL)
    assert received == encoded_by_the_library(version, in_files)
    assert len(received) == request.size


def test_a_file_is_held_open_until_the_request_lets_go_of_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 10)
    piece = FileRange(LogFile(str(tmp_path / "file")), 0, 10)
    descriptor = piece.file.fileno()
    request = request_of(12, (("flights", None, (0,), ((piece,),)),))
    del piece
    os.fstat(descriptor)
    request.release()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_file_that_is_shorter_than_its_piece_ends_the_request(file: LogFile) -> None:
    request = request_of(12, (("flights", None, (0,), ((FileRange(file, 299_000, 2_000),),)),))
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        request.send(ours.fileno())
        with pytest.raises(OSError, match="No data"):
            request.send(ours.fileno())


def test_a_piece_of_a_file_is_not_for_tls(file: LogFile) -> None:
    request = request_of(12, (("flights", None, (0,), ((FileRange(file, 0, 10),),)),))
    with pytest.raises(ValueError, match="plain socket"):
        request.peek()
    with pytest.raises(ValueError, match="plain socket"):
        request.skip(1)


def test_a_socket_that_is_closed_is_an_error() -> None:
    request = request_of(VERSION_MAX)
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(BrokenPipeError):
        request.send(ours.fileno())
    with pytest.raises(OSError, match="Bad file descriptor"):
        request.send(ours.fileno() + 10_000 if ours.fileno() >= 0 else 10_000)


def test_buffers_are_held_until_the_last_byte_was_written_or_the_request_is_released() -> None:
    lent = [memoryview(b"x" * 100) for _ in range(2)]
    topics: tuple[Topic, ...] = (("flights", None, (0, 1), ((lent[0],), (lent[1],))),)
    to_write, to_release = request_of(12, topics), request_of(12, topics)
    for request, end in ((to_write, lambda: written(to_write)), (to_release, to_release.release)):
        with pytest.raises(BufferError):
            lent[0].release()
        end()
        assert request.is_written
    for view in lent:
        view.release()


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"version": 2}, InvalidArgumentError),
        ({"version": 14}, InvalidArgumentError),
        ({"acks": 2}, InvalidArgumentError),
        ({"topics": (("flights", None, (0,), ((b"x",),)),)}, ValueError),
        ({"topics": (("flights", b"short", (0,), ((b"x",),)),)}, ValueError),
        ({"topics": (("f" * 40_000, FLIGHTS.bytes, (0,), ((b"x",),)),)}, ValueError),
        ({"topics": (("flights", FLIGHTS.bytes, (0, 1), ((b"x",),)),)}, TypeError),
        ({"topics": (("flights", FLIGHTS.bytes, (-1,), ((b"x",),)),)}, InvalidArgumentError),
        ({"topics": (("flights", FLIGHTS.bytes, (0,), (b"x",)),)}, TypeError),
        ({"topics": (("flights", FLIGHTS.bytes, (0,), (("x",),)),)}, TypeError),
        ({"topics": (b"flights",)}, TypeError),
        ({"topics": (("flights", FLIGHTS.bytes, (0,), (((0, 1),),)),)}, TypeError),
        ({"topics": (("flights", FLIGHTS.bytes, (0,), ((("no file", 0, 1),),)),)}, TypeError),
        ({"topics": (("flights", FLIGHTS.bytes, (0,), (((0, -1, 1),),)),)}, InvalidArgumentError),
        ({"topics": (("flights", FLIGHTS.bytes, (0,), (((0, 0, 2**31),),)),)}, InvalidArgumentError),
    ],
)
def test_what_is_no_request_is_refused(changed: dict[str, Any], error: type[Exception]) -> None:
    given = {"version": 13, "client": CLIENT_ID, "acks": 1, "timeout_ms": 1, "topics": TOPICS, **changed}
    with pytest.raises(error):
        NativeRequest(**given)


def test_the_newest_common_version_is_chosen_and_ids_only_when_all_are_known() -> None:
    assert version_for((0, 13), has_topic_ids=True) == 13
    assert version_for((0, 20), has_topic_ids=True) == 13
    assert version_for((0, 13), has_topic_ids=False) == 12
    assert version_for((3, 9), has_topic_ids=True) == 9


# --- errors

# Kafka's class, if kafka-python's differs: CorruptRecordException is retriable in Kafka.
RETRIABLE_IN_KAFKA = {2}
OF_SEQUENCES = {45, 46, 47, 59}


@pytest.mark.parametrize("code", [code for code in TREATMENTS if code != 0])
def test_a_row_agrees_with_the_class_of_the_error(code: int) -> None:
    row, kind = treatment(code), library_errors.for_code(code)
    is_retriable = issubclass(kind, library_errors.RetriableError) or code in RETRIABLE_IN_KAFKA
    if code not in OF_SEQUENCES | {10}:
        assert (row.action is Action.RETRY) == is_retriable, kind
    assert row.is_metadata_stale == issubclass(kind, library_errors.InvalidMetadataError)
    assert row.sentence


def test_every_error_of_the_produce_path_has_a_row() -> None:
    of_the_reference = {-1, 2, 3, 5, 6, 7, 9, 10, 13, 14, 15, 16, 17, 18, 19, 20, 21, 29, 31, 32, 35, 43, 45, 46, 47}
    of_the_reference |= {48, 49, 51, 53, 56, 59, 74, 75, 76, 87, 89, 90, 100, 103, 120}
    assert of_the_reference <= set(TREATMENTS)


def test_an_unknown_error_is_refused_by_its_number() -> None:
    assert treatment(9_999).action is Action.REFUSE
    assert "ERROR_9999" in sentence(9_999)
    assert sentence(17, "no!").endswith("(broker: no!)")


# --- responses

PARTITION = ProduceResponse.TopicProduceResponse.PartitionProduceResponse


def encoded_answer(version: int, topics: Sequence[Any]) -> bytes:
    """The library's bytes, from the correlation id."""
    response: Any = ProduceResponse(responses=topics, throttle_time_ms=7)
    response.API_VERSION = version
    response.with_header(correlation_id=CORRELATION_ID)
    return bytes(response.encode(header=True, framed=True))[4:]


def partition_answer(index: int) -> Any:
    return PARTITION(index=index, base_offset=2**40 + index, log_append_time_ms=index - 1, log_start_offset=0)


def answer_to(version: int, **changed: Any) -> bytes:
    """A response for TOPICS."""
    kind = ProduceResponse.TopicProduceResponse
    partitions = [partition_answer(index) for index in (0, 300, 1)]
    for name, value in changed.items():
        setattr(partitions[1], name, value)
    topics = [
        kind(name="flights", topic_id=FLIGHTS, partition_responses=partitions[1::-1]),
        kind(name="hops", topic_id=HOPS, partition_responses=partitions[2:]),
    ]
    return encoded_answer(version, topics[::-1])


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_in_which_all_is_well_is_read_in_the_request_s_order(version: int) -> None:
    request = request_of(version)
    expected = (7, [2**40, 2**40 + 300, 2**40 + 1], [-1, 299, 0])
    assert request.read_answer(answer_to(version)) == expected
    written(request)
    assert request.read_answer(memoryview(answer_to(version))) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_whatever_order_an_answer_has_it_is_read_in_the_request_s(version: int, seeded: Callable[[], Random]) -> None:
    """Apache Kafka's responses have the order of its hash maps."""
    random = seeded()
    indices = {f"topic-{number}": range(0, 7 * (1 + number * number), 7) for number in range(20)}
    ids = {name: uuid.UUID(int=number + 1) for number, name in enumerate(indices)}
    request = request_of(
        version, tuple((name, ids[name].bytes, tuple(own), ((b"x",),) * len(own)) for name, own in indices.items())
    )
    answered = [
        ProduceResponse.TopicProduceResponse(
            name=name,
            topic_id=ids[name],
            partition_responses=[partition_answer(index) for index in random.sample(own, len(own))],
        )
        for name, own in random.sample(list(indices.items()), len(indices))
    ]
    expected = [2**40 + index for own in indices.values() for index in own]
    assert request.read_answer(encoded_answer(version, answered)) == (7, expected, [at - 2**40 - 1 for at in expected])


@pytest.mark.parametrize(
    ("changed", "since"),
    [
        ({"error_code": 6}, 3),
        ({"index": 7}, 3),
        ({"error_message": "no"}, 8),
        ({"record_errors": [PARTITION.BatchIndexAndErrorMessage(0, "no")]}, 8),
        ({"current_leader": PARTITION.LeaderIdAndEpoch(1, 2)}, 10),
    ],
)
def test_any_other_answer_is_left_to_the_library(changed: dict[str, Any], since: int) -> None:
    for version in range(since, VERSION_MAX + 1):
        assert request_of(version).read_answer(answer_to(version, **changed)) is None


def test_an_answer_to_another_request_is_left_to_the_library() -> None:
    request = request_of(13)
    request.begin(1)
    assert request.read_answer(answer_to(13)) is None
    assert request_of(13, many_batches(3, 61)).read_answer(answer_to(13)) is None
    assert request_of(13, TOPICS[1:]).read_answer(answer_to(13)) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_half_an_answer_or_more_than_one_is_left_to_the_library(version: int) -> None:
    request, whole = request_of(version), answer_to(version)
    assert all(request.read_answer(whole[:size]) is None for size in range(len(whole)))
    assert request.read_answer(whole + b"\0") is None
    others = [other for other in VERSIONS if answer_to(other) != whole]
    assert all(request.read_answer(answer_to(other)) is None for other in others)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_hostile_answer_is_never_read_beyond_its_end(version: int, seeded: Callable[[], Random]) -> None:
    """The result covers the requested partitions. ``tests/fuzz`` checks reads out of bounds."""
    random, request, whole = seeded(), request_of(version), answer_to(version)
    for _ in range(2_000):
        changed = bytearray(whole)
        for _ in range(random.randint(1, 4)):
            changed[random.randrange(len(changed))] = random.choice((0, 1, 0x7F, 0x80, 0xFF))
        size = random.choice((len(changed), random.randrange(len(changed))))
        found = request.read_answer(bytes(changed[:size]))
        assert found is None or [len(column) for column in found[1:]] == [3, 3]
