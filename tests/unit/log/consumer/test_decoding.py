# SPDX-License-Identifier: Apache-2.0
"""The native core decodes the same records for a consumer as kafka-python. Hostile bytes raise errors."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder

from shmaccum import Consumer, ConsumerRecord, CorruptLogError, TopicPartition, _native
from shmaccum.common.format.batch_header import CONTROL, HEADER_SIZE, LOG_APPEND_TIME, read_header, sealed_header
from shmaccum.exceptions import CodecMissingError, CorruptArenaError, ShmaccumError
from shmaccum.log.files import codecs
from tests.support.segment_log import START_MS, TOPIC, log_files, make_batch, make_batches, open_log

PLACE = TopicPartition(TOPIC, 0)
OFFSET_MAX = 2**63 - 1

parts = st.none() | st.binary(max_size=8) | st.integers(0, 400).map(bytes)
headers = st.lists(st.tuples(st.text(max_size=5), parts), max_size=3)
rows = st.lists(st.tuples(parts, parts, headers, st.integers(-(10**9), 10**9)), min_size=1, max_size=6)
batches = st.lists(st.tuples(rows, st.booleans()), min_size=1, max_size=4)


def wire_of(found: list[Any], first_offset: int, epoch: int) -> bytes:
    """Consecutive batches, as a broker stores them."""
    wire, offset = b"", first_offset
    for records, has_log_time in found:
        builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
        for index, (key, value, pairs, delta_ms) in enumerate(records):
            builder.append(index, START_MS + delta_ms, key, value, pairs)
        batch = bytes(builder.build())
        header = read_header(batch)._replace(base_offset=offset, leader_epoch=epoch)
        header = header._replace(attributes=LOG_APPEND_TIME if has_log_time else 0)
        wire += sealed_header(header, batch[HEADER_SIZE:]) + batch[HEADER_SIZE:]
        offset += len(records)
    return wire


def kafka_pythons(wire: bytes) -> list[tuple[Any, ...]]:
    """Decode by kafka-python, without sizes."""
    found, memory = [], MemoryRecords(wire)
    while batch := memory.next_batch():
        assert batch.validate_crc()
        for one in batch:
            pairs = tuple(map(tuple, one.headers))
            found.append((one.offset, one.timestamp, one.timestamp_type, one.key, one.value, pairs))
    return found


def block_of(wire: bytes, first_offset: int = 0, **options: Any) -> tuple[list[ConsumerRecord], int, int]:
    return _native.consume_block(wire, 0, PLACE, first_offset, 0, OFFSET_MAX, **options)


@settings(max_examples=60)
@given(found=batches, base=st.integers(0, 2**40), epoch=st.integers(-1, 2**31 - 1), skipped=st.integers(0, 8))
def test_records_are_those_of_kafka_pythons_decoder(found: Any, base: int, epoch: int, skipped: int) -> None:
    wire = wire_of(found, base, epoch)
    wanted = [one for one in kafka_pythons(wire) if one[0] >= base + skipped]
    for options in ({}, {"has_key_views": True, "has_value_views": True}):
        records, position, next_offset = block_of(wire, base + skipped, **options)
        assert [(*one[3:9],) for one in records] == wanted
        assert {one[:3] for one in records} <= {(*PLACE, epoch)}
        assert (position, next_offset) == (len(wire), base + sum(len(rows) for rows, _ in found))


@settings(max_examples=150)
@given(
    cut=st.tuples(st.integers(0, 400), st.integers(0, 400)),
    insert=st.binary(max_size=12),
    count=st.integers(-1, 9) | st.integers(),
    expected=st.tuples(st.integers(), st.integers()) | st.just((0, OFFSET_MAX)),
    first=st.integers(-1, 9),
)
def test_any_bytes_are_decoded_left_or_refused(
    cut: tuple[int, int], insert: bytes, count: int, expected: tuple[int, int], first: int
) -> None:
    wire = wire_of([([(b"k", b"value", [("h", b"v")], 5)] * 3, False)] * 3, 0, 0)
    hostile = wire[: min(cut)] + insert + wire[max(cut) :]
    with contextlib.suppress(ShmaccumError):
        records, position, _ = _native.consume_block(hostile, 0, PLACE, first, *expected, False, True, True)
        assert 0 <= position <= len(hostile)
        assert len(list(map(tuple, records))) <= position / 7
    with contextlib.suppress(ShmaccumError):
        assert len(_native.consume_batch(hostile[HEADER_SIZE:], PLACE, 0, first, 0, 0, count)) <= count


@pytest.mark.parametrize("position", [0, 20, 70, 90, 130])
def test_a_damaged_batch_is_left_to_the_caller(position: int) -> None:
    first, second = (
        wire_of([([(b"k", b"v" * 40, [], 0)] * 2, False)], 0, 0),
        wire_of([([(b"k", b"w", [], 0)], False)], 2, 0),
    )
    damaged = bytearray(first + second)
    damaged[len(first) + position % len(second)] ^= 0x55
    records, end, next_offset = _native.consume_block(bytes(damaged), 0, PLACE, 0, 0, 0)
    assert ([one.offset for one in records], end, next_offset) == ([0, 1], len(first), 2)


def test_unexpected_compressed_and_control_batches_are_left_to_the_caller() -> None:
    one: Any = [(b"k", b"v", [], 0)]
    first = wire_of([(one, False)], 0, 0)
    for second in [
        wire_of([(one, False)], 5, 0),
        make_batch([b"v" * 1000], codec=1).wire,
        sealed_header(read_header(first)._replace(base_offset=1, attributes=CONTROL), first[HEADER_SIZE:])
        + first[HEADER_SIZE:],
        first[:30],
    ]:
        assert _native.consume_block(first + second, 0, PLACE, 0, 0, 0)[1:] == (len(first), 1)


def test_a_block_ends_after_enough_records() -> None:
    wire = wire_of([([(None, b"", [], 0)] * 1500, False)] * 4, 0, 0)
    records, position, next_offset = block_of(wire)
    assert (len(records), next_offset) == (4500, 4500)
    more, end, _ = _native.consume_block(wire, position, PLACE, 0, 4500, 4500)
    assert (len(more), end) == (1500, len(wire))


def test_wrong_arguments_are_reported() -> None:
    for wrong in [("flights",), ["flights", 3], 7]:
        with pytest.raises(TypeError, match="place must be a tuple"):
            _native.consume_block(b"", 0, wrong, 0, 0, 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _native.consume_block("text", 0, PLACE, 0, 0, 0)  # type: ignore[arg-type]
    with pytest.raises(CorruptArenaError, match="9 records cannot be in 3 bytes"):
        _native.consume_batch(b"abc", PLACE, 0, 0, 0, 0, 9)


# --- through the consumer


def test_batches_of_every_kind_are_read_in_order_across_blocks(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        for number in range(60):
            log.partition(TOPIC, 0).append([make_batch([b"%d" % number * 2000] * 5, codec=number % 3)])
        with Consumer(log.path, TOPIC, auto_offset_reset="earliest", max_poll_records=7) as consumer:
            found = [record for _ in range(60) for record in consumer.poll().get(PLACE, [])]
            assert [record.offset for record in found] == list(range(300))
            assert all(record.value == b"%d" % (record.offset // 5) * 2000 for record in found)
            metrics = consumer.metrics()["consumer-fetch-manager-metrics"]
        assert metrics["bytes-consumed-total"] == sum(file.stat().st_size for file in log_files(tmp_path))


def test_a_consumer_stays_in_front_of_records_that_cannot_be_read(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.partition(TOPIC, 0).append(make_batches(3))
    file = log_files(tmp_path)[0]
    wire = file.read_bytes()
    size = len(wire) // 3
    header, records = read_header(wire, size), bytes(size - HEADER_SIZE)
    file.write_bytes(wire[:size] + sealed_header(header, records) + records + wire[2 * size :])
    with Consumer(tmp_path, TOPIC, auto_offset_reset="earliest") as consumer:
        assert [record.offset for record in consumer.poll()[PLACE]] == [0, 1, 2]
        for _ in range(3):
            with pytest.raises(CorruptLogError, match="record 0 of the batch cannot be read"):
                consumer.poll()
        consumer.seek(PLACE, 6)
        assert [record.offset for record in consumer.poll()[PLACE]] == [6, 7, 8]


def test_a_consumer_stays_in_front_of_a_batch_whose_codec_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_codec: Any) -> Any:
        raise CodecMissingError("it is not here")

    with open_log(tmp_path) as log:
        log.partition(TOPIC, 0).append([make_batch([b"v" * 100], codec=1), make_batch([b"w"])])
    with Consumer(tmp_path, TOPIC, auto_offset_reset="earliest") as consumer:
        with monkeypatch.context() as patch:
            patch.setattr(codecs, "_import", missing)
            for _ in range(2):
                with pytest.raises(CodecMissingError):
                    consumer.poll()
        assert [record.offset for record in consumer.poll()[PLACE]] == [0, 1]
