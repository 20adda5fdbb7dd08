# SPDX-License-Identifier: Apache-2.0
"""Compressed record batches, in private memory: the arena keeps the uncompressed truth until the ack.

Only the records (from byte 61) are compressed, as one stream; the header gets the codec into its attributes, a new
length and a new checksum. A batch that does not become smaller goes as it is. The streams are those of Kafka
(org.apache.kafka.common.compress): gzip (RFC 1952), snappy in the framing of snappy-java ("xerial"), lz4 frames of
independent 64 KiB blocks without checksums, zstd frames.

The libraries are optional (``pip install shmaccum[kafka]`` brings them all); each of them lets go of the GIL while it
works, which is why a pool of threads helps.
"""

from __future__ import annotations

import importlib
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from shmaccum.exceptions import InvalidArgumentError
from shmaccum.format.batch_header import HEADER_SIZE, read_header, sealed_header

XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
XERIAL_BLOCK_SIZE = 32 * 1024
GZIP_WINDOW = 31
LZ4_BLOCK_64KIB = 4
LZ4_LEVEL_FAST = 9
LZ4_LEVEL_HIGH_MIN = 3
LZ4_LEVEL_HIGH_MAX = 12

Compress = Callable[[bytes | memoryview], bytes]


class Codec(NamedTuple):
    """One way to compress."""

    name: str
    number: int
    """Its bits in a batch's attributes."""
    module: str
    """The module that must be importable."""
    package: str
    """The package to install; empty: the module comes with Python."""
    levels: range
    level_default: int
    make: Callable[[Any, int], Compress]
    """From the imported module and a level to the function that compresses; one function per thread."""


def _gzip(_module: Any, level: int) -> Compress:
    def compress(records: bytes | memoryview) -> bytes:
        compressor = zlib.compressobj(level, zlib.DEFLATED, GZIP_WINDOW)
        return compressor.compress(records) + compressor.flush()

    return compress


def _blocks(records: bytes | memoryview) -> Iterator[bytes]:
    for start in range(0, len(records), XERIAL_BLOCK_SIZE):
        yield bytes(records[start : start + XERIAL_BLOCK_SIZE])


def _snappy(module: Any, _level: int) -> Compress:
    def compress(records: bytes | memoryview) -> bytes:
        stream = bytearray(XERIAL_HEADER)
        for block in _blocks(records):
            compressed = bytes(module.compress(block))
            stream += struct.pack(">i", len(compressed)) + compressed
        return bytes(stream)

    return compress


def _lz4(module: Any, level: int) -> Compress:
    # Kafka's level 9 is the fast compressor, any other one of the high ones (Lz4Compression).
    own = 0 if level == LZ4_LEVEL_FAST else min(max(level, LZ4_LEVEL_HIGH_MIN), LZ4_LEVEL_HIGH_MAX)

    def compress(records: bytes | memoryview) -> bytes:
        stream: bytes = module.compress(
            records, compression_level=own, block_size=LZ4_BLOCK_64KIB, block_linked=False, store_size=False
        )
        return stream

    return compress


def _zstd(module: Any, level: int) -> Compress:
    compress: Compress = module.ZstdCompressor(level=level).compress
    return compress


CODECS: Mapping[str, Codec] = {
    codec.name: codec
    for codec in (
        Codec("gzip", 1, "zlib", "", range(-1, 10), -1, _gzip),
        Codec("snappy", 2, "snappy", "python-snappy", range(1), 0, _snappy),
        Codec("lz4", 3, "lz4.frame", "lz4", range(1, 18), LZ4_LEVEL_FAST, _lz4),
        Codec("zstd", 4, "zstandard", "zstandard", range(-131072, 23), 3, _zstd),
    )
}


class Compressor:
    """Compresses record batches with one codec at one level. For one thread at a time.

    Args:
        codec: of `CODECS`.
        level: None is Kafka's default for the codec.

    Raises:
        InvalidArgumentError: the level is not the codec's, or its library is missing.
    """

    def __init__(self, codec: Codec, level: int | None = None) -> None:
        level = codec.level_default if level is None else level
        if level not in codec.levels:
            raise InvalidArgumentError(
                f"compression level {level} is not one of {codec.name}: {codec.levels[0]} to {codec.levels[-1]}"
            )
        self._number = codec.number
        self._compress = codec.make(_import(codec), level)

    def compress(self, buffers: Sequence[bytes | memoryview]) -> bytes | None:
        """The record batch of the buffers, compressed; None when it would not become smaller."""
        # Several buffers are one record that is larger than a buffer of the arena: rare, and worth a copy.
        whole = buffers[0] if len(buffers) == 1 else b"".join(buffers)
        with memoryview(whole) as batch:
            compressed = self._compress(batch[HEADER_SIZE:])
            if len(compressed) >= len(batch) - HEADER_SIZE:
                return None
            header = read_header(batch)
            coded = header._replace(attributes=header.attributes | self._number)
            return sealed_header(coded, compressed) + compressed


def _import(codec: Codec) -> Any:
    try:
        return importlib.import_module(codec.module)
    except ImportError:
        raise InvalidArgumentError(
            f"compression_type={codec.name} needs the package {codec.package}: "
            f"pip install {codec.package}, or pip install 'shmaccum[kafka]'"
        ) from None
