# SPDX-License-Identifier: Apache-2.0
"""How close does shipping a log come to a bare sendfile of the same files into the same socket?

The other end discards the bytes. A request has 1 MiB: 64 batches of 16 KiB, 8 of 128 KiB or one of 1 MiB, each of a
different partition, because Kafka accepts one batch of a partition in a request. The peer sends each file by sendfile
as one request and waits for its response. The files are on tmpfs, so neither side waits for a disk, and a sync of the
positions costs nothing. The time of both begins when the connection is established.
"""

from __future__ import annotations

import os
import socket
import struct
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.harness.stopwatch import Elapsed, Stopwatch
from bench.parts.draining_broker import HEAD, TOPIC, VERSION, draining_broker
from bench.parts.segments import FullBatch, lasting_folder
from shmaccum.common.format.batch_header import HEADER_SIZE, BatchHeader, sealed_header
from shmaccum.log.files import LogDirectory
from shmaccum.sender.shipping import Shipper
from shmaccum.sender.shipping.shipper import forget

TOTAL_SIZE = 1 << 30
REQUEST_SIZE = 1 << 20
SIZES = {"16 KiB": 16 << 10, "128 KiB": 128 << 10, "1 MiB": 1 << 20}
RECORD_COUNT = 140
TIMESTAMP_MS = 1_700_000_000_000
SENDFILE_SIZE = 1 << 30


def _partition_count(batch_size: int) -> int:
    return REQUEST_SIZE // batch_size


@cache
def _log(batch_size: int) -> tempfile.TemporaryDirectory[str]:
    """Create a log of full batches with as many partitions as a request has batches."""
    folder = lasting_folder()
    records = memoryview(os.urandom(batch_size - HEADER_SIZE))
    partition_count = _partition_count(batch_size)
    with LogDirectory(folder.name) as directory:
        directory.create_topic(TOPIC, partition_count)
        for partition in range(partition_count):
            log = directory.partition(TOPIC, partition)
            for index in range(TOTAL_SIZE // batch_size // partition_count):
                log.append([_batch(records, index)])
    return folder


def _batch(records: memoryview, index: int) -> FullBatch:
    producer = 7, 0, index * RECORD_COUNT
    timestamp_ms = TIMESTAMP_MS + index
    header = BatchHeader(0, 0, -1, 2, 0, 0, RECORD_COUNT - 1, timestamp_ms, timestamp_ms, *producer, RECORD_COUNT)
    buffers = memoryview(sealed_header(header, records)), records
    return FullBatch(buffers, HEADER_SIZE + len(records), RECORD_COUNT, *producer, timestamp_ms)


def _measurement(elapsed: Elapsed, size: int) -> Measurement:
    return {"bytes_per_s": size / elapsed.wall_s, "cpu_s_per_gib": elapsed.cpu_s / size * 2**30}


# --- the shipper


def _ship(batch_size: int) -> Measurement:
    directory = _log(batch_size).name
    forget(directory)
    with (
        draining_broker(_partition_count(batch_size)) as (port, _),
        Shipper(directory, f"kafka:127.0.0.1:{port}", sink_options={"send_buffer_bytes": -1}) as shipper,
    ):
        shipper.open()
        shipper.end_here()
        while not all(stream.byte_count for stream in shipper.streams):
            shipper.run_once()
        begun = sum(stream.byte_count for stream in shipper.streams)
        stopwatch = Stopwatch()
        while not shipper.is_done:
            shipper.run_once()
        elapsed = stopwatch.elapsed()
        return _measurement(elapsed, sum(stream.byte_count for stream in shipper.streams) - begun)


# --- the peer


def _bare(batch_size: int) -> Measurement:
    files = sorted(Path(_log(batch_size).name).glob("*/*.log"))
    size = sum(file.stat().st_size for file in files)
    with (
        draining_broker(_partition_count(batch_size)) as (port, _),
        socket.create_connection(("127.0.0.1", port)) as connection,
    ):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stopwatch = Stopwatch()
        _send_files(connection, files)
        return _measurement(stopwatch.elapsed(), size)


def _send_files(connection: socket.socket, files: Sequence[Path]) -> None:
    for number, file in enumerate(files):
        with file.open("rb") as opened:
            left, position = file.stat().st_size, 0
            connection.sendall(HEAD.pack(HEAD.size - 4 + left, 0, VERSION, number), socket.MSG_MORE)
            while left:
                sent = os.sendfile(connection.fileno(), opened.fileno(), position, min(left, SENDFILE_SIZE))
                position, left = position + sent, left - sent
        (answer_size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        connection.recv(answer_size, socket.MSG_WAITALL)


def _run(measure: Callable[[int], Measurement], batch_size: int) -> Callable[[], Measurement]:
    return lambda: measure(batch_size)


def _ours(size: str) -> str:
    return f"shmaccum ship, batches of {size}"


def _peer(size: str) -> str:
    return f"bare sendfile, batches of {size}"


def contenders() -> list[Contender]:
    """Return the shipper and its peer for each size."""
    found = []
    for name, batch_size in SIZES.items():
        found += [
            Contender(_ours(name), _run(_ship, batch_size), peer=_peer(name)),
            Contender(_peer(name), _run(_bare, batch_size)),
        ]
    return found


QUESTION = Question(
    title="ship a log in memory to a draining loopback socket, requests of 1 MiB",
    figures=(
        Figure("bytes_per_s", "GB/s", 1e-9, "higher"),
        Figure("cpu_s_per_gib", "ms", 1e3, "lower", "processor time of the shipper, per GiB"),
    ),
    contenders=contenders,
    peer=_peer("1 MiB"),
    goals=(
        Goal("ship a log, of a bare ``sendfile``", _ours("1 MiB"), "bytes_per_s", 0.9, is_ratio=True),
        Goal("processor time of shipping, of a bare ``sendfile``", _ours("1 MiB"), "cpu_s_per_gib", 1.3, is_ratio=True),
    ),
    reason=(
        "For each batch, the shipper reads the header and describes it in the request. Batches of 16 KiB are "
        "64 partitions in a request; with batches of 128 KiB, the ratio is {shmaccum ship, batches of 128 "
        "KiB}."
    ),
)
