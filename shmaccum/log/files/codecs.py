# SPDX-License-Identifier: Apache-2.0
"""Decompressing the records of a batch, as Kafka's clients write them (org.apache.kafka.common.compress).

gzip comes with Python; the others are the optional packages that ``shmaccum[kafka]`` brings.
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
"""More bytes than any batch has."""
ZSTD_STEP = 256
"""Compressed bytes per step. A block of 4 bytes stands for 128 KiB at most, so a step makes at most 8 MiB."""
STEP = 1 << 20
"""Decompressed bytes per step."""
SNAPPY_RATIO_MAX = 32
"""A copy of snappy takes 3 bytes and stands for 64 at most."""
GZIP_FORMAT = 31


class DecompressedTooLargeError(ValueError):
    """Compressed records stand for more bytes than the caller takes."""

    def __init__(self, size_max: int) -> None:
        super().__init__(f"the records have more than {size_max} bytes when they are decompressed")


class Codec(NamedTuple):
    """A way to compress."""

    name: str
    module: str
    """The module that must be importable."""
    package: str
    """The package to install for it."""
    pieces: Callable[[Any, bytes, bool], Iterator[bytes]]
    """From the imported module and compressed records to the records, in pieces; in bounded ones if that is wanted."""


def _gzip(module: Any, records: bytes, _is_bounded: bool) -> Iterator[bytes]:
    """One member or several, as Java's GZIPInputStream reads them."""
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
    """One frame or several, in steps, because the package allocates the most that a step may make."""
    while records:
        stream = module.LZ4FrameDecompressor()
        yield stream.decompress(records, max_length=STEP)
        while not stream.eof and not stream.needs_input:
            yield stream.decompress(b"", max_length=STEP)
        if not stream.eof:
            raise ValueError("the frame is cut short")
        records = stream.unused_data or b""


def _snappy_block(module: Any, block: bytes) -> bytes:
    """One block, which begins with its size as a number in groups of 7 bits."""
    size, shift = 0, 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    if size > SNAPPY_RATIO_MAX * len(block):
        raise ValueError(f"a block of {len(block)} bytes cannot stand for {size}")
    return bytes(module.decompress(block))


def _snappy(module: Any, records: bytes, _is_bounded: bool) -> Iterator[bytes]:
    """Blocks in the framing of snappy-java, or (from other clients) one block without it."""
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
    """A frame that need not tell its size, so as a stream."""
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
    """The records as they were before they were compressed.

    Args:
        codec_id: from the attributes of the batch.
        records: the bytes behind its header.
        size_max: the most bytes that the records may have. The work is bounded by it, whatever the bytes say.

    Raises:
        DecompressedTooLargeError: the records have more bytes.
        CodecMissingError: its package is not installed, or nobody knows the codec.
        ValueError: the bytes are not what the codec makes.
    """
    pieces, size = [], 0
    for piece in stream(codec_id, records, is_bounded=size_max < NO_BOUND):
        size += len(piece)
        if size > size_max:
            raise DecompressedTooLargeError(size_max)
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def stream(codec_id: int, records: memoryview, *, is_bounded: bool = True) -> Iterator[bytes]:
    """The same records in pieces, of which each has 8 MiB at most if they are to be bounded.

    Raises:
        CodecMissingError, ValueError: as `decompress`.
    """
    codec = CODECS.get(codec_id)
    if codec is None:
        known = ", ".join(codec.name for codec in CODECS.values())
        raise CodecMissingError(f"the batch is compressed by codec {codec_id}, which is not known; there are {known}")
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
