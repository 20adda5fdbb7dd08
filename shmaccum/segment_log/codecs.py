# SPDX-License-Identifier: Apache-2.0
"""Decompressing the records of a batch: gzip by Python, the others by packages that kafka-python knows to use."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import NamedTuple

from shmaccum.exceptions import CodecMissingError


class Codec(NamedTuple):
    """A way to compress: its name, and what to install for it."""

    name: str
    package: str


CODECS = {
    1: Codec("gzip", ""),
    2: Codec("snappy", "kafka-python[snappy]"),
    3: Codec("lz4", "kafka-python[lz4]"),
    4: Codec("zstd", "kafka-python[zstd]"),
}
GZIP = 1


def decompress(codec_id: int, records: memoryview) -> bytes:
    """The records as they were before they were compressed.

    Raises:
        CodecMissingError: no package that can do it is installed, or nobody knows the codec.
        ValueError: the bytes are not what the codec makes.
    """
    codec = CODECS.get(codec_id)
    if codec is None:
        raise CodecMissingError(f"compression codec {codec_id} is not known; there are {', '.join(_names())}")
    try:
        return gzip.decompress(records) if codec_id == GZIP else _decoder(codec)(bytes(records))
    except CodecMissingError:
        raise
    except Exception as error:  # each package has exceptions of its own
        raise ValueError(f"the {codec.name} compression is damaged: {error}") from error


def _names() -> list[str]:
    return [codec.name for codec in CODECS.values()]


def _decoder(codec: Codec) -> Callable[[bytes], bytes]:
    missing = CodecMissingError(f"the batch is compressed by {codec.name}: pip install '{codec.package}' to read it")
    try:
        import kafka.codec
    except ImportError:
        raise missing from None
    if not getattr(kafka.codec, f"has_{codec.name}")():
        raise missing
    decoder: Callable[[bytes], bytes] = getattr(kafka.codec, f"{codec.name}_decode")
    return decoder
