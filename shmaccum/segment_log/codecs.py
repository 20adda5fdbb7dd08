# SPDX-License-Identifier: Apache-2.0
"""Decompressing the records of a batch, as Kafka's clients write them (org.apache.kafka.common.compress).

gzip comes with Python; the others are the optional packages that ``shmaccum[kafka]`` brings.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from shmaccum.exceptions import CodecMissingError
from shmaccum.packages import install

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER_SIZE = 16


NO_BOUND = 1 << 62
"""More bytes than any batch has."""
ZSTD_STEP = 256
"""Compressed bytes per step. A block of 4 bytes stands for 128 KiB at most, so a step makes at most 8 MiB."""
LZ4_STEP = 1 << 20
"""Decompressed bytes per step."""
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
    decompress: Callable[[Any, bytes, int], bytes]
    """From the imported module, compressed records, and the most bytes that the caller takes, to the records."""


class _Pieces:
    """Decompressed bytes that come piece by piece, up to a bound."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._size = 0
        self._pieces: list[bytes] = []

    @property
    def left(self) -> int:
        """How many bytes a piece may have before `add` refuses it: one more than there is room for."""
        return min(self._size_max - self._size + 1, NO_BOUND)

    def add(self, piece: bytes, size: int | None = None) -> None:
        """Takes a piece, or announces the size of one."""
        self._size += len(piece) if size is None else size
        if self._size > self._size_max:
            raise DecompressedTooLargeError(self._size_max)
        if size is None:
            self._pieces.append(piece)

    def joined(self) -> bytes:
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)


def _gzip(module: Any, records: bytes, size_max: int) -> bytes:
    """One member or several, as Java's GZIPInputStream reads them."""
    pieces = _Pieces(size_max)
    while records:
        stream = module.decompressobj(GZIP_FORMAT)
        pieces.add(stream.decompress(records, pieces.left))
        if not stream.eof:
            raise ValueError("the stream is cut short")
        records = stream.unused_data.lstrip(b"\0")
    return pieces.joined()


def _lz4(module: Any, records: bytes, size_max: int) -> bytes:
    """One frame or several, in steps, because the package allocates the most that a step may make."""
    pieces = _Pieces(size_max)
    while records:
        stream = module.LZ4FrameDecompressor()
        pieces.add(stream.decompress(records, max_length=LZ4_STEP))
        while not stream.eof and not stream.needs_input:
            pieces.add(stream.decompress(b"", max_length=LZ4_STEP))
        if not stream.eof:
            raise ValueError("the frame is cut short")
        records = stream.unused_data or b""
    return pieces.joined()


def _snappy_block(module: Any, block: bytes, pieces: _Pieces) -> bytes:
    """One block, which begins with its size as a number in groups of 7 bits."""
    size, shift = 0, 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    pieces.add(b"", size)
    return bytes(module.decompress(block))


def _snappy(module: Any, records: bytes, size_max: int) -> bytes:
    """Blocks in the framing of snappy-java, or (from other clients) one block without it."""
    sizes = _Pieces(size_max)
    if not records.startswith(XERIAL_MAGIC):
        return _snappy_block(module, records, sizes)
    blocks, position = [], XERIAL_HEADER_SIZE
    while position < len(records):
        (size,) = struct.unpack_from(">i", records, position)
        position += 4
        if not 0 < size <= len(records) - position:
            raise ValueError(f"a block of {size} bytes does not fit the {len(records) - position} that are left")
        blocks.append(_snappy_block(module, records[position : position + size], sizes))
        position += size
    return b"".join(blocks)


def _zstd(module: Any, records: bytes, size_max: int) -> bytes:
    """A frame that need not tell its size, so as a stream."""
    stream, pieces = module.ZstdDecompressor().decompressobj(), _Pieces(size_max)
    step = ZSTD_STEP if size_max < NO_BOUND else max(len(records), 1)
    for position in range(0, len(records), step):
        pieces.add(stream.decompress(records[position : position + step]))
        if stream.eof:
            break
    if not stream.eof:
        raise ValueError("the frame is cut short")
    return pieces.joined()


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
    codec = CODECS.get(codec_id)
    if codec is None:
        known = ", ".join(codec.name for codec in CODECS.values())
        raise CodecMissingError(f"the batch is compressed by codec {codec_id}, which is not known; there are {known}")
    module = _import(codec)
    try:
        return codec.decompress(module, bytes(records), size_max)
    except DecompressedTooLargeError:
        raise
    except Exception as error:  # each package has exceptions of its own
        raise ValueError(f"the {codec.name} compression is damaged: {error}") from error


def _import(codec: Codec) -> Any:
    try:
        return importlib.import_module(codec.module)
    except ImportError:
        raise CodecMissingError(
            f"the batch is compressed by {codec.name}: pip install {codec.package}, or {install('kafka')}, to read it"
        ) from None
