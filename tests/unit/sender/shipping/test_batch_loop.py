# SPDX-License-Identifier: Apache-2.0
"""The native rounds of a shipper against a peer on a socket pair: requests, responses, hostile bytes."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shmaccum._native import run_batch_loop
from shmaccum.common.format.batch_header import (
    HEADER_SIZE,
    LOG_APPEND_TIME,
    BatchHeader,
    crc_problem,
    read_header,
    sealed_header,
)
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files import LogReader
from shmaccum.log.files.log_file import LogFile
from shmaccum.log.files.shipping_positions import PositionsFile, Shipped, ShippedPosition, ShippedTo, read_shipped
from shmaccum.sender.sinks.stream_end import NOT_SYNCED, StreamEnd, StreamState
from tests.support.processes import WATCHDOG_S
from tests.support.segment_log import TOPIC, log_files, make_batches, open_log

PRODUCER_ID, EPOCH, ORIGIN = 4711, 3, 0
BATCH_COUNT, RECORD_COUNT = 40, 3
OFFSET_MAX = 2**63 - 1
VERSION = 7
"""The last version without varints. This module encodes its responses and decodes its requests."""
HEAD = struct.Struct(">hhi")
UNKNOWN_TOPIC, NOT_LEADER = 3, 6
CORRUPT_MESSAGE = 2


class Arrived(NamedTuple):
    """A batch that the peer received."""

    partition: int
    header: BatchHeader
    content: bytes


class Peer(threading.Thread):
    """A broker with one connection, which responds to each Produce request by a function."""

    def __init__(self, connection: socket.socket, answer: Callable[[int, list[Arrived]], bytes | None]) -> None:
        super().__init__(daemon=True)
        self.arrived: list[Arrived] = []
        self._connection = connection
        self._answer = answer

    def run(self) -> None:
        with contextlib.suppress(OSError), self._connection:
            while frame := self._frame():
                _, _, correlation = HEAD.unpack_from(frame)
                batches = list(_batches(frame))
                self.arrived += batches
                answer = self._answer(correlation, batches)
                if answer is None:
                    return
                self._connection.sendall(answer)

    def _frame(self) -> bytes:
        size = self._exactly(4)
        return self._exactly(struct.unpack(">i", size)[0]) if size else b""

    def _exactly(self, size: int) -> bytes:
        content = b""
        while len(content) < size:
            content += (some := self._connection.recv(size - len(content)))
            if not some:
                return b""
        return content


def _batches(frame: bytes) -> Iterator[Arrived]:
    """The batches of a request for one topic."""
    (client_size,) = struct.unpack_from(">h", frame, HEAD.size)
    place = HEAD.size + 2 + client_size + 2 + 2 + 4 + 4
    (name_size,) = struct.unpack_from(">h", frame, place)
    assert frame[place + 2 : place + 2 + name_size] == TOPIC.encode()
    place += 2 + name_size
    (count,) = struct.unpack_from(">i", frame, place)
    place += 4
    for _ in range(count):
        partition, size = struct.unpack_from(">ii", frame, place)
        content = frame[place + 8 : place + 8 + size]
        assert len(content) == size
        yield Arrived(partition, read_header(content), content)
        place += 8 + size
    assert place == len(frame)


def answer_of(correlation: int, partitions: list[tuple[int, int]], throttle_ms: int = 0) -> bytes:
    """Return the frame of a response with the (partition, error code) of each batch."""
    rows = b"".join(struct.pack(">ihqqq", partition, code, 5, -1, 0) for partition, code in partitions)
    name = struct.pack(">h", len(TOPIC)) + TOPIC.encode()
    body = struct.pack(">ii", correlation, 1) + name + struct.pack(">i", len(partitions)) + rows
    body += struct.pack(">i", throttle_ms)
    return struct.pack(">i", len(body)) + body


def all_well(correlation: int, batches: list[Arrived]) -> bytes:
    return answer_of(correlation, [(batch.partition, 0) for batch in batches])


class Outcome(NamedTuple):
    """The outcome of a loop."""

    streams: list[StreamEnd]
    is_broken: bool
    throttle_ms: int
    has_failed: bool


class Track:
    """A log of some partitions, a peer, and the positions."""

    def __init__(self, path: Path, partition_count: int = 1) -> None:
        self.path = path
        with open_log(path) as directory:
            directory.create_topic(TOPIC, partition_count)
            for partition in range(partition_count):
                directory.partition(TOPIC, partition).append(make_batches(BATCH_COUNT))
        self.places = [TopicPartition(TOPIC, partition) for partition in range(partition_count)]
        shipped = Shipped(positions={place: ShippedPosition(0, EPOCH, ORIGIN) for place in self.places})
        (path / ".shipping").mkdir()
        self.positions = PositionsFile(str(path), shipped, ShippedTo("kafka:x", "00", PRODUCER_ID, None))
        self.wake_read_fd, self.wake_write_fd = os.pipe()

    def close(self) -> None:
        os.close(self.wake_read_fd)
        os.close(self.wake_write_fd)
        self.positions.close()

    def ship(
        self,
        answer: Callable[[int, list[Arrived]], bytes | None] = all_well,
        *,
        request_size_max: int = 1 << 20,
        time_ms: int = 600_000,
        descriptor: int | None = None,
        limit: int = OFFSET_MAX,
        found: list[Any] | None = None,
    ) -> tuple[Outcome, list[Arrived]]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        peer = Peer(theirs, answer)
        peer.start()
        files = [LogFile(str(self.path / str(place) / f"{0:020}.log")) for place in self.places]
        streams = tuple(
            (
                TOPIC,
                None,
                place.partition,
                file,
                0,
                0,
                limit,
                NOT_SYNCED,
                PRODUCER_ID,
                EPOCH,
                ORIGIN,
                -1,
                f'"{place}"'.encode(),
                b'""',
            )
            for place, file in zip(self.places, files, strict=True)
        )
        links = ((ours.fileno(), VERSION, "batch loop", -1, 5, request_size_max, len(streams)),)
        kept = self.positions.descriptor if descriptor is None else descriptor
        told: list[Any] = [] if found is None else found
        size = self.positions.shipped.size
        with ours:
            run_batch_loop(links, streams, told, kept, size, 1 << 30, self.wake_read_fd, time_ms, 60_000)
        peer.join(WATCHDOG_S)
        assert not peer.is_alive()
        reports, ((is_broken, throttle_ms, *_),), (_, has_failed) = told
        return Outcome(
            [StreamEnd.of(index, each) for index, each in enumerate(reports)], is_broken, throttle_ms, has_failed
        ), peer.arrived

    def on_disk(self) -> dict[TopicPartition, ShippedPosition]:
        return read_shipped(str(self.path)).positions


@pytest.fixture
def track(tmp_path: Path) -> Iterator[Track]:
    with contextlib.closing(Track(tmp_path / "log")) as track:
        yield track


def test_every_batch_arrives_with_the_shippers_producer_and_its_position_is_on_disk(tmp_path: Path) -> None:
    with contextlib.closing(Track(tmp_path / "log", 3)) as track:
        outcome, arrived = track.ship(request_size_max=1000)
        positions = track.on_disk()
    assert [stream.state for stream in outcome.streams] == [StreamState.ENDS] * 3
    assert not outcome.is_broken
    for place in track.places:
        made = list(LogReader(track.path).partition(*place).batches())
        come = [each for each in arrived if each.partition == place.partition]
        assert [each.content[HEADER_SIZE:] for each in come] == [bytes(batch.view[HEADER_SIZE:]) for batch in made]
        assert [each.header.base_sequence for each in come] == [batch.base_offset for batch in made]
        assert {(each.header.producer_id, each.header.producer_epoch) for each in come} == {(PRODUCER_ID, EPOCH)}
        assert all(crc_problem(each.header, memoryview(each.content)) is None for each in come)
        assert positions[place] == ShippedPosition(
            BATCH_COUNT * RECORD_COUNT, EPOCH, ORIGIN, made[-1].header.leader_epoch
        )
    stream = outcome.streams[0]
    assert (stream.delivered.record_count, stream.delivered.size) == (BATCH_COUNT * RECORD_COUNT, stream.byte)


def test_a_stream_stops_in_front_of_its_limit(track: Track) -> None:
    outcome, arrived = track.ship(limit=7 * RECORD_COUNT)
    assert outcome.streams[0][:2] == (StreamState.ENDS, 7 * RECORD_COUNT)
    assert len(arrived) == 7


def test_the_window_fills_before_any_answer_and_never_grows_beyond_it(track: Track) -> None:
    outcome, arrived = track.ship(in_fives(5))
    assert outcome.streams[0].offset == BATCH_COUNT * RECORD_COUNT
    assert len(arrived) == BATCH_COUNT


def in_fives(window: int) -> Callable[[int, list[Arrived]], bytes]:
    """Respond only after *window* requests have arrived. A smaller send window would never send that many."""
    held: list[bytes] = []

    def answer(correlation: int, batches: list[Arrived]) -> bytes:
        held.append(all_well(correlation, batches))
        if len(held) < window:
            return b""
        told = b"".join(held)
        held.clear()
        return told

    return answer


@pytest.mark.parametrize("code", [UNKNOWN_TOPIC, NOT_LEADER, CORRUPT_MESSAGE])
def test_an_error_breaks_the_stream_at_what_was_acked_before_it(track: Track, code: int) -> None:
    def answer(correlation: int, batches: list[Arrived]) -> bytes:
        return answer_of(correlation, [(batch.partition, code if correlation >= 7 else 0) for batch in batches])

    outcome, _ = track.ship(answer)
    assert outcome.streams[0][:2] == (StreamState.BROKEN, 7 * RECORD_COUNT)
    assert not outcome.is_broken
    assert track.on_disk()[track.places[0]].offset == 7 * RECORD_COUNT


def test_a_connection_that_ends_breaks_the_link(track: Track) -> None:
    outcome, _ = track.ship(lambda correlation, batches: all_well(correlation, batches) if correlation < 3 else None)
    assert outcome.is_broken
    assert outcome.streams[0].state == StreamState.BROKEN
    assert outcome.streams[0].offset in range(0, 3 * RECORD_COUNT + 1, RECORD_COUNT)  # a reset may overtake responses


def test_a_broker_that_wants_a_pause_gets_no_further_request(track: Track) -> None:
    def answer(correlation: int, batches: list[Arrived]) -> bytes:
        return answer_of(correlation, [(batch.partition, 0) for batch in batches], throttle_ms=250)

    outcome, arrived = track.ship(answer)
    assert outcome.throttle_ms == 250
    assert outcome.streams[0].state == StreamState.GOES
    assert len(arrived) <= 6


def test_a_wake_up_ends_a_batch_loop_with_nothing_in_flight(track: Track) -> None:
    def answer(correlation: int, batches: list[Arrived]) -> bytes:
        if correlation == 2:
            os.write(track.wake_write_fd, b"x")
        return all_well(correlation, batches)

    outcome, arrived = track.ship(answer)
    assert outcome.streams[0].offset == len(arrived) * RECORD_COUNT
    assert not outcome.is_broken


class OutOfTheHandlerError(Exception):
    """The exception that the signal handler raises."""


def test_a_signal_handler_that_raises_loses_no_position(track: Track) -> None:
    main = threading.get_ident()

    def raises(_number: int, _frame: Any) -> None:
        raise OutOfTheHandlerError

    def answer(correlation: int, batches: list[Arrived]) -> bytes:
        if correlation == 2:
            signal.pthread_kill(main, signal.SIGUSR2)
        return all_well(correlation, batches)

    found: list[Any] = []
    former = signal.signal(signal.SIGUSR2, raises)
    try:
        with pytest.raises(OutOfTheHandlerError):
            track.ship(answer, found=found)  # raises after the native call
    finally:
        signal.signal(signal.SIGUSR2, former)
    assert len(found) == 3
    assert found[0][0][1] == track.on_disk()[track.places[0]].offset


def test_positions_that_cannot_be_written_hold_the_stream(track: Track) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        outcome, arrived = track.ship(descriptor=full)
    finally:
        os.close(full)
    assert outcome.has_failed
    assert outcome.streams[0].offset == 0
    assert len(arrived) == 5


def test_a_batch_with_the_time_of_its_append_goes_as_one_from_a_producer(track: Track) -> None:
    (segment,) = log_files(track.path)
    content = bytearray(segment.read_bytes())
    header = read_header(content)
    stamped, records = header._replace(attributes=LOG_APPEND_TIME), bytes(content[HEADER_SIZE : header.size])
    content[: header.size] = sealed_header(stamped, records) + records
    segment.write_bytes(content)
    _, arrived = track.ship()
    assert arrived[0].header.attributes == 0
    assert crc_problem(arrived[0].header, memoryview(arrived[0].content)) is None


# --- hostile bytes


def test_no_hostile_answer_crashes_a_batch_loop_or_acks_what_was_not_sent(track: Track) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    luck = random.Random(seed)
    closing: list[bool] = []

    def answer(correlation: int, batches: list[Arrived]) -> bytes | None:
        if closing:
            return None
        if correlation < luck.randrange(4):
            return all_well(correlation, batches)
        content = bytearray(all_well(correlation, batches))
        for _ in range(luck.randrange(1, 4)):
            content[luck.randrange(len(content))] = luck.choice((0, 1, 0x7F, 0x80, 0xFF, luck.randrange(256)))
        closing.append(True)
        return bytes(content[: luck.choice((len(content), luck.randrange(len(content)))) or 1])

    for _ in range(60):
        closing.clear()
        outcome, arrived = track.ship(answer)
        stream = outcome.streams[0]
        assert 0 <= stream.offset <= len(arrived) * RECORD_COUNT
        assert stream.state in set(StreamState)


def test_no_hostile_segment_crashes_a_batch_loop_or_passes_for_sound(track: Track, tmp_path: Path) -> None:
    """The peer verifies each batch as a broker does. Every accepted batch is one that was appended."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    luck = random.Random(seed)
    (segment,) = log_files(track.path)
    sound = shutil.copy(segment, tmp_path / "sound")
    made = [bytes(batch.view[HEADER_SIZE:]) for batch in LogReader(track.path).partition(TOPIC, 0).batches()]

    def answer(correlation: int, batches: list[Arrived]) -> bytes:
        wrong = {batch.partition: crc_problem(batch.header, memoryview(batch.content)) for batch in batches}
        return answer_of(correlation, [(index, CORRUPT_MESSAGE if wrong[index] else 0) for index in wrong])

    for _ in range(40):
        content = bytearray(Path(sound).read_bytes())
        first = luck.randrange(BATCH_COUNT) * (len(content) // BATCH_COUNT)
        for _ in range(luck.randrange(1, 4)):
            place = min(first + luck.randrange(HEADER_SIZE + 8), len(content) - 1)
            content[place] = luck.choice((0, 1, 0x7F, 0x80, 0xFF, luck.randrange(256)))
        segment.write_bytes(content[: luck.choice((len(content), luck.randrange(1, len(content))))])
        outcome, arrived = track.ship(answer)
        kept = outcome.streams[0].offset // RECORD_COUNT
        assert [batch.content[HEADER_SIZE:] for batch in arrived[:kept]] == made[:kept]


@pytest.mark.parametrize(
    ("links", "streams"),
    [((1,), ()), ((), ((1,),)), (((0, 7, "x", -1, 0, 1, 1),), ()), (((0, 7, "x", -1, 1, 1, 2),), ()), ([], ())],
)
def test_parts_that_make_no_batch_loop_are_refused(track: Track, links: Any, streams: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        run_batch_loop(links, streams, [], 0, 0, 1, track.wake_read_fd, 1, 1)
