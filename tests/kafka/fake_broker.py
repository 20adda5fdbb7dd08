# SPDX-License-Identifier: Apache-2.0
"""A scripted cluster, with any error, delay, disconnection or version.

Each broker has a thread for each connection. kafka-python's classes decode the requests. Batches are checked
(CRC) and stored. The test decides the answer for each batch with `on_produce`.
"""

from __future__ import annotations

import contextlib
import io
import socket
import ssl
import struct
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from crc32c import crc32c
from kafka.protocol.api_header import RequestHeader
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest, MetadataResponse
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse, ProduceRequest, ProduceResponse
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from shmaccum.sender.sinks.sink import WireBatch

LOOPBACK = "127.0.0.1"
CLIENT_ID_HEADER = struct.Struct(">hhi")
LEADER_NOT_AVAILABLE = 5
CRC_POSITION = 17
CRC_START = 21
PRODUCER_ID_POSITION = 43
RECORD_COUNT_POSITION = 57
RESPONSES: Mapping[Any, Any] = {
    ProduceRequest: ProduceResponse,
    MetadataRequest: MetadataResponse,
    ApiVersionsRequest: ApiVersionsResponse,
    InitProducerIdRequest: InitProducerIdResponse,
    SaslHandshakeRequest: SaslHandshakeResponse,
    SaslAuthenticateRequest: SaslAuthenticateResponse,
}
REQUESTS = {kind.API_KEY: kind for kind in RESPONSES}
SASL_AUTHENTICATION_FAILED = 58


@dataclass(frozen=True)
class Arrived:
    """A record batch that a broker received."""

    node_id: int
    version: int
    topic: str
    partition: int
    wire_bytes: bytes
    acks: int

    @property
    def sequence(self) -> tuple[int, int, int]:
        """Producer id, epoch and base sequence."""
        found: tuple[int, int, int] = struct.unpack_from(">qhi", self.wire_bytes, PRODUCER_ID_POSITION)
        return found

    def wire_batch(self) -> Any:
        """The batch as a sink receives it."""
        (record_count,) = struct.unpack_from(">i", self.wire_bytes, RECORD_COUNT_POSITION)
        buffers = (memoryview(self.wire_bytes),)
        place = (self.topic, self.partition, self.partition)
        no_batch: Any = None
        return WireBatch(*place, buffers, len(self.wire_bytes), record_count, *self.sequence, -1, 1, no_batch)

    @property
    def is_damaged(self) -> bool:
        """True when the CRC does not fit the bytes."""
        return bool(struct.unpack_from(">I", self.wire_bytes, CRC_POSITION)[0] != crc32c(self.wire_bytes[CRC_START:]))

    def check(self) -> None:
        """Check length and CRC, as a broker does."""
        (length,) = struct.unpack_from(">i", self.wire_bytes, 8)
        assert length + 12 == len(self.wire_bytes)
        assert not self.is_damaged


@dataclass
class Reply:
    """The answer for one batch."""

    error_code: int = 0
    base_offset: int = 0
    log_append_time_ms: int = -1
    message: str | None = None
    record_errors: list[tuple[int, str | None]] = field(default_factory=list)
    leader: tuple[int, int] | None = None
    """Id and epoch of the current leader (KIP-951)."""


class Cut(Exception):  # noqa: N818 - not an error of ours
    """Raised by `on_produce` to close the connection instead of answering."""


class Silence(Exception):  # noqa: N818
    """Raised by `on_produce` to send no more answers over this connection."""


def bound_socket() -> socket.socket:
    """A socket that reserves a loopback port and does not listen yet."""
    listener = socket.socket()
    listener.bind((LOOPBACK, 0))
    return listener


class FakeBroker:
    """One node.

    Args:
        cluster: its cluster.
        node_id: from 0.
        listener: the socket on which it listens.
        receive_buffer: size in bytes. With a small one, the sink writes in parts.
    """

    def __init__(self, cluster: FakeCluster, node_id: int, listener: socket.socket, receive_buffer: int | None) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self._listener = listener
        if receive_buffer is not None:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._listener.listen()
        self.port: int = self._listener.getsockname()[1]
        self.connection_count = 0
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as Apache Kafka
            if self.cluster.tls is not None:
                connection = self.cluster.tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            self.connection_count += 1
            self._connections.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, Cut), connection, connection.makefile("rb") as stream:
            is_silent = False
            while frame := self._read_frame(stream):
                if is_silent:  # answers are in order, so none follows
                    continue
                try:
                    answer = self._answer(frame)
                except Silence:
                    is_silent = True
                    continue
                except Cut:
                    raise
                except Exception as error:
                    self.cluster.failures.append(error)
                    raise
                if answer is not None:
                    connection.sendall(answer)

    @staticmethod
    def _read_frame(stream: io.BufferedReader) -> bytes:
        head = stream.read(4)
        if len(head) < 4:
            return b""
        (size,) = struct.unpack(">i", head)
        frame = stream.read(size)
        return frame if len(frame) == size else b""

    def _answer(self, frame: bytes) -> bytes | None:
        key, version, correlation_id = CLIENT_ID_HEADER.unpack_from(frame)
        kind = REQUESTS[key]
        stream = io.BytesIO(frame)
        RequestHeader.decode(stream, flexible=kind.flexible_version_q(version))
        request = kind.decode(frame[stream.tell() :], version=version)
        response = self.cluster.answer(self, kind, version, request)
        if response is None:
            return None
        response.API_VERSION = version
        response.with_header(correlation_id=correlation_id)
        return bytes(response.encode(header=True, framed=True))

    def cut(self) -> None:
        """Closes every connection."""
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._connections.clear()

    def close(self) -> None:
        """Stop listening, then close every connection."""
        accepting, *_ = self._threads
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        accepting.join(10)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)


class FakeCluster:
    """Brokers, topics, and the batches sent to them.

    Args:
        broker_count: nodes 0 to n - 1; partition p is led by node p modulo n.
        topics: name -> partition count.
        versions: API key -> oldest and newest version.
        listener: the socket of node 0. If it is None, any port.
        tls: if it is None, connections are plain text.

    Attributes:
        arrived: every batch, in the order of arrival.
        failures: exceptions of its threads; `fake_cluster` raises them.
        on_produce: returns the answer for a batch; may raise `Cut` or `Silence`, and may wait.
        on_damage: answers a batch with a wrong CRC. If it is None, such a batch fails the test.
        on_metadata: called before metadata are answered; may wait.
        login_answer: the bytes that a client gets after a login.
        on_login: returns the lifetime of a session in milliseconds, or None to reject the bytes of a login.
        topic_errors: topic -> error code in the metadata.
        leaders: topic and partition -> the node that leads it, or -1.
        throttle_time_ms: the throttle time of every Produce answer.
        metadata_throttle_ms: the throttle time of every Metadata answer.
    """

    broker_type = FakeBroker

    def __init__(
        self,
        broker_count: int = 1,
        topics: Mapping[str, int] | None = None,
        versions: Mapping[int, tuple[int, int]] | None = None,
        receive_buffer: int | None = None,
        listener: socket.socket | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.tls = tls
        self.topics = dict(topics or {"flights": 1})
        self.versions = {0: (3, 13), 3: (0, 13), 17: (0, 1), 18: (0, 4), 22: (0, 4), 36: (0, 2), **(versions or {})}
        self.topic_ids = {topic: uuid.uuid4() for topic in self.topics}
        self.topic_errors: dict[str, int] = {}
        self.producer_id_error = 0
        self.producer_ids = iter(range(7_000, 8_000))
        self.throttle_time_ms = 0
        self.metadata_throttle_ms = 0
        self.arrived: list[Arrived] = []
        self.failures: list[Exception] = []
        self.metadata_count = 0
        self.on_produce: Callable[[Arrived], Reply] = lambda arrived: Reply()  # noqa: ARG005
        self.on_damage: Callable[[Arrived], Reply] | None = None
        self.on_metadata: Callable[[], None] = lambda: None
        self.login_answer = b""
        self.on_login: Callable[[bytes], int | None] = lambda _: 0
        self.leader_epoch = 1
        self.leaders = {
            (topic, partition): partition % broker_count
            for topic, count in self.topics.items()
            for partition in range(count)
        }
        # This must come last, because clients may connect as soon as they listen.
        listeners = [listener or bound_socket(), *(bound_socket() for _ in range(1, broker_count))]
        self.brokers: list[FakeBroker] = []
        self.brokers += [self.broker_type(self, *numbered, receive_buffer) for numbered in enumerate(listeners)]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{LOOPBACK}:{broker.port}" for broker in self.brokers)

    def close(self) -> None:
        for broker in self.brokers:
            broker.close()

    # --- answers

    def answer(self, broker: FakeBroker, kind: Any, version: int, request: Any) -> Any:
        """Return the response to a request, or None if none is expected."""
        if kind is ProduceRequest:
            return self._answer_produce(broker, version, request)
        if kind is MetadataRequest:
            return self._answer_metadata(request)
        if kind is InitProducerIdRequest:
            producer_id = -1 if self.producer_id_error else next(self.producer_ids)
            return InitProducerIdResponse(
                throttle_time_ms=0, error_code=self.producer_id_error, producer_id=producer_id, producer_epoch=0
            )
        if kind is SaslHandshakeRequest:
            return SaslHandshakeResponse(error_code=0, mechanisms=[request.mechanism])
        if kind is SaslAuthenticateRequest:
            return self._answer_login(request)
        keys = [
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=oldest, max_version=newest)
            for key, (oldest, newest) in self.versions.items()
        ]
        return ApiVersionsResponse(error_code=0, api_keys=keys, throttle_time_ms=0)

    def _answer_login(self, request: Any) -> Any:
        lifetime_ms = self.on_login(bytes(request.auth_bytes))
        return SaslAuthenticateResponse(
            error_code=SASL_AUTHENTICATION_FAILED if lifetime_ms is None else 0,
            error_message="rejected" if lifetime_ms is None else None,
            auth_bytes=self.login_answer,
            session_lifetime_ms=lifetime_ms or 0,
        )

    def _answer_metadata(self, request: Any) -> Any:
        self.metadata_count += 1
        self.on_metadata()
        asked = [topic.name for topic in request.topics or ()]
        brokers = [
            MetadataResponse.MetadataResponseBroker(node_id=broker.node_id, host=LOOPBACK, port=broker.port, rack=None)
            for broker in self.brokers
        ]
        return MetadataResponse(
            throttle_time_ms=self.metadata_throttle_ms,
            brokers=brokers,
            cluster_id="fake",
            controller_id=0,
            topics=[self._topic_metadata(topic) for topic in asked],
        )

    def _topic_metadata(self, topic: str) -> Any:
        code = self.topic_errors.get(topic, 0 if topic in self.topics else 3)
        partitions = [
            MetadataResponse.MetadataResponseTopic.MetadataResponsePartition(
                error_code=0 if self.leaders[topic, partition] >= 0 else LEADER_NOT_AVAILABLE,
                partition_index=partition,
                leader_id=self.leaders[topic, partition],
                leader_epoch=self.leader_epoch,
                replica_nodes=[0],
                isr_nodes=[0],
                offline_replicas=[],
            )
            for partition in range(self.topics.get(topic, 0))
            if code == 0
        ]
        topic_id = self.topic_ids.get(topic, uuid.UUID(int=0))
        return MetadataResponse.MetadataResponseTopic(
            error_code=code, name=topic, topic_id=topic_id, is_internal=False, partitions=partitions
        )

    def _reply(self, arrived: Arrived) -> Reply:
        if self.on_damage is not None and arrived.is_damaged:
            return self.on_damage(arrived)
        arrived.check()
        self.arrived.append(arrived)
        return self.on_produce(arrived)

    def _answer_produce(self, broker: FakeBroker, version: int, request: Any) -> Any:
        names = {topic_id: topic for topic, topic_id in self.topic_ids.items()}
        responses, nodes = [], []
        for topic in request.topic_data:
            name = topic.name or names[topic.topic_id]
            replies = []
            for data in topic.partition_data:
                arrived = Arrived(broker.node_id, version, name, data.index, bytes(data.records), request.acks)
                reply = self._reply(arrived)
                replies.append(partition_response(data.index, reply))
                nodes += [] if reply.leader is None else [reply.leader[0]]
            responses.append(
                ProduceResponse.TopicProduceResponse(name=name, topic_id=topic.topic_id, partition_responses=replies)
            )
        if request.acks == 0:
            return None
        endpoints = [
            ProduceResponse.NodeEndpoint(node_id=node, host=LOOPBACK, port=self.brokers[node].port, rack=None)
            for node in nodes
        ]
        told = {"node_endpoints": endpoints} if endpoints else {}  # a broker leaves out empty fields
        return ProduceResponse(responses=responses, throttle_time_ms=self.throttle_time_ms, **told)


def partition_response(index: int, reply: Reply) -> Any:
    kind = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
    leader = reply.leader and kind.LeaderIdAndEpoch(leader_id=reply.leader[0], leader_epoch=reply.leader[1])
    return kind(
        index=index,
        error_code=reply.error_code,
        base_offset=reply.base_offset,
        log_append_time_ms=reply.log_append_time_ms,
        log_start_offset=0,
        record_errors=[
            kind.BatchIndexAndErrorMessage(batch_index=place, batch_index_error_message=message)
            for place, message in reply.record_errors
        ],
        error_message=reply.message,
        current_leader=leader,
    )


@contextlib.contextmanager
def fake_cluster(**settings: Any) -> Iterator[FakeCluster]:
    """A cluster that runs until the context ends."""
    cluster = FakeCluster(**settings)
    try:
        yield cluster
    finally:
        cluster.close()
    if cluster.failures:
        raise cluster.failures[0]
