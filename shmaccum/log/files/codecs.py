# SPDX-License-Identifier: Apache-2.0
"""Decompress the records of a batch, as Kafka's clients compress them (org.apache.kafka.common.compress).

gzip is part of Python. The other codecs are the optional packages of ``shmaccum[kafka]``.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from shmaccum.common.packages import install
from shmaccum.exceptions import CodecMissingError

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER_SIZE = 16


NO_BOUND = 1 << 62
"""Larger than any batch."""
ZSTD_STEP = 256
"""Compressed bytes per step. A block of 4 bytes expands to at most 128 KiB, so a step produces at most 8 MiB."""
STEP = 1 << 20
"""Decompressed bytes per step."""
SNAPPY_RATIO_MAX = 32
"""A copy element of snappy has 3 bytes and expands to at most 64."""
GZIP_FORMAT = 31


class DecompressedTooLargeError(ValueError):
    """The records are larger than the caller accepts when they are decompressed."""

    def __init__(self, size_max: int) -> None:
        super().__init__(size_max)
        self.size_max = size_max

    def __str__(self) -> str:
        return f"the records have more than {self.size_max} bytes when they are decompressed"


class Codec(NamedTuple):
    """A compression codec."""

    name: str
    module: str
    """The module that must be importable."""
    package: str
    """The package to install for it."""
    pieces: Callable[[Any, bytes, bool], Iterator[bytes]]
    """Decompress: module, compressed records, is_bounded -> records in pieces. If is_bounded, pieces are small."""


def _gzip(module: Any, records: bytes, _is_bounded: bool) -> Iterator[bytes]:
    """Decompress one or more members, as Java's GZIPInputStream does."""
    while records:
        stream, rest = module.decompressobj(GZIP_FORMAT), records
        while not stream.eof:
            piece = stream.decompress(rest, STEP)
            rest = stream.unconsumed_tail
            if not piece and not rest and not stream.eof:
                raise ValueError("the stream is cut short")
            yield piece
        records = stream.unused_data.lstrip(b"\0")


def _lz4(module: Any, records: bytes, _is_bounded: bool) -> Iterator[bytes]:
    """Decompress one or more frames, in steps, because the package allocates the maximum size of a step."""
    while records:
        stream = module.LZ4FrameDecompressor()
        yield stream.decompress(records, max_length=STEP)
        while not stream.eof and not stream.needs_input:
            yield stream.decompress(b"", max_length=STEP)
        if not stream.eof:
            raise ValueError("the frame is cut short")
        records = stream.unused_data or b""


def _snappy_block(module: Any, block: bytes) -> bytes:
    """Decompress one block. It begins with its size as a varint."""
    size, shift = 0, 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    if size > SNAPPY_RATIO_MAX * len(block):
        raise ValueError(f"a block of {len(block)} bytes cannot expand to {size}")
    return bytes(module.decompress(block))


def _snappy(module: Any, records: bytes, _is_bounded: bool) -> Iterator[bytes]:
    """Decompress blocks in the framing of snappy-java, or (from other clients) one block without it."""
    if not records.startswith(XERIAL_MAGIC):
        yield _snappy_block(module, records)
        return
    position = XERIAL_HEADER_SIZE
    while position < len(records):
        (size,) = struct.unpack_from(">i", records, position)
        position += 4
        if not 0 < size <= len(records) - position:
            raise ValueError(f"a block of {size} bytes does not fit the {len(records) - position} that are left")
        yield _snappy_block(module, records[position : position + size])
        position += size


def _zstd(module: Any, records: bytes, is_bounded: bool) -> Iterator[bytes]:
    """Decompress a frame as a stream, because its size may be missing."""
    stream = module.ZstdDecompressor().decompressobj()
    step = ZSTD_STEP if is_bounded else max(len(records), 1)
    for position in range(0, len(records), step):
        yield stream.decompress(records[position : position + step])
        if stream.eof:
            return
    raise ValueError("the frame is cut short")


CODECS = {
    1: Codec("gzip", "zlib", "", _gzip),
    2: Codec("snappy", "snappy", "python-snappy", _snappy),
    3: Codec("lz4", "lz4.frame", "lz4", _lz4),
    4: Codec("zstd", "zstandard", "zstandard", _zstd),
}


def decompress(codec_id: int, records: memoryview, size_max: int = NO_BOUND) -> bytes:
    """The decompressed records.

    Args:
        codec_id: the codec in the attributes of the batch.
        records: the bytes after the header.
        size_max: the maximum size of the records. It bounds the work, whatever sizes the bytes contain.

    Raises:
        DecompressedTooLargeError: if the records are larger.
        CodecMissingError: if the package of the codec is not installed, or the codec is unknown.
        ValueError: if the bytes are not valid for the codec.
    """
    pieces, size = [], 0
    for piece in stream(codec_id, records, is_bounded=size_max < NO_BOUND):
        size += len(piece)
        if size > size_max:
            raise DecompressedTooLargeError(size_max)
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def stream(codec_id: int, records: memoryview, *, is_bounded: bool = True) -> Iterator[bytes]:
    """The decompressed records in pieces. If is_bounded, a piece has at most 8 MiB.

    Raises:
        CodecMissingError, ValueError: as `decompress`.
    """
    codec = CODECS.get(codec_id)
    if codec is None:
        known = ", ".join(codec.name for codec in CODECS.values())
        raise CodecMissingError(f"the batch is compressed by the unknown codec {codec_id}; known codecs are {known}")
    module = _import(codec)
    try:
        yield from codec.pieces(module, bytes(records), is_bounded)
    except Exception as error:  # each package has exceptions of its own
        raise ValueError(f"the {codec.name} compression is damaged: {error}") from error


def _import(codec: Codec) -> Any:
    try:
        return importlib.import_module(codec.module)
    except ImportError:
        raise CodecMissingError(
            f"the batch is compressed by {codec.name}: pip install {codec.package}, or {install('kafka')}, to read it"
        ) from None
