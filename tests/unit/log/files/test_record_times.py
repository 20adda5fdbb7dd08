# SPDX-License-Identifier: Apache-2.0
"""The times of a batch's records do not depend on how its bytes are split."""

from __future__ import annotations

import gzip
import importlib
from collections.abc import Callable

import pytest

from shmaccum.common.format.batch_header import HEADER_SIZE, read_header
from shmaccum.exceptions import CorruptLogError
from shmaccum.log.files import record_times as module
from shmaccum.log.files.codecs import DecompressedTooLargeError
from shmaccum.log.files.log_batch import LogBatch
from shmaccum.log.files.record_times import record_times
from shmaccum.sender.sinks.compression import CODECS, Compressor
from tests.support.segment_log import make_batch

VALUES = [b"x" * size for size in (0, 1, 100, 10_000, 3)]


def compressed(codec: str) -> LogBatch:
    form = Compressor(CODECS[codec]).compress([make_batch(VALUES).wire])
    assert form is not None
    content = memoryview(b"".join(form))
    return LogBatch(read_header(content), content, "here", 0)


@pytest.fixture(params=["gzip", "snappy", "lz4", "zstd"])
def batch(request: pytest.FixtureRequest) -> LogBatch:
    importlib.import_module(CODECS[request.param].module)
    return compressed(request.param)


def test_records_that_are_streamed_have_the_times_of_those_that_are_decoded(
    batch: LogBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = list(record_times(batch))
    assert decoded == [(record.offset, record.timestamp_ms) for record in batch.records()]
    monkeypatch.setattr(module, "AT_ONCE_SIZE_MAX", 0)
    assert list(record_times(batch)) == decoded


def test_a_batch_that_stands_for_too_much_is_given_up(batch: LogBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE_SIZE_MAX", 0)
    monkeypatch.setattr(module, "STREAMED_SIZE_MAX", 100)
    with pytest.raises(DecompressedTooLargeError):
        list(record_times(batch))


WRONG: dict[str, Callable[[bytes], bytes]] = {
    "cut short": lambda plain: plain[:-5],
    "more than the records": lambda plain: plain + b"1",
    "a record of another size": lambda plain: bytes([plain[0] + 2]) + plain[1:],
    "a number without an end": lambda plain: b"\xff" * 30 + plain,
}


@pytest.mark.parametrize("name", WRONG)
def test_records_that_are_none_are_distinguished_from_damage(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE_SIZE_MAX", 0)
    whole = compressed("gzip")
    plain = gzip.decompress(whole.view[HEADER_SIZE:])
    content = memoryview(bytes(whole.view[:HEADER_SIZE]) + gzip.compress(WRONG[name](plain)))
    with pytest.raises(CorruptLogError):
        list(record_times(LogBatch(whole.header, content, "here", 0)))
