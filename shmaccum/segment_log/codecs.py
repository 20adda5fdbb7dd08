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

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER_SIZE = 16


class Codec(NamedTuple):
    """A way to compress."""

    name: str
    module: str
    """The module that must be importable."""
    package: str
    """The package to install for it."""
    decompress: Callable[[Any, bytes], bytes]
    """From the imported module and compressed records to the records."""


def _whole(module: Any, records: bytes) -> bytes:
    """Modules that have one function for it."""
    found: bytes = module.decompress(records)
    return found


def _snappy(module: Any, records: bytes) -> bytes:
    """Blocks in the framing of snappy-java, or (from other clients) one block without it."""
    if not records.startswith(XERIAL_MAGIC):
        return bytes(module.decompress(records))
    blocks, position = [], XERIAL_HEADER_SIZE
    while position < len(records):
        (size,) = struct.unpack_from(">i", records, position)
        position += 4
        blocks.append(module.decompress(records[position : position + size]))
        position += size
    return b"".join(blocks)


def _zstd(module: Any, records: bytes) -> bytes:
    """A frame that need not tell its size, so as a stream."""
    stream = module.ZstdDecompressor().decompressobj()
    found: bytes = stream.decompress(records)
    if not stream.eof:
        raise ValueError("the frame is cut short")
    return found


CODECS = {
    1: Codec("gzip", "gzip", "", _whole),
    2: Codec("snappy", "snappy", "python-snappy", _snappy),
    3: Codec("lz4", "lz4.frame", "lz4", _whole),
    4: Codec("zstd", "zstandard", "zstandard", _zstd),
}


def decompress(codec_id: int, records: memoryview) -> bytes:
    """The records as they were before they were compressed.

    Raises:
        CodecMissingError: its package is not installed, or nobody knows the codec.
        ValueError: the bytes are not what the codec makes.
    """
    codec = CODECS.get(codec_id)
    if codec is None:
        known = ", ".join(codec.name for codec in CODECS.values())
        raise CodecMissingError(f"the batch is compressed by codec {codec_id}, which is not known; there are {known}")
    module = _import(codec)
    try:
        return codec.decompress(module, bytes(records))
    except Exception as error:  # each package has exceptions of its own
        raise ValueError(f"the {codec.name} compression is damaged: {error}") from error


def _import(codec: Codec) -> Any:
    try:
        return importlib.import_module(codec.module)
    except ImportError:
        raise CodecMissingError(
            f"the batch is compressed by {codec.name}: pip install {codec.package}, or 'shmaccum[kafka]', to read it"
        ) from None
