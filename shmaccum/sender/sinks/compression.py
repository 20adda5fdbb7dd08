# SPDX-License-Identifier: Apache-2.0
"""Compresses record batches in private memory. The arena stores the uncompressed batches until their acks.

Only the records (from byte 61) are compressed, as one stream. The header gets the codec in its attributes, a new
length and a new checksum. A batch that does not become smaller is sent uncompressed. The streams are those of Kafka
(org.apache.kafka.common.compress): gzip (RFC 1952), snappy in the framing of snappy-java ("xerial"), lz4 frames of
independent 64 KiB blocks without checksums, zstd frames.

The new checksum would hide damage to the arena's bytes after their drain. So a batch is copied first, and the copy must
match the checksum in its header. A damaged batch is sent unchanged, so its checksum shows the damage to each reader. A
broker rejects it, and its next drain quarantines it.

The libraries are optional (the extra ``kafka`` installs them all). They release the GIL while they work, so a pool of
threads helps. `Compression` has the threads and the metrics of a sink.
"""

from __future__ import annotations

import importlib
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, final

from shmaccum.common.format.batch_header import HEADER_SIZE, crc_problem, read_header, sealed_header
from shmaccum.common.packages import install
from shmaccum.config.compression import CompressionOptions
from shmaccum.exceptions import CorruptArenaError, InvalidArgumentError, PackageMissingError
from shmaccum.sender.sinks.sensors import Sensor, average_of, maximum_of
from shmaccum.sender.sinks.sink import WireBatch

if TYPE_CHECKING:
    from concurrent.futures import Future

XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
XERIAL_BLOCK_SIZE = 32 * 1024
GZIP_WINDOW = 31
LZ4_BLOCK_64KIB = 4
LZ4_LEVEL_FAST = 9
LZ4_LEVEL_HIGH_MIN = 3
LZ4_LEVEL_HIGH_MAX = 12

Compress = Callable[[bytes | memoryview], bytes]

Form: TypeAlias = "tuple[bytes, bytes]"
"""A compressed batch: its header, and the stream that follows."""


class CompressionType(NamedTuple):
    """A codec."""

    name: str
    number: int
    """Its bits in a batch's attributes."""
    module: str
    """The module to import."""
    package: str
    """The package to install; empty if the module is part of Python."""
    levels: range
    level_default: int
    make: Callable[[Any, int], Compress]
    """Makes the compressing function from the imported module and a level; one function per thread."""


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
    # Kafka's level 9 is the fast compressor, any other level a high one (Lz4Compression).
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


CODECS: Mapping[str, CompressionType] = {
    codec.name: codec
    for codec in (
        CompressionType("gzip", 1, "zlib", "", range(-1, 10), -1, _gzip),
        CompressionType("snappy", 2, "snappy", "python-snappy", range(1), 0, _snappy),
        CompressionType("lz4", 3, "lz4.frame", "lz4", range(1, 18), LZ4_LEVEL_FAST, _lz4),
        CompressionType("zstd", 4, "zstandard", "zstandard", range(-131072, 23), 3, _zstd),
    )
}


class Compressor:
    """Compresses record batches with one codec at one level. For one thread at a time.

    Args:
        codec: of `CODECS`.
        level: if None, Kafka's default for the codec.

    Raises:
        InvalidArgumentError: the codec has no such level, or its library is missing.
    """

    def __init__(self, codec: CompressionType, level: int | None = None) -> None:
        level = codec.level_default if level is None else level
        if level not in codec.levels:
            raise InvalidArgumentError(
                f"compression level {level} is not one of {codec.name}: {codec.levels[0]} to {codec.levels[-1]}"
            )
        self._number = codec.number
        self._compress = codec.make(_import(codec), level)

    def compress(self, buffers: Sequence[bytes | memoryview]) -> Form | None:
        """Return the compressed record batch of the buffers, or None if it would not become smaller.

        Raises:
            CorruptArenaError: the bytes do not match the checksum in their header.
        """
        batch = memoryview(b"".join(buffers))
        header = read_header(batch)
        damage = crc_problem(header, batch)
        if damage is not None:
            raise CorruptArenaError(f"its bytes changed after they were verified: {damage}")
        stream = self._compress(batch[HEADER_SIZE:])
        if len(stream) >= len(batch) - HEADER_SIZE:
            return None
        coded = header._replace(attributes=header.attributes | self._number)
        return sealed_header(coded, stream), stream


def _import(codec: CompressionType) -> Any:
    try:
        return importlib.import_module(codec.module)
    except ImportError:
        raise PackageMissingError(
            f"compression_type={codec.name} needs the package {codec.package}: pip install {codec.package}, or "
            f"{install('kafka')}"
        ) from None


@final
class Compression:
    """Compresses the batches of a sink in threads, which the first batch starts.

    Args:
        options: of the sink; they name a codec.

    Raises:
        InvalidArgumentError: the library of the codec is missing.
    """

    def __init__(self, options: CompressionOptions) -> None:
        from concurrent.futures import ThreadPoolExecutor  # slow to import, and only a sink that compresses needs it

        self._options = options
        self._own = threading.local()
        self._new_compressor()  # raises now if the library is missing
        self._pool = ThreadPoolExecutor(options.compression_threads, thread_name_prefix="shmaccum-compress")
        self.metrics = CompressionMetrics()

    def _new_compressor(self) -> Compressor:
        name = self._options.compression_type
        level = None if name == "snappy" else int(getattr(self._options, f"compression_{name}_level"))
        return Compressor(CODECS[name], level)

    def begin(self, wire: WireBatch) -> Future[Form | None]:
        """Start to compress a batch. The result is that of `Compressor.compress`."""
        try:
            return self._pool.submit(self._compress_in_thread, wire)
        except RuntimeError as error:  # no thread can be started now: the batch is sent uncompressed
            return _failed(error)

    def _compress_in_thread(self, wire: WireBatch) -> Form | None:
        """Compress in a thread of the pool. It reads the bytes of the batch, and writes no shared state.

        It takes the batch instead of its buffers, because the pool references the arguments briefly after the job.
        """
        compressor: Compressor | None = getattr(self._own, "compressor", None)
        if compressor is None:
            compressor = self._own.compressor = self._new_compressor()
        return compressor.compress(wire.buffers)

    def close(self) -> None:
        """End the threads. Batches that are still queued stay uncompressed."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _failed(error: RuntimeError) -> Future[Form | None]:
    from concurrent.futures import Future

    job: Future[Form | None] = Future()
    job.set_exception(error)
    return job


def compression_of(options: CompressionOptions) -> Compression | None:
    """Return the compression of a sink with these options, or None if its batches are sent uncompressed.

    Raises:
        InvalidArgumentError: the library of the codec is missing.
    """
    return None if options.compression_type == "none" else Compression(options)


def compressed(job: Future[Form | None], report: Callable[[str], object]) -> Form | None:
    """Return the result of `Compression.begin`. If the codec failed, report it and return None."""
    error = job.exception()
    if error is None:
        return job.result()
    report(f"a batch could not be compressed and was sent uncompressed: {type(error).__name__}: {error}")
    return None


class _TopicCompression:
    def __init__(self, now_ns: int) -> None:
        self.size = Sensor(now_ns)
        self.rate = Sensor(now_ns)


class CompressionMetrics:
    """Metrics of batches that are sent smaller than they are in the arena, under the names of Kafka's producer."""

    def __init__(self) -> None:
        self._topics: dict[str, _TopicCompression] = {}

    def _topic(self, topic: str, now_ns: int) -> _TopicCompression:
        known = self._topics.get(topic)
        if known is None:
            known = self._topics[topic] = _TopicCompression(now_ns)
        return known

    def sent(self, wires_and_sizes: Iterable[tuple[WireBatch, int]], now_ns: int) -> None:
        """Count batches, each with its sent size. Kafka's rate does not count the header."""
        for wire, size in wires_and_sizes:
            topic = self._topic(wire.topic, now_ns)
            topic.size.add(size, now_ns)
            topic.rate.add((size - HEADER_SIZE) / (wire.size - HEADER_SIZE), now_ns)

    def read(self, now_ns: int) -> dict[str, float]:
        """Return the metrics by name. The name of a topic's metric ends in the topic."""
        sizes = [topic.size for topic in self._topics.values()]
        named = {
            "batch-size-avg": average_of(sizes, now_ns),
            "batch-size-max": maximum_of(sizes, now_ns),
            "compression-rate-avg": average_of([topic.rate for topic in self._topics.values()], now_ns),
        }
        for name, topic in self._topics.items():
            meter = topic.size.meter("byte", now_ns)
            rate = {"compression-rate": topic.rate.average(now_ns)}
            named.update((f"{each}.topic-{name}", number) for each, number in {**meter, **rate}.items())
        return named
