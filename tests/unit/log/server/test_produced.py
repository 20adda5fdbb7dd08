# SPDX-License-Identifier: Apache-2.0
"""Batches of careless or hostile clients are right in the log, or rejected as by a broker."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterator
from typing import Any

import lz4.frame  # type: ignore[import-untyped]
import pytest
import snappy  # type: ignore[import-untyped]
import zstandard

from shmaccum.common.format.batch_header import BatchHeader, read_header, sealed_header
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.codecs import DecompressedTooLargeError
from shmaccum.log.files.log_batch import LogBatch
from shmaccum.log.files.producer_state import Rejection
from shmaccum.log.server.produced import Budget, Rules, decompressed_size_max, split, validate_batches

NOW_MS = 1_800_000_000_000
RULES = Rules(version=9, size_max=1 << 20, timestamp_max_ms=NOW_MS + 3_600_000, sets_time=False, needs_keys=False)
CODECS: dict[int, Callable[[bytes], bytes]] = {
    0: bytes,
    1: gzip.compress,
    2: snappy.compress,
    3: lz4.frame.compress,
    4: zstandard.compress,
}
TIMES = (NOW_MS, NOW_MS + 2000, NOW_MS + 1000)
each_codec = pytest.mark.parametrize("codec", CODECS)


def varint(number: int) -> bytes:
    rest, found = (number << 1) ^ (number >> 63), bytearray()
    while rest >= 0x80:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*found, rest])


def record(delta_ms: int, number: int, value: bytes = b"v", key: bytes | None = None) -> bytes:
    key_field = varint(-1) if key is None else varint(len(key)) + key
    body = b"\0" + varint(delta_ms) + varint(number) + key_field + varint(len(value)) + value + varint(0)
    return varint(len(body)) + body


def records_of(times: tuple[int, ...]) -> bytes:
    return b"".join(record(each - times[0], number) for number, each in enumerate(times))


def batch(times: tuple[int, ...] = TIMES, *, codec: int = 0, records: bytes | None = None, **fields: Any) -> bytes:
    """A batch with a right CRC and any header fields."""
    plain = records_of(times) if records is None else records
    count = len(times)
    header = BatchHeader(0, 0, -1, 2, 0, codec, count - 1, times[0], max(times), -1, -1, -1, count)
    content = CODECS[codec](plain)
    return sealed_header(header._replace(**fields), content) + content


def judged(content: bytes, rules: Rules = RULES, budget: int = 1 << 30) -> list[LogBatch] | Rejection:
    batches = split(memoryview(content), rules)
    return batches if isinstance(batches, Rejection) else validate_batches(batches, rules, Budget(budget))


def one(content: bytes, rules: Rules = RULES) -> LogBatch:
    found = judged(content, rules)
    assert not isinstance(found, Rejection), found
    (batch,) = found
    assert batch.crc_problem() is None
    return batch


def error_of(content: bytes, rules: Rules = RULES) -> BrokerError:
    found = judged(content, rules)
    assert isinstance(found, Rejection), found
    assert found.message
    return found.error_code


@each_codec
def test_a_batch_that_is_right_is_taken_as_it_came(codec: int) -> None:
    content = batch(codec=codec)
    assert bytes(one(content).view) == content


@each_codec
@pytest.mark.parametrize("told_ms", [-1, 0, TIMES[0], TIMES[1] + 7, 2**63 - 1, -(2**63)])
def test_the_largest_timestamp_is_that_of_the_records(codec: int, told_ms: int) -> None:
    taken = one(batch(codec=codec, max_timestamp_ms=told_ms))
    assert taken.max_timestamp_ms == max(TIMES)
    assert [each.timestamp_ms for each in taken.records()] == list(TIMES)


@each_codec
def test_the_bit_of_log_append_time_is_cleared(codec: int) -> None:
    taken = one(batch(codec=codec, attributes=codec | 8))
    assert taken.header.attributes == codec
    assert [each.timestamp_ms for each in taken.records()] == list(TIMES)


def test_records_without_a_time_have_none() -> None:
    assert one(batch((-1, -1))).max_timestamp_ms == -1


@each_codec
@pytest.mark.parametrize("may_stream", [False, True], ids=["at once", "in pieces"])
def test_a_compacted_topic_needs_the_key_of_each_record(codec: int, may_stream: bool) -> None:
    def answer(*keys: bytes | None) -> list[LogBatch] | Rejection:
        content = b"".join(record(0, number, key=key) for number, key in enumerate(keys))
        batches = split(memoryview(batch((NOW_MS,) * len(keys), codec=codec, records=content)), rules)
        assert not isinstance(batches, Rejection)
        return validate_batches(batches, rules, Budget(1 if may_stream else 1 << 30, may_stream=may_stream))

    rules = RULES._replace(needs_keys=True)
    assert not isinstance(answer(b"a", b"", b"b"), Rejection)
    for keys in ((None, b"a"), (b"a", None), (b"a", None, b"b")):
        refused = answer(*keys)
        assert isinstance(refused, Rejection)
        assert refused.error_code == BrokerError.INVALID_RECORD
        assert "without a key" in refused.message
        assert refused.record_indexes == tuple(number for number, key in enumerate(keys) if key is None)
    rules = RULES
    assert not isinstance(answer(b"a", None), Rejection)


@each_codec
@pytest.mark.parametrize(("count", "value"), [(10_001, b"v"), (2, b"v" * (1 << 20))], ids=["records", "bytes"])
def test_in_a_large_batch_records_without_a_key_are_not_named(codec: int, count: int, value: bytes) -> None:
    content = b"".join(record(0, number, value) for number in range(count))
    rules = RULES._replace(size_max=1 << 30, needs_keys=True)
    batches = split(memoryview(batch((NOW_MS,) * count, codec=codec, records=content)), rules)
    assert not isinstance(batches, Rejection)
    refused = validate_batches(batches, rules, Budget(1 << 30))
    assert isinstance(refused, Rejection)
    assert (refused.error_code, refused.record_indexes) == (BrokerError.INVALID_RECORD, ())


@each_codec
@pytest.mark.parametrize("count", [1, 2, 4, 1000])
def test_another_number_of_records_is_refused(codec: int, count: int) -> None:
    content = batch(codec=codec, record_count=count, last_offset_delta=count - 1)
    assert error_of(content) == BrokerError.INVALID_RECORD


@each_codec
@pytest.mark.parametrize(
    "records",
    [
        b"",
        b"\xff" * 40,
        record(0, 1) + record(0, 2) + record(0, 3),
        record(0, 0) + record(0, 0) + record(0, 1),
        record(0, 0) + record(0, 1) + record(0, 3),
        record(0, 0) + record(0, 1) + record(0, 2) + b"\0",
        record(0, 0) + record(0, 1) + record(0, 2)[:-1],
        record(0, 0) + record(0, 1) + record(2**63 - 1, 2),
        record(0, 0) + record(0, 1) + b"\x80\x80\x80\x80\x80\x80",
    ],
)
def test_bytes_that_no_reader_can_read_are_refused(codec: int, records: bytes) -> None:
    assert error_of(batch(codec=codec, records=records)) == BrokerError.INVALID_RECORD


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_bytes_that_are_not_of_the_codec_are_refused(codec: int) -> None:
    plain = records_of(TIMES)
    for content in (plain, CODECS[codec](plain)[:-3], b"\x82SNAPPY\0" + bytes(8) + b"\xff" * 8):
        header = read_header(batch(codec=codec))
        assert error_of(sealed_header(header, content) + content) == BrokerError.INVALID_RECORD


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_refused(codec: int) -> None:
    assert error_of(batch(attributes=codec)) == BrokerError.UNSUPPORTED_COMPRESSION_TYPE


def test_zstd_needs_version_7() -> None:
    assert error_of(batch(codec=4), RULES._replace(version=6)) == BrokerError.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize(
    "fields",
    [
        {"attributes": 0x20},
        {"attributes": 0x30, "producer_id": 1, "producer_epoch": 0, "base_sequence": 0},
        {"attributes": 0x40},
        {"attributes": 0x80},
        {"attributes": -0x8000},
        {"attributes": 0x10},
        {"producer_id": 1},
        {"producer_id": 1, "producer_epoch": 0, "base_sequence": -1},
        {"producer_id": 1, "producer_epoch": -1, "base_sequence": 0},
        {"producer_id": -2},
        {"record_count": 0, "last_offset_delta": 0},
        {"record_count": 2**31 - 1, "last_offset_delta": 2},
        {"last_offset_delta": 2**31 - 1},
        {"magic": 0},
        {"magic": 1},
    ],
)
def test_a_header_that_no_producer_writes_is_refused(fields: dict[str, Any]) -> None:
    assert error_of(batch(**fields)) == BrokerError.INVALID_RECORD


@pytest.mark.parametrize("damage", [lambda c: c[:-1], lambda c: c[:-1] + b"\1", lambda c: c + b"\0", lambda c: c[:40]])
def test_a_batch_that_is_damaged_on_its_way_is_refused(damage: Callable[[bytes], bytes]) -> None:
    assert error_of(damage(batch())) == BrokerError.CORRUPT_MESSAGE


def test_a_length_that_leads_nowhere_is_refused() -> None:
    for length in (-1, 0, 48, 2**31 - 1, -(2**31)):
        content = bytearray(batch())
        struct.pack_into(">i", content, 8, length)
        assert error_of(bytes(content)) == BrokerError.CORRUPT_MESSAGE


@pytest.mark.parametrize("when_ms", [RULES.timestamp_max_ms + 1, 2**62, -2, -(2**62)])
def test_a_time_that_no_look_up_could_use_is_refused(when_ms: int) -> None:
    for codec in CODECS:
        assert error_of(batch((when_ms, when_ms), codec=codec)) == BrokerError.INVALID_TIMESTAMP
    assert error_of(batch((NOW_MS, when_ms))) == BrokerError.INVALID_TIMESTAMP
    assert not isinstance(judged(batch((when_ms, when_ms)), RULES._replace(sets_time=True)), Rejection)


def test_the_latest_time_is_taken() -> None:
    assert one(batch((RULES.timestamp_max_ms,))).max_timestamp_ms == RULES.timestamp_max_ms


def bombs() -> Iterator[bytes]:
    zeros = bytes(64 << 20)
    for codec in (1, 3, 4):
        content = CODECS[codec](zeros)
        yield sealed_header(read_header(batch(codec=codec)), content) + content


def test_compressed_records_beyond_the_budget_are_not_decompressed() -> None:
    for bomb in bombs():
        with pytest.raises(DecompressedTooLargeError):
            judged(bomb, budget=1 << 20)


def test_the_budget_is_that_of_all_batches_together() -> None:
    whole = batch(codec=1)
    size = len(records_of(TIMES))
    assert not isinstance(judged(whole * 3, budget=3 * size), Rejection)
    with pytest.raises(DecompressedTooLargeError):
        judged(whole * 3, budget=3 * size - 1)


def test_a_larger_request_may_stand_for_more() -> None:
    assert decompressed_size_max(0) == 32 << 20
    assert decompressed_size_max(100 << 20) == 1600 << 20
