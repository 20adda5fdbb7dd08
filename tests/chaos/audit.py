# SPDX-License-Identifier: Apache-2.0
"""Compare the ledger with the log: every record once, in its author's order, at its promised offset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shmaccum.log.files.columns import BytesColumn, decode_columns
from shmaccum.log.files.log_batch import LogBatch
from shmaccum.log.files.reader import LogReader
from tests.chaos.ledger import (
    ACKNOWLEDGED,
    AUTHORS_MAX,
    BEGUN,
    PARTITIONS,
    PROOF_OFFSET,
    PROOF_SEQUENCE,
    TOPIC,
    VALUE,
    Ledger,
    Places,
)

Numbers = npt.NDArray[np.int64]
CHUNK_SIZE = 16 << 20


@dataclass(frozen=True)
class Audit:
    """Counts of a log that has passed the audit."""

    author_count: int
    """Producers, including forked children, with a delivered record."""
    acknowledged_count: int
    delivered_count: int
    """The records in the log, including those whose author died before it could record the acknowledgement."""
    proof_count: int
    """Offsets that `future.get` returned and that were checked."""


def audit(places: Places, author_count: int) -> Audit:
    """Read the whole log.

    Raises:
        AssertionError: a record is lost, duplicated, out of order, torn or not at its promised offset.
    """
    with Ledger(places.ledger) as ledger:
        rows = ledger.rows(author_count).astype(np.int64)
    delivered = np.stack([_delivered(places, partition, rows) for partition in range(PARTITIONS)], axis=1)
    begun, acknowledged = rows[:, BEGUN : BEGUN + PARTITIONS], rows[:, ACKNOWLEDGED : ACKNOWLEDGED + PARTITIONS]
    lost = np.argwhere(delivered < acknowledged)
    assert len(lost) == 0, f"author and partition, of which acknowledged records were not delivered: {lost[:5]}"
    invented = np.argwhere(delivered > begun)
    assert len(invented) == 0, f"author and partition, of which more came than was sent: {invented[:5]}"
    proofs = rows[:, PROOF_SEQUENCE : PROOF_SEQUENCE + PARTITIONS]
    return Audit(
        author_count=int((delivered.sum(axis=1) > 0).sum()),
        acknowledged_count=int(acknowledged.sum()),
        delivered_count=int(delivered.sum()),
        proof_count=int((proofs > 0).sum()),
    )


def _delivered(places: Places, partition: int, rows: Numbers) -> Numbers:
    """Count each author's records in a partition. Each must be there once, in order from 0."""
    next_sequence = np.zeros(len(rows), dtype=np.int64)
    proofs = Proofs(rows, partition)
    for offsets, authors, sequences in _chunks(places, partition):
        assert authors.max() < len(rows), "a record of an author that was not started"
        _expect_in_order(partition, authors, sequences, next_sequence)
        proofs.look_up(offsets, authors, sequences)
    proofs.expect_all_found()
    return next_sequence


def _expect_in_order(partition: int, authors: Numbers, sequences: Numbers, next_sequence: Numbers) -> None:
    """Check the sequences from `next_sequence`, which is updated in place."""
    by_author = np.argsort(authors, kind="stable")
    sorted_authors = authors[by_author]
    is_first = np.r_[True, sorted_authors[1:] != sorted_authors[:-1]]
    starts = np.flatnonzero(is_first)
    rank = np.arange(len(authors)) - np.repeat(starts, np.diff(np.r_[starts, len(authors)]))
    wrong = np.flatnonzero(sequences[by_author] != next_sequence[sorted_authors] + rank)
    if len(wrong):
        place = wrong[0]
        author, came = sorted_authors[place], sequences[by_author][place]
        due = next_sequence[author] + rank[place]
        raise AssertionError(f"partition {partition}: of author {author} came {came} where {due} was due")
    np.add.at(next_sequence, authors, 1)


class Proofs:
    """The offsets that authors were promised in one partition."""

    def __init__(self, rows: Numbers, partition: int) -> None:
        self._authors = np.flatnonzero(rows[:, PROOF_SEQUENCE + partition])
        self._sequences = rows[self._authors, PROOF_SEQUENCE + partition] - 1
        self._offsets = rows[self._authors, PROOF_OFFSET + partition]
        self._found_count = 0

    def look_up(self, offsets: Numbers, authors: Numbers, sequences: Numbers) -> None:
        """Check the promises among these records, whose offsets have no gap."""
        is_here = (self._offsets >= offsets[0]) & (self._offsets <= offsets[-1])
        at = self._offsets[is_here] - offsets[0]
        assert (authors[at] == self._authors[is_here]).all(), "another record is where one was promised"
        assert (sequences[at] == self._sequences[is_here]).all(), "another record is where one was promised"
        self._found_count += int(is_here.sum())

    def expect_all_found(self) -> None:
        assert self._found_count == len(self._offsets), "an offset was promised that the log does not have"


# --- reading


def _chunks(places: Places, partition: int) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
    """Yield the offsets, authors and sequences of all records in chunks. Offsets have no gap from 0."""
    expected = 0
    for batches in _runs(LogReader(places.log).partition(TOPIC, partition).batches()):
        columns = decode_columns(batches, 0, 2**62)
        offsets = np.frombuffer(columns.offsets, dtype="<i8")
        assert (offsets == np.arange(expected, expected + len(offsets))).all(), f"a gap after offset {expected}"
        expected += len(offsets)
        yield (offsets, *_taken_apart(columns.value))


def _runs(batches: Iterator[LogBatch]) -> Iterator[list[LogBatch]]:
    run: list[LogBatch] = []
    size = 0
    for batch in batches:
        run.append(batch)
        size += batch.size
        if size > CHUNK_SIZE:
            yield run
            run, size = [], 0
    if run:
        yield run


def _taken_apart(values: BytesColumn) -> tuple[Numbers, Numbers]:
    """Return the authors and sequences of the values. The filler after them repeats the author."""
    ends = np.frombuffer(values.offsets, dtype="<i4").astype(np.int64)
    starts, sizes = ends[:-1], np.diff(ends)
    data = np.frombuffer(values.data, dtype=np.uint8)
    assert values.null_count == 0
    assert sizes.min() >= VALUE.size, "a record is too short"
    heads = data[starts[:, None] + np.arange(VALUE.size)]
    authors = np.ascontiguousarray(heads[:, :4]).view("<u4")[:, 0].astype(np.int64)
    sequences = np.ascontiguousarray(heads[:, 4:]).view("<u8")[:, 0].astype(np.int64)
    assert authors.max() < AUTHORS_MAX
    for index in np.flatnonzero(sizes > VALUE.size):
        filler = data[starts[index] + VALUE.size : starts[index] + sizes[index]]
        assert (filler == authors[index] & 0xFF).all(), f"a record of author {authors[index]} is torn"
    return authors, sequences
