# SPDX-License-Identifier: Apache-2.0
"""The sidecar of ``bench/native/kafka_sidecar.c`` in Python, with uvloop and confluent-kafka.

``python -m bench.parts.python_sidecar SOCKET acks|none NAME=VALUE ...`` reads the same frames and writes the same acks.
While records are not acknowledged, the loop polls librdkafka each millisecond, because confluent-kafka has no
descriptor to wait for.
"""

from __future__ import annotations

import asyncio
import signal
import struct
import sys
from functools import partial
from typing import Any

from bench.harness.packages import load

FRAME = struct.Struct("=HHI")
"""The sizes of topic, key and value. Their bytes follow."""
ACK = struct.Struct("=Ii")
"""The number of the frame on its connection, and an error code of librdkafka."""
POLL_S = 0.001
FULL_POLL_S = 0.01
FLUSH_TIMEOUT_S = 30


class Sidecar:
    """The producer of all connections."""

    def __init__(self, options: dict[str, str], *, has_acks: bool) -> None:
        self.has_acks = has_acks
        self.acked: set[Connection] = set()
        self._producer = load("confluent_kafka", "confluent-kafka").Producer(options)
        self._loop = asyncio.get_running_loop()
        self._is_polled = False

    def produce(self, topic: str, key: bytes | None, value: bytes, report: Any) -> None:
        """Queue a record. If the queue is full, poll until there is space."""
        while not self._is_queued(topic, key, value, report):
            self._producer.poll(FULL_POLL_S)

    def _is_queued(self, topic: str, key: bytes | None, value: bytes, report: Any) -> bool:
        try:
            self._producer.produce(topic, value, key, on_delivery=report)
        except BufferError:
            return False
        return True

    def poll(self) -> None:
        """Write the acks of all reports that have arrived, and poll again while records are not acknowledged."""
        self._producer.poll(0)
        for connection in self.acked:
            connection.write_acks()
        self.acked.clear()
        self._is_polled = len(self._producer) > 0
        if self._is_polled:
            self._loop.call_later(POLL_S, self.poll)

    def poll_soon(self) -> None:
        """Poll, unless the next poll is scheduled."""
        if not self._is_polled:
            self.poll()

    def flush(self) -> None:
        """Wait until all records are acknowledged."""
        self._producer.flush(FLUSH_TIMEOUT_S)
        self.poll()


class Connection(asyncio.Protocol):
    """The connection of a worker."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar
        self._input = b""
        self._frame_count = 0
        self._acks: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        """Keep the transport for acks."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Produce the records of all complete frames."""
        data = self._input + data
        position = 0
        while len(data) - position >= FRAME.size:
            topic_size, key_size, value_size = FRAME.unpack_from(data, position)
            topic_begin = position + FRAME.size
            key_begin = topic_begin + topic_size
            value_begin = key_begin + key_size
            end = value_begin + value_size
            if end > len(data):
                break
            report = partial(self._note, self._frame_count) if self._sidecar.has_acks else None
            topic = data[topic_begin:key_begin].decode()
            self._sidecar.produce(topic, data[key_begin:value_begin] or None, data[value_begin:end], report)
            self._frame_count += 1
            position = end
        self._input = data[position:]
        self._sidecar.poll_soon()

    def _note(self, number: int, error: Any, _message: Any) -> None:
        self._acks.append(ACK.pack(number & 0xFFFFFFFF, error.code() if error else 0))
        self._sidecar.acked.add(self)

    def write_acks(self) -> None:
        """Write all acks that were noted with one call, unless the worker has closed the connection."""
        if not self._transport.is_closing():
            self._transport.write(b"".join(self._acks))
        self._acks.clear()


async def serve(path: str, options: dict[str, str], *, has_acks: bool) -> None:
    """Serve until SIGTERM, and then flush."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    sidecar = Sidecar(options, has_acks=has_acks)
    server = await loop.create_unix_server(lambda: Connection(sidecar), path, backlog=1024)
    await ended.wait()
    server.close()
    sidecar.flush()


def main() -> None:
    """Run the command line."""
    path, acks, *options = sys.argv[1:]
    serving = serve(path, dict(option.split("=", 1) for option in options), has_acks=acks == "acks")
    load("uvloop", "uvloop").run(serving)


if __name__ == "__main__":
    main()
