# SPDX-License-Identifier: Apache-2.0
"""Another reader decodes compressed batches to the same records. Errors name the package to install."""

from __future__ import annotations

import os
import struct
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.record import MemoryRecords

from shmaccum.arena.results import BatchResult
from shmaccum.common.clock import NS_PER_S
from shmaccum.common.format.batch_header import HEADER_SIZE
from shmaccum.exceptions import CorruptArenaError, InvalidArgumentError
from shmaccum.sender.sinks.compression import CODECS, CompressionMetrics, Compressor
from tests.support.accumulator import Accumulator
from tests.support.arenas import drain

each_codec = pytest.mark.parametrize("name", CODECS)
VALUES = [b"value %d " % number * 20 for number in range(12)]


def wire_bytes(sender: Accumulator, values: list[bytes]) -> tuple[bytes, ...]:
    """Return the pieces of a drained batch, as in the arena."""
    with Accumulator(sender.arena) as producer:
        for value in values:
            producer.append("flights", 0, 1_700_000_000_000, b"key", value, [("h", b"x")])
    (batch,) = drain(sender)
    pieces = tuple(bytes(buffer) for buffer in batch.buffers)
    sender.complete(batch, BatchResult.SUCCEEDED)
    return pieces


def compress(name: str, pieces: tuple[bytes, ...], level: int | None = None) -> bytes | None:
    """Return the whole compressed batch."""
    form = Compressor(CODECS[name], level).compress(pieces)
    return None if form is None else b"".join(form)


def read(batch: bytes) -> list[tuple[int, bytes, bytes]]:
    """Decode the batch with kafka-python, and check its checksum."""
    (found,) = list(iter(MemoryRecords(batch).next_batch, None))
    assert found.validate_crc()
    return [(record.offset, record.key, record.value) for record in found]


@each_codec
def test_a_compressed_batch_has_the_same_records(name: str, sender: Accumulator) -> None:
    pieces = wire_bytes(sender, VALUES)
    compressed = compress(name, pieces)
    assert compressed is not None
    assert len(compressed) < len(pieces[0])
    assert compressed[22] & 7 == CODECS[name].number
    assert read(compressed) == read(pieces[0])


@each_codec
def test_every_level_can_be_read(name: str, sender: Accumulator) -> None:
    pieces = wire_bytes(sender, VALUES)
    levels = CODECS[name].levels
    for level in {levels[0], levels[-1], *list(levels)[:20]}:
        compressed = compress(name, pieces, level)
        assert read(compressed or pieces[0]) == read(pieces[0])


@each_codec
def test_producer_and_sequence_survive(name: str, sender: Accumulator) -> None:
    sender.set_producer_id(77, 3)
    pieces = wire_bytes(sender, VALUES)
    compressed = compress(name, pieces)
    assert compressed is not None
    assert compressed[23:HEADER_SIZE] == pieces[0][23:HEADER_SIZE]
    assert struct.unpack_from(">qhi", compressed, 43) == (77, 3, 0)


@each_codec
def test_several_pieces_are_compressed_as_one(name: str, sender: Accumulator) -> None:
    pieces = wire_bytes(sender, [b"a very long value " * 500])
    assert len(pieces) > 1
    compressed = compress(name, pieces)
    assert compressed is not None
    assert read(compressed) == read(b"".join(pieces))


@each_codec
def test_what_does_not_become_smaller_goes_as_it_is(name: str, sender: Accumulator) -> None:
    assert compress(name, wire_bytes(sender, [os.urandom(2_000)])) is None


@pytest.mark.parametrize("place", [HEADER_SIZE + 5, -1, 30])
def test_bytes_that_changed_after_their_checksum_are_not_compressed(place: int, sender: Accumulator) -> None:
    """The checksum of the compressed batch would hide the damage."""
    damaged = bytearray(b"".join(wire_bytes(sender, VALUES)))
    damaged[place] ^= 1
    with pytest.raises(CorruptArenaError, match="its bytes changed after they were verified: the CRC is"):
        compress("gzip", (bytes(damaged),))


def test_snappy_is_framed_as_by_snappy_java(sender: Accumulator) -> None:
    compressed = compress("snappy", wire_bytes(sender, VALUES))
    assert compressed is not None
    assert compressed[HEADER_SIZE : HEADER_SIZE + 16].hex() == "82534e41505059000000000100000001"


def test_lz4_is_framed_as_by_kafka(sender: Accumulator) -> None:
    compressed = compress("lz4", wire_bytes(sender, VALUES))
    assert compressed is not None
    assert compressed[HEADER_SIZE : HEADER_SIZE + 7].hex() == "04224d18604082"


@pytest.mark.parametrize(("name", "level"), [("gzip", 10), ("lz4", 0), ("lz4", 18), ("zstd", 23), ("snappy", 1)])
def test_a_level_the_codec_does_not_have_is_refused(name: str, level: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"compression level {level} is not one of {name}"):
        Compressor(CODECS[name], level)


@pytest.mark.parametrize("name", ["snappy", "lz4", "zstd"])
def test_a_missing_library_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, CODECS[name].module, None)
    with pytest.raises(InvalidArgumentError, match=f"pip install {CODECS[name].package}"):
        Compressor(CODECS[name])


def test_the_metrics_count_sent_sizes_and_their_rate_without_headers() -> None:
    now_ns = 100 * NS_PER_S
    metrics = CompressionMetrics()
    wires: Any = [SimpleNamespace(topic=topic, size=HEADER_SIZE + size) for topic, size in (("a", 100), ("b", 200))]
    metrics.sent([(wires[0], HEADER_SIZE + 50), (wires[0], HEADER_SIZE + 30), (wires[1], HEADER_SIZE + 150)], now_ns)
    sizes = {"a": 2 * HEADER_SIZE + 80, "b": HEADER_SIZE + 150}
    expected = {
        "batch-size-avg": HEADER_SIZE + 230 / 3,
        "batch-size-max": HEADER_SIZE + 150,
        "compression-rate-avg": (0.5 + 0.3 + 0.75) / 3,
        "compression-rate.topic-a": 0.4,
        "compression-rate.topic-b": 0.75,
    }
    for topic, size in sizes.items():
        expected |= {f"byte-rate.topic-{topic}": size, f"byte-total.topic-{topic}": size}
    assert metrics.read(now_ns) == pytest.approx(expected)
