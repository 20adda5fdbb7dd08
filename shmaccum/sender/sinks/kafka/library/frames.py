# SPDX-License-Identifier: Apache-2.0
"""Frames of a connection to a broker: requests of the library, and Produce requests in the arena's memory.

One object represents a Produce request from its first byte to its response. Its buffers are the arena's. It releases
them after its last byte was written or its connection is closed. Only then, a `ResponseOutcome` reports it. While none
of its bytes is written, its owner may replace or withdraw it.
"""

from __future__ import annotations

import os
import uuid
from typing import Any, NamedTuple

from kafka.net.selector import TaskState
from kafka.protocol.producer.produce import ProduceResponse

from shmaccum._native import ProduceRequest
from shmaccum.common import clock
from shmaccum.sender.sinks.kafka.errors import NETWORK_EXCEPTION
from shmaccum.sender.sinks.kafka.library.failures import describe, error_code
from shmaccum.sender.sinks.kafka.produce import PRODUCE_API_KEY, PartitionAnswer, PlainAnswer, ProduceAnswer
from shmaccum.sender.sinks.kafka.traffic import NodeTraffic


class ResponseOutcome(NamedTuple):
    """The end of a request, whose buffers are released."""

    tag: Any
    """The delivery that was passed to `Client.produce`."""
    answer: ProduceAnswer | PlainAnswer | None
    """None with acks=0, or after an error."""
    error_code: int
    """0, or the reason for a missing response."""
    message: str
    latency_ms: float


class Frame:
    """The bytes of a request of the library that are being written."""

    def __init__(self, data: bytes | bytearray) -> None:
        self._left = memoryview(data)
        self.size = len(data)

    @property
    def is_written(self) -> bool:
        """True if nothing is left."""
        return not self._left

    def send(self, descriptor: int) -> int:
        """Write what the socket accepts at once. Return the number of bytes."""
        try:
            sent = os.write(descriptor, self._left)
        except (BlockingIOError, InterruptedError):
            return 0
        self.skip(sent)
        return sent

    def peek(self) -> memoryview:
        """Return the bytes that are left."""
        return self._left

    def skip(self, count: int) -> None:
        """Count bytes that were written."""
        self._left = self._left[count:]

    def end(self) -> None:
        """Note that no more of it will be written."""


class ProduceFrame:
    """The bytes of a Produce request that are being written. They are the arena's, and are released at the end."""

    __slots__ = ("_request", "correlation_id", "peek", "send", "skip")

    def __init__(self, request: ProduceRequest, correlation_id: int) -> None:
        self.correlation_id = correlation_id
        self._use_request(request)

    def _use_request(self, request: ProduceRequest) -> None:
        request.begin(self.correlation_id)
        self._request = request
        self.send = request.send
        self.peek = request.peek
        self.skip = request.skip

    @property
    def size(self) -> int:
        return self._request.size

    @property
    def is_written(self) -> bool:
        """True if nothing is left."""
        return self._request.is_written

    @property
    def is_touched(self) -> bool:
        """True if its first byte was written, or is in a TLS record. The connection then needs all of them.

        From then on, it can neither be replaced nor withdrawn.
        """
        return self._request.is_touched

    def replace(self, request: ProduceRequest) -> None:
        """Replace the request by another one with the same number. Requires that it is not touched."""
        self._request.release()
        self._use_request(request)

    def withdraw(self) -> None:
        """Release it after it was removed from all queues; no outcome follows. Requires that it is not touched."""
        self._request.release()


class Sent(ProduceFrame):
    """A Produce request in the library's queues, from its first byte to its response.

    For the library, it is both the header of a request (`api_key`, `correlation_id`, ...) and the future of a response
    (`success`, `failure`), because the library looks for both in its queue entry.
    """

    __slots__ = ("_outcomes", "_traffic", "begun_s", "is_answered", "tag")
    api_key = PRODUCE_API_KEY
    is_done = False

    def __init__(
        self,
        outcomes: list[ResponseOutcome],
        tag: Any,
        request: ProduceRequest,
        correlation_id: int,
        traffic: NodeTraffic,
        *,
        is_answered: bool,
    ) -> None:
        super().__init__(request, correlation_id)
        self._outcomes = outcomes
        self._traffic = traffic
        self.is_answered = is_answered
        self.tag = tag
        self.begun_s = clock.monotonic()

    def end(self) -> None:
        """Note that no more of it will be written. Without a response, this is its end."""
        is_written = self._request.is_written
        self._request.release()
        if self.is_answered:
            return
        if is_written:
            self._add_outcome(None, 0, "")
        else:
            self._add_outcome(None, NETWORK_EXCEPTION, "the connection was closed")

    # --- the library's header

    @property
    def api_version(self) -> int:
        return self._request.version

    def get_response_class(self) -> Sent:
        """Return the parser of the response."""
        return self

    def parse_header(self, stream: Any) -> Any:
        return ProduceResponse[self.api_version].parse_header(stream)

    def decode(self, stream: Any) -> ProduceAnswer | PlainAnswer:
        """Return the response, which follows its header. Raise ValueError if it cannot be parsed."""
        return self.read(stream) or _read_answer(ProduceResponse[self.api_version].decode(stream))

    def read(self, answer: bytes | bytearray | memoryview) -> PlainAnswer | None:
        """Return a complete response without errors; None for any other."""
        plain = self._request.read_answer(answer)
        return None if plain is None else PlainAnswer(*plain)

    # --- the library's future

    def success(self, answer: ProduceAnswer | PlainAnswer) -> None:
        self._traffic.responses += 1
        self._add_outcome(answer, 0, "")

    def failure(self, error: Exception) -> None:
        """Note that there will be no response, because the connection is closed."""
        self._request.release()
        self._add_outcome(None, error_code(error), describe(error))

    def _add_outcome(self, answer: ProduceAnswer | PlainAnswer | None, code: int, message: str) -> None:
        latency_ms = (clock.monotonic() - self.begun_s) * 1000
        self._outcomes.append(ResponseOutcome(self.tag, answer, code, message, latency_ms))

    def __repr__(self) -> str:
        return repr(self._request)


class OverTimer:
    """An expired timer in place of the library's timer for each request: a connection has one (`RequestTimer`)."""

    state = TaskState.DONE


OVER = OverTimer()


def _read_answer(response: Any) -> ProduceAnswer:
    partitions = []
    for topic in response.responses:
        key = topic.name or topic.topic_id
        partitions += [_read_partition(key, partition) for partition in topic.partition_responses]
    nodes = [(node.node_id, node.host, node.port, node.rack) for node in response.node_endpoints or ()]
    return ProduceAnswer(partitions, response.throttle_time_ms or 0, nodes)


def _read_partition(topic: str | uuid.UUID, partition: Any) -> PartitionAnswer:
    leader = partition.current_leader
    return PartitionAnswer(
        topic,
        partition.index,
        partition.error_code,
        max(partition.base_offset, -1),
        max(partition.log_append_time_ms, -1),
        partition.error_message,
        [(record.batch_index, record.batch_index_error_message) for record in partition.record_errors or ()],
        -1 if leader is None else leader.leader_id,
        -1 if leader is None else leader.leader_epoch,
    )
