# SPDX-License-Identifier: Apache-2.0
"""Batches encoded in Python have the same bytes as those of another encoder."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder

from shmaccum.common.format.batch_header import CRC_START, read_header
from shmaccum.log.files.record_writer import NewRecord, make_batch, varint

HEADERS = st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=20)), max_size=3)
RECORDS = st.builds(
    NewRecord,
    st.integers(0, 2**41),
    st.none() | st.binary(max_size=200),
    st.none() | st.binary(max_size=200),
    HEADERS,
)


@given(st.lists(RECORDS, min_size=1, max_size=20), HEADERS)
def test_the_bytes_are_those_of_kafka_python(records: list[NewRecord], headers: list[tuple[str, bytes | None]]) -> None:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
    for index, record in enumerate(records):
        builder.append(index, record.timestamp_ms, record.key, record.value, [*record.headers, *headers])
    theirs = bytes(builder.build())
    ours = make_batch(records, headers)
    assert ours.wire[CRC_START:] == theirs[CRC_START:]
    assert read_header(ours.wire)._replace(leader_epoch=0) == read_header(theirs)._replace(leader_epoch=0)
    assert (ours.record_count, ours.size) == (len(records), len(theirs))
    assert ours.max_timestamp_ms == max(record.timestamp_ms for record in records)


@pytest.mark.parametrize(
    ("number", "encoded"), [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (64, "8001"), (-65, "8101")]
)
def test_varints_are_zigzag(number: int, encoded: str) -> None:
    assert varint(number).hex() == encoded
