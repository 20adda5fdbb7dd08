# SPDX-License-Identifier: Apache-2.0
"""The header of a record batch in Python."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shmaccum._native import crc32c, crc32c_combine
from shmaccum.format.batch_header import BatchHeader, crc_problem, read_header, replaced_header, sealed_header

INT64 = st.integers(-(2**63), 2**63 - 1)
INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)


def header(producer_id: int, epoch: int, sequence: int, attributes: int) -> BatchHeader:
    return BatchHeader(
        7, 0, 3, 2, 0, attributes, 4, 1_700_000_000_000, 1_700_000_000_004, producer_id, epoch, sequence, 5
    )


@given(st.binary(max_size=300), st.tuples(INT64, INT16, INT32), st.tuples(INT64, INT16, INT32), INT16)
def test_a_replaced_header_fits_the_same_records(
    records: bytes, former: tuple[int, int, int], new: tuple[int, int, int], attributes: int
) -> None:
    batch = sealed_header(header(*former, attributes), records) + records
    changed = header(*new, attributes)._replace(batch_length=len(batch) - 12)
    again = replaced_header(read_header(batch), changed) + records
    assert crc_problem(read_header(again), memoryview(again)) is None
    assert read_header(again)._replace(crc=0) == changed


def test_a_replaced_header_does_not_fit_damaged_records() -> None:
    batch = sealed_header(header(1, 0, 0, 0), b"records") + b"records"
    again = replaced_header(read_header(batch), read_header(batch)._replace(producer_id=2)) + b"rexords"
    assert crc_problem(read_header(again), memoryview(again)) is not None


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_checksums_are_combined(first: bytes, second: bytes) -> None:
    assert crc32c_combine(crc32c(first), crc32c(second), len(second)) == crc32c(first + second)
