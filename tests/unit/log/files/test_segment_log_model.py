# SPDX-License-Identifier: Apache-2.0
"""Random operations match a list: appends, duplicates, rolls, retention, reopening, deaths, torn tails."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shmaccum.log.files import LogReader, Rejection, check_log
from tests.support.segment_log import PRODUCER_ID, START_MS, TOPIC, MadeBatch, log_files, make_batch, offsets, open_log

OPTIONS: dict[str, Any] = {"segment_bytes": 700, "index_interval_bytes": 100, "retention_bytes": 1500}
SHAPE = st.tuples(st.integers(1, 4), st.integers(0, 60), st.integers(0, 10**6))
"""The number of values of a batch, their size, and the batch's age."""


class PartitionLife(RuleBasedStateMachine):
    """`self.batches` has the expected batches and their offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="shmaccum-test-"))
        self.options = OPTIONS
        self.batches: list[tuple[int, MadeBatch]] = []
        self.next_offset = 0
        self.next_sequence = 0
        self.log = open_log(self.path, **self.options)

    @property
    def partition(self) -> Any:
        return self.log.partition(TOPIC, 0)

    def _make(self, value_count: int, value_size: int, age_ms: int) -> MadeBatch:
        batch = make_batch(
            [b"%d" % (self.next_sequence + index) + b"." * value_size for index in range(value_count)],
            timestamp_ms=START_MS + age_ms,
            producer=(PRODUCER_ID, 0, self.next_sequence),
        )
        self.next_sequence += value_count
        return batch

    def _remember(self, made: list[MadeBatch]) -> list[int]:
        expected = []
        for batch in made:
            self.batches.append((self.next_offset, batch))
            expected.append(self.next_offset)
            self.next_offset += batch.record_count
        return expected

    @rule(
        shapes=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 60), st.integers(0, 10**6)), min_size=1, max_size=7)
    )
    def append(self, shapes: list[tuple[int, int, int]]) -> None:
        made = [self._make(*shape) for shape in shapes]
        assert offsets(self.partition.append(made)) == self._remember(made)

    @precondition(lambda self: self.batches)
    @rule(back=st.integers(1, 5))
    def append_again(self, back: int) -> None:
        again = self.batches[-back:]
        assert offsets(self.partition.append([batch for _, batch in again])) == [offset for offset, _ in again]

    @precondition(lambda self: self.batches)
    @rule()
    def skip_a_sequence(self) -> None:
        wrong = make_batch([b"v"], producer=(PRODUCER_ID, 0, self.next_sequence + 1))
        (refusal,) = self.partition.append([wrong])
        assert isinstance(refusal, Rejection)

    @rule()
    def roll(self) -> None:
        self.partition.roll()

    @rule()
    def retain(self) -> None:
        self.log.retain()
        self.batches = [(offset, batch) for offset, batch in self.batches if offset >= self.partition.log_start_offset]

    @rule(is_orderly=st.booleans(), is_host_lost=st.booleans())
    def open_again(self, *, is_orderly: bool, is_host_lost: bool) -> None:
        if is_orderly:
            self.log.close()
        else:
            self.log.abandon()
        if is_host_lost:
            (self.path / ".lock").unlink()
        self.log = open_log(self.path, **self.options)

    @precondition(lambda self: self.batches)
    @rule(tail_size=st.integers(1, 400), is_orderly=st.booleans())
    def die_while_appending(self, tail_size: int, *, is_orderly: bool) -> None:
        self.open_and_injure(is_orderly=is_orderly, tail=self.batches[0][1].wire[:-1][:tail_size])

    def open_and_injure(self, *, is_orderly: bool, tail: bytes) -> None:
        if is_orderly:
            self.log.close()
        else:
            self.log.abandon()
        with open(log_files(self.path)[-1], "ab") as file:
            file.write(tail)
        self.log = open_log(self.path, **self.options)

    @invariant()
    def holds_what_was_appended(self) -> None:
        assert self.partition.log_end_offset == self.next_offset
        reader = LogReader(self.path).partition(TOPIC, 0)
        assert [(batch.base_offset, bytes(batch.view[16:])) for batch in reader.batches()] == [
            (offset, batch.wire[16:]) for offset, batch in self.batches
        ]
        assert reader.log_end_offset == self.next_offset

    def teardown(self) -> None:
        self.log.close()
        assert check_log(self.path) == []
        shutil.rmtree(self.path)
        assert not os.path.exists(self.path)


TestPartitionLife = PartitionLife.TestCase
TestPartitionLife.settings = settings(max_examples=25, stateful_step_count=25, suppress_health_check=list(HealthCheck))
