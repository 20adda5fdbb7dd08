# SPDX-License-Identifier: Apache-2.0
"""A consumer's record behaves as kafka-python's named tuple. Its memory is freed."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from kafka.consumer.fetcher import ConsumerRecord as KafkaPythonRecord

from shmaccum import ConsumerRecord, TopicPartition, _native
from shmaccum.common.format.batch_header import HEADER_SIZE
from tests.support.segment_log import START_MS, TOPIC, make_batch

PLACE = TopicPartition(TOPIC, 3)
HEADERS = (("a", b"12"), ("b", None))
FIELDS = (TOPIC, 3, 7, 100, START_MS, 0, b"k", b"v", HEADERS, None, 1, 1, 4)


def decoded(value: bytes | None = b"v", key: bytes | None = b"k", **options: Any) -> ConsumerRecord:
    """A record as the native core makes it."""
    records = make_batch([value], key=key, headers=HEADERS).wire[HEADER_SIZE:]
    (record,) = _native.consume_batch(records, PLACE, 7, 0, 100, START_MS, 1, **options)
    return record


MADE = [pytest.param(decoded, id="decoded"), pytest.param(lambda: ConsumerRecord(*FIELDS), id="constructed")]


@pytest.mark.parametrize("make", MADE)
def test_a_record_behaves_as_the_named_tuple_of_kafka_python(make: Callable[[], ConsumerRecord]) -> None:
    record, twin = make(), KafkaPythonRecord(*FIELDS)
    assert ConsumerRecord._fields == KafkaPythonRecord._fields
    assert [getattr(record, name) for name in ConsumerRecord._fields] == list(FIELDS)
    assert (len(record), tuple(record), record[3], record[-13], record[1:4]) == (13, FIELDS, 100, TOPIC, (3, 7, 100))
    assert (record == twin, twin == record, record != twin, hash(record) == hash(twin)) == (True, True, False, True)
    assert record < twin._replace(offset=101) <= record._replace(offset=101)
    assert repr(record) == repr(twin)
    assert record._asdict() == twin._asdict()
    assert record._replace(value=b"other", offset=1) == twin._replace(value=b"other", offset=1)
    assert ConsumerRecord._make(iter(FIELDS)) == record
    topic, *_, size = record
    assert (topic, size, TOPIC in record) == (TOPIC, 4, True)


@pytest.mark.parametrize("make", MADE)
def test_a_record_is_copied_pickled_and_matched(make: Callable[[], ConsumerRecord]) -> None:
    record = make()
    assert pickle.loads(pickle.dumps(record)) == copy.copy(record) == copy.deepcopy(record) == record
    match record:
        case ConsumerRecord(topic=topic, offset=100, value=value):
            assert (topic, value) == (TOPIC, b"v")
        case _:
            pytest.fail("it did not match")


@pytest.mark.parametrize("make", MADE)
def test_with_parts_changes_key_and_value_alone(make: Callable[[], ConsumerRecord]) -> None:
    record = make()
    changed = record.with_parts(1, {"a": 2})
    assert tuple(changed) == (*FIELDS[:6], 1, {"a": 2}, *FIELDS[8:])
    assert tuple(changed.with_parts(None, None)) == (*FIELDS[:6], None, None, *FIELDS[8:])
    assert tuple(record) == FIELDS


@pytest.mark.parametrize("size", [0, 1, 199, 200, 201, 5000])
def test_small_and_large_parts_are_the_bytes_of_the_log(size: int) -> None:
    part, other = b"x" * size, b"y" * 300
    for key, value in [(part, part), (part, other), (other, part), (None, part), (part, None)]:
        record = decoded(value, key)
        sizes = tuple(-1 if one is None else len(one) for one in (key, value))
        assert (record.key, record.value, record.headers) == (key, value, HEADERS)
        assert (record.serialized_key_size, record.serialized_value_size) == sizes
        viewed = decoded(value, key, has_key_views=True, has_value_views=True)
        assert viewed == record
        assert isinstance(viewed.value, memoryview | None)


def test_wrong_fields_are_reported() -> None:
    record = decoded()
    with pytest.raises(TypeError):
        ConsumerRecord(TOPIC, 3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="13 fields, got 2"):
        ConsumerRecord._make([1, 2])
    with pytest.raises(ValueError, match="'nothing': 1} has a name that is not a field"):
        record._replace(nothing=1)
    for index in (13, -14, 2**70):
        with pytest.raises(IndexError):
            record[index]
    with pytest.raises(TypeError):
        record["offset"]  # type: ignore[call-overload]
    with pytest.raises(AttributeError):
        record.offset = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        _ = record < 1  # type: ignore[operator]
    assert record != 1


def test_the_collector_knows_only_records_that_hold_objects_of_the_program() -> None:
    class Value:
        """Supports weak references."""

        record: ConsumerRecord

    assert not gc.is_tracked(decoded())
    value = Value()
    value.record = decoded().with_parts(None, value)
    watch = weakref.ref(value)
    del value
    gc.collect()
    assert watch() is None


def test_no_reference_is_lost_or_kept() -> None:
    def use() -> None:
        record = decoded(b"x" * 300).with_parts(marker, marker)
        ConsumerRecord(*record)._replace(key=marker).with_parts(marker, None)
        assert all(map(bool, [hash(decoded()), repr(record), record != 1, record[2:], record._asdict()]))
        with pytest.raises(TypeError):
            ConsumerRecord._make([marker])

    marker = "a marker"
    objects: list[Any] = [marker, PLACE, PLACE.topic, ConsumerRecord]
    use()
    gc.collect()
    before = [sys.getrefcount(each) for each in objects]
    for _ in range(200):
        use()
    gc.collect()
    assert [abs(sys.getrefcount(each) - count) < 20 for each, count in zip(objects, before, strict=True)] == [True] * 4
