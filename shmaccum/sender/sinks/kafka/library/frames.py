# SPDX-License-Identifier: Apache-2.0
"""Frames of a connection to a broker: requests of the library as they are, and Produce requests as they lie.

A Produce request is one object from its first byte to its answer. Its buffers are the arena's: it lets go of them when
its last byte was taken or its connection is closed; only then a `ResponseOutcome` reports it. As long as none of its
bytes is taken, its owner may replace or withdraw it.
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
    """How a request ended. Its buffers are not used any more."""

    tag: Any
    """The delivery that was given to `Client.produce`."""
    answer: ProduceAnswer | PlainAnswer | None
    """None when there was none: with acks=0, or after an error."""
    error_code: int
    """0, or why there is no answer."""
    message: str
    latency_ms: float


class Frame:
    """The bytes of a request of the library on their way out."""

    def __init__(self, data: bytes | bytearray) -> None:
        self._left = memoryview(data)
        self.size = len(data)

    @property
    def is_written(self) -> bool:
        """True when nothing is left."""
        return not self._left

    def send(self, descriptor: int) -> int:
        """Writes what the socket takes at once; answers how many bytes."""
        try:
            sent = os.write(descriptor, self._left)
        except (BlockingIOError, InterruptedError):
            return 0
        self.skip(sent)
        return sent

    def peek(self) -> memoryview:
        """The bytes that are left."""
        return self._left

    def skip(self, count: int) -> None:
        """So many bytes are written."""
        self._left = self._left[count:]

    def end(self) -> None:
        """Nothing of it will be written any more."""


class ProduceFrame:
    """The bytes of a Produce request on their way out. They are the arena's, and are let go of when none is left."""

    __slots__ = ("_request", "correlation_id", "peek", "send", "skip")

    def __init__(self, request: ProduceRequest, correlation_id: int) -> None:
        self.correlation_id = correlation_id
        self._carry(request)

    def _carry(self, request: ProduceRequest) -> None:
        request.begin(self.correlation_id)
        self._request = request
        self.send = request.send
        self.peek = request.peek
        self.skip = request.skip

    @property
    def size(self) -> int:
        """All its bytes."""
        return self._request.size

    @property
    def is_written(self) -> bool:
        """True when nothing is left."""
        return self._request.is_written

    @property
    def is_touched(self) -> bool:
        """True when its first byte was written, or is in a record of TLS: then its connection needs the last one, too.

        Nothing is taken back of it any more.
        """
        return self._request.is_touched

    def replace(self, request: ProduceRequest) -> None:
        """Another request goes in its place, under its number. Only of an untouched one."""
        self._request.release()
        self._carry(request)

    def withdraw(self) -> None:
        """It is in no queue any more, and nobody is told how it ended. Only of an untouched one."""
        self._request.release()


class Sent(ProduceFrame):
    """A Produce request in the library's queues, from its first byte to its answer.

    The library finds in it the header of a request (`api_key`, `correlation_id`, ...) and the future of a response
    (`success`, `failure`). One object for both, because the library looks for either in the entry that it keeps.
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
        """Nothing of it will be written any more; of one without an answer that is the end."""
        is_written = self._request.is_written
        self._request.release()
        if self.is_answered:
            return
        if is_written:
            self._tell(None, 0, "")
        else:
            self._tell(None, NETWORK_EXCEPTION, "the connection was closed")

    # --- as the library's header

    @property
    def api_version(self) -> int:
        """The version of the request."""
        return self._request.version

    def get_response_class(self) -> Sent:
        """The parser of the response."""
        return self

    def parse_header(self, stream: Any) -> Any:
        """The response's header."""
        return ProduceResponse[self.api_version].parse_header(stream)

    def decode(self, stream: Any) -> ProduceAnswer | PlainAnswer:
        """The answer, behind its header; ValueError when it cannot be read."""
        return self.read(stream) or _read_answer(ProduceResponse[self.api_version].decode(stream))

    def read(self, answer: bytes | bytearray | memoryview) -> PlainAnswer | None:
        """A whole answer in which all is well; None of any other."""
        plain = self._request.read_answer(answer)
        return None if plain is None else PlainAnswer(*plain)

    # --- as the library's future

    def success(self, answer: ProduceAnswer | PlainAnswer) -> None:
        """Takes the answer in."""
        self._traffic.responses += 1
        self._tell(answer, 0, "")

    def failure(self, error: Exception) -> None:
        """It will not be answered: its connection is closed."""
        self._request.release()
        self._tell(None, error_code(error), describe(error))

    def _tell(self, answer: ProduceAnswer | PlainAnswer | None, code: int, message: str) -> None:
        latency_ms = (clock.monotonic() - self.begun_s) * 1000
        self._outcomes.append(ResponseOutcome(self.tag, answer, code, message, latency_ms))

    def __repr__(self) -> str:
        return repr(self._request)


class OverTimer:
    """The timer that the library keeps for each request, over from the beginning: a connection has one (`Timer`)."""

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
