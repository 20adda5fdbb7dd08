# SPDX-License-Identifier: Apache-2.0
"""The header of a record batch in Python."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmaccum._native import header_for_producer
from shmaccum.common.format.batch_header import LOG_APPEND_TIME, BatchHeader, crc_problem, read_header, sealed_header

INT64 = st.integers(-(2**63), 2**63 - 1)
INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)


def header(producer_id: int, epoch: int, sequence: int, attributes: int) -> BatchHeader:
    return BatchHeader(
        7, 0, 3, 2, 0, attributes, 4, 1_700_000_000_000, 1_700_000_000_004, producer_id, epoch, sequence, 5
    )


@given(
    st.binary(max_size=300),
    st.tuples(INT64, INT16, INT32),
    st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1)),
    INT16,
)
def test_a_header_for_another_producer_fits_the_same_records(
    records: bytes, former: tuple[int, int, int], new: tuple[int, int, int], attributes: int
) -> None:
    batch = sealed_header(header(*former, attributes), records) + records
    again = header_for_producer(batch, *new) + records
    assert crc_problem(read_header(again), memoryview(again)) is None
    changed = header(*new, attributes & ~LOG_APPEND_TIME)
    placed = changed._replace(base_offset=0, leader_epoch=-1, batch_length=len(batch) - 12)
    assert read_header(again)._replace(crc=0) == placed


def test_a_header_for_another_producer_does_not_fit_damaged_records() -> None:
    batch = sealed_header(header(1, 0, 0, 0), b"records") + b"records"
    again = header_for_producer(batch, 2, 0, 0) + b"rexords"
    assert crc_problem(read_header(again), memoryview(again)) is not None


@pytest.mark.parametrize("wrong", [b"", b"\0" * 60, b"\0" * 61])
def test_bytes_that_are_no_header_are_refused(wrong: bytes) -> None:
    with pytest.raises(ValueError, match="not the header"):
        header_for_producer(wrong, 1, 0, 0)
