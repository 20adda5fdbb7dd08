# SPDX-License-Identifier: Apache-2.0
"""Requests of the maximum size: meanwhile, the other clients of the server get their responses.

Another client sends ApiVersions repeatedly. Its figure is the median of its waits during the heavy request, each
weighted by its length. This is the wait at a random moment. So one stop of several seconds counts, but a pause of the
machine for a hundredth of the time does not. This wait may be `WAIT_GROWTH_MAX_S` longer than without the heavy
request.
"""

from __future__ import annotations

import random
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shmaccum._native import crc32c
from shmaccum.log.files.topic_settings import SETTINGS
from shmaccum.log.server.messages import encode_request
from tests.strangers.check import MEMORY_GROWTH_MAX, WAIT_GROWTH_MAX_S, memory_of
from tests.strangers.listeners import MATCHED, _connected, kafka_client, serve_writable
from tests.support.log_server import answer_of
from tests.support.segment_log import make_batch

TOPIC_COUNT, PARTITION_COUNT = 3, 100
TOPICS = [f"large-{number}" for number in range(TOPIC_COUNT)]
BOMB_SIZE = 300 << 20
GROUP_COUNT = 200
SMALL_COUNT = 60
NAMED_COUNT = 20_000
QUIET_S = 0.5
REPETITIONS_MAX = 2
HOUR_MS = 3_600_000
ANSWER_S = 120.0

Frame = Callable[[], bytes]


def _each_partition(values: Callable[[int], dict[str, Any]]) -> list[list[dict[str, Any]]]:
    return [[values(number) for number in range(PARTITION_COUNT)] for _ in TOPICS]


def _create_topics() -> bytes:
    one = {"num_partitions": PARTITION_COUNT, "replication_factor": 1, "assignments": [], "configs": []}
    topics = [{"name": name, **one} for name in TOPICS]
    return encode_request(19, 5, {"topics": topics, "timeout_ms": 60_000, "validate_only": False})


def _create_topics_by_metadata() -> bytes:
    return encode_request(3, 1, {"topics": [{"name": f"small-{number}"} for number in range(SMALL_COUNT)]})


def _metadata() -> bytes:
    return encode_request(3, 1, {"topics": None})


def _list_offsets(timestamp: int) -> bytes:
    asked = _each_partition(lambda n: {"partition_index": n, "current_leader_epoch": -1, "timestamp": timestamp})
    topics = [{"name": name, "partitions": places} for name, places in zip(TOPICS, asked, strict=True)]
    return encode_request(2, 7, {"replica_id": -1, "isolation_level": 0, "topics": topics})


def _offset_of(topic: str, timestamp: int) -> bytes:
    asked = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}]
    topics = [{"name": topic, "partitions": asked}]
    return encode_request(2, 7, {"replica_id": -1, "isolation_level": 0, "topics": topics})


def _produce(topics: Sequence[str], count: int, records: bytes) -> bytes:
    data = [
        {"name": name, "partition_data": [{"index": n, "records": records} for n in range(count)]} for name in topics
    ]
    return encode_request(0, 7, {"transactional_id": None, "acks": -1, "timeout_ms": 60_000, "topic_data": data})


def _fetch() -> bytes:
    place = {"current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1, "log_start_offset": -1}
    places = _each_partition(lambda n: {"partition": n, "partition_max_bytes": 1 << 20, **place})
    topics = [{"topic": name, "partitions": found} for name, found in zip(TOPICS, places, strict=True)]
    limits = {"replica_id": -1, "max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0}
    more = {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": [], "rack_id": ""}
    return encode_request(1, 11, {**limits, "topics": topics, **more})


def _commit(group: str) -> bytes:
    one = {"committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": ""}
    places = _each_partition(lambda n: {"partition_index": n, **one})
    topics = [{"name": name, "partitions": found} for name, found in zip(TOPICS, places, strict=True)]
    nobody = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    return encode_request(8, 7, {"group_id": group, **nobody, "topics": topics})


def _describe_configs() -> bytes:
    resources = [  # no two are equal
        {"resource_type": 2, "resource_name": name, "configuration_keys": [*SETTINGS, str(number)]}
        for number, name in enumerate(TOPICS * 600)
    ]
    return encode_request(32, 2, {"resources": resources, "include_synonyms": True})


def _alter_configs() -> bytes:
    configs = [{"name": "retention.ms", "value": "1000000"}]
    resources = [
        {"resource_type": 2, "resource_name": f"small-{number}", "configs": configs} for number in range(SMALL_COUNT)
    ]
    return encode_request(33, 1, {"resources": resources, "validate_only": False})


def _delete_records() -> bytes:
    topics = [
        {"name": name, "partitions": [{"partition_index": n, "offset": -1} for n in range(PARTITION_COUNT)]}
        for name in TOPICS
    ]
    return encode_request(21, 1, {"topics": topics, "timeout_ms": 60_000})


def _delete_topics() -> bytes:
    return encode_request(20, 5, {"topic_names": TOPICS, "timeout_ms": 60_000})


def _groups() -> list[str]:
    return [f"g{number}" for number in range(NAMED_COUNT)]


HEAVY: Mapping[str, Frame] = {
    "CreateTopics": _create_topics,
    "Metadata that creates topics": _create_topics_by_metadata,
    "Metadata": _metadata,
    "DescribeConfigs": _describe_configs,
    "AlterConfigs": _alter_configs,
    "Produce to every partition": lambda: _produce(TOPICS, PARTITION_COUNT, make_batch([b"x"]).wire),
    "ListOffsets of the ends": lambda: _list_offsets(-1),
    "ListOffsets by time": lambda: _list_offsets(1),
    "ListOffsets by time of a bomb": lambda: _offset_of("bomb", int(time.time() * 1000) - HOUR_MS),
    "ListOffsets of the largest time": lambda: _offset_of("long", -3),
    "Fetch": _fetch,
    "OffsetCommit": lambda: _commit("one"),
    "OffsetFetch": lambda: encode_request(9, 8, {"groups": _asked_groups(), "require_stable": False}),
    "DescribeGroups": lambda: encode_request(15, 4, {"groups": _groups(), "include_authorized_operations": False}),
    "ListGroups": lambda: encode_request(16, 4, {"states_filter": []}),
    "DeleteGroups": lambda: encode_request(42, 1, {"groups_names": _groups()}),
    "DescribeLogDirs": lambda: encode_request(35, 1, {"topics": None}),
    "DeleteRecords": _delete_records,
    "DeleteTopics": _delete_topics,
}


def _asked_groups() -> list[dict[str, Any]]:
    return [{"group_id": name, "topics": None} for name in _groups()[:10_000]]


class Heavy(NamedTuple):
    """The figures of one heavy request."""

    name: str
    frame_size: int
    took_s: float
    quiet_s: float
    wait_s: float
    largest_s: float
    memory: int

    def __str__(self) -> str:
        return (
            f"{self.name}: a frame of {self.frame_size} bytes took {self.took_s:.2f} s; another client waited "
            f"{self.quiet_s * 1e3:.1f} ms before, {self.wait_s * 1e3:.1f} ms meanwhile (largest "
            f"{self.largest_s * 1e3:.0f}); {self.memory >> 20} MiB more"
        )

    @property
    def is_kept(self) -> bool:
        return self.wait_s <= self.quiet_s + WAIT_GROWTH_MAX_S and self.memory <= MEMORY_GROWTH_MAX


def _best(*arguments: Any) -> Heavy:
    """Repeat a measurement until the other client does not wait too long. Other programs of the machine can only
    lengthen its waits.
    """
    measured = _measured(*arguments)
    for _ in range(REPETITIONS_MAX):
        if measured.is_kept:
            break
        measured = _measured(*arguments)._replace(memory=measured.memory)  # the first run may use new memory
    return measured


def check_requests(folder: Path, _name: str, _dice: random.Random) -> Iterator[Heavy]:
    """Send each heavy request, in the order of the table."""
    with serve_writable(folder, "", MATCHED) as running:
        port = int(running.address[1])
        with _connected(port) as connection:
            connection.settimeout(ANSWER_S)
            _prepare(connection)
            for name, frame in HEAVY.items():
                yield _best(name, frame(), connection, port, running.process.pid)


def _prepare(connection: Any) -> None:
    for topic in ("bomb", "long"):
        _answered(connection, encode_request(3, 1, {"topics": [{"name": topic}]}))
    _answered(connection, _produce(["bomb"], 1, bomb()))
    records = make_batch([bytes(900_000)]).wire
    for _ in range(100):
        _answered(connection, _produce(["long"], 1, records))
    for number in range(GROUP_COUNT):
        one = {"partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": ""}
        nobody = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
        topics = [{"name": "long", "partitions": [one]}]
        _answered(connection, encode_request(8, 7, {"group_id": f"g{number}", **nobody, "topics": topics}))


def _answered(connection: Any, frame: bytes) -> None:
    connection.sendall(frame)
    assert answer_of(connection), "the server closed the connection of a heavy request"


def _varint(number: int) -> bytes:
    number, out = number << 1, bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def bomb(size: int = BOMB_SIZE) -> bytes:
    """Return a batch with one record of `size` zeros, compressed by gzip."""
    record = b"\0\0\0\1" + _varint(size)
    codec = zlib.compressobj(9, zlib.DEFLATED, 31)
    body = codec.compress(_varint(len(record) + size + 1) + record)
    for _ in range(size >> 20):
        body += codec.compress(bytes(1 << 20))
    body += codec.compress(b"\0") + codec.flush()
    now_ms = int(time.time() * 1000)
    tail = struct.pack(">hiqqqhii", 1, 0, now_ms, now_ms, -1, -1, -1, 1) + body
    head = struct.pack(">iBI", -1, 2, crc32c(tail)) + tail
    return struct.pack(">qi", 0, len(head)) + head


def _measured(name: str, frame: bytes, connection: Any, port: int, pid: int) -> Heavy:
    ask, leave = kafka_client(port)
    try:
        quiet_s, _ = _weighted(_asked_while(ask, lambda: time.sleep(QUIET_S)))
        before, began_s = memory_of(pid), time.monotonic()
        peak = [before]
        waits_s = _asked_while(ask, lambda: _answered(connection, frame), lambda: peak.append(memory_of(pid)))
        took_s = time.monotonic() - began_s
    finally:
        leave()
    return Heavy(name, len(frame), took_s, quiet_s, *_weighted(waits_s), max(peak) - before)


def _asked_while(
    ask: Callable[[], object], act: Callable[[], object], look: Callable[[], object] = lambda: None
) -> list[float]:
    """Return the waits of a client that sends requests without a pause until the act has ended."""
    is_over = threading.Event()
    waits_s: list[float] = []

    def ask_again_and_again() -> None:
        while not is_over.is_set() or not waits_s:
            began_s = time.monotonic()
            ask()
            waits_s.append(time.monotonic() - began_s)
            look()

    thread = threading.Thread(target=ask_again_and_again)
    thread.start()
    try:
        act()
    finally:
        is_over.set()
        thread.join()
    return waits_s


def _weighted(waits_s: Sequence[float]) -> tuple[float, float]:
    """Return the median wait at a random moment, and the largest wait."""
    passed_s, half_s = 0.0, sum(waits_s) / 2
    for wait_s in sorted(waits_s):
        passed_s += wait_s
        if passed_s >= half_s:
            return wait_s, max(waits_s)
    raise AssertionError("nothing was asked")
