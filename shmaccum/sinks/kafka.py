# SPDX-License-Identifier: Apache-2.0
"""``kafka:HOST:PORT[,HOST:PORT...]`` delivers to the brokers of a Kafka cluster, as Kafka's own producer does (Sender).

Picture::

    ready partitions ── plan ──> by leader ── deliver ──> one Produce request each ── poll ──> acks
                                    │                        │         (compressed first, in threads, if so wished)
                                 a node that is not connected, throttled, or has enough requests under way
                                 is left out; the others go on

A partition has one batch in flight until the broker has acked one of this producer id and epoch. A broker that knows
nothing of a producer takes any first sequence (KIP-360); were the first batch to fail and the second one to arrive,
their order would be lost. From then on there are as many as `in_flight_max`.

A lane per node keeps the requests to it in order, at most `max_in_flight_requests_per_connection` of them without an
answer. The arena's bytes go to the socket as they are (`client`); after the answer, or after the connection is closed,
the ack lets go of them. What an answer means is the table in `errors`; the sender draws the pauses, counts, and splits.

Over TLS the bytes are copied once, by encrypting; compressed batches are private memory.
"""

from __future__ import annotations

import hashlib
import itertools
import operator
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from shmaccum.config import KafkaSinkOptions, SenderOptions
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.kafka.compression import CODECS, Compressor
from shmaccum.kafka.delivery import Delivery, InFlight, PartitionState, ack_of, no_answer
from shmaccum.kafka.errors import LEADER_NOT_AVAILABLE, NETWORK_EXCEPTION, Action, sentence, treatment
from shmaccum.kafka.metrics import ProduceMetrics
from shmaccum.kafka.produce import (
    VERSION_MIN,
    VERSION_ZSTD,
    PartitionAnswer,
    Piece,
    ProduceHead,
    TopicRecords,
    encode,
    version_for,
)
from shmaccum.kafka.topics import Topics
from shmaccum.secret import Secret
from shmaccum.sinks.sink import IDENTITY_SIZE, IN_FLIGHT_MAX, NO_PRODUCER_ID, Ack, Sink, SinkHost, Verdict, WireBatch

try:
    from shmaccum.kafka.client import Client, Outcome, ProducerIdRequest
except ImportError as error:
    raise InvalidArgumentError(
        f"the sink kafka: needs the package kafka-python: pip install 'shmaccum[kafka]' ({error})"
    ) from error

ACKS: Mapping[str, int] = {"all": -1, "-1": -1, "1": 1, "0": 0}
BY_DELIVERY = operator.attrgetter("delivery_number")
PORT_MAX = 65535
FORGOTTEN_S = 60.0
"""A partition that was quiet for so long begins with one batch again: the broker may have forgotten the producer."""
LIBRARY_OPTIONS = (
    "metadata_max_age_ms",
    "allow_auto_create_topics",
    "client_dns_lookup",
    "reconnect_backoff_ms",
    "reconnect_backoff_max_ms",
    "connections_max_idle_ms",
    "socket_connection_setup_timeout_ms",
    "socket_connection_setup_timeout_max_ms",
    "security_protocol",
    "ssl_cafile",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_password",
    "ssl_crlfile",
    "ssl_check_hostname",
    "sasl_mechanism",
    "sasl_plain_username",
    "sasl_plain_password",
    "sasl_kerberos_name",
    "sasl_kerberos_service_name",
    "sasl_kerberos_domain_name",
    "sasl_oauth_token_provider",
)
"""Those that kafka-python takes by the same names."""


def parse_servers(place: str) -> list[str]:
    """The bootstrap list of ``HOST:PORT,HOST:PORT``.

    Raises:
        InvalidArgumentError: it is empty, or a server has no port.
    """
    servers = [server.strip() for server in place.split(",") if server.strip()]
    if not servers:
        raise InvalidArgumentError("kafka: needs brokers to begin with, as in kafka:localhost:9092")
    for server in servers:
        host, _, port = server.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
            raise InvalidArgumentError(f"{server!r} is no broker: write HOST:PORT, as in kafka:localhost:9092")
    return servers


class _Lane:
    """The requests to one node, in their order."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Delivery, list[Future[bytes | None]]]] = deque()
        """Being compressed; the first one goes first."""
        self.sent: set[Delivery] = set()

    @property
    def count(self) -> int:
        """Requests under way."""
        return len(self.waiting) + len(self.sent)


class KafkaSink(Sink):
    """Delivers to Kafka.

    Args:
        place: the brokers to begin with.
        options: those of `KafkaSinkOptions`.

    Raises:
        InvalidArgumentError: a server or an option that cannot be, or a library that is missing.
    """

    options_type = KafkaSinkOptions

    def __init__(self, place: str, **options: Any) -> None:
        self._servers = parse_servers(place)
        self._options = KafkaSinkOptions.parse(options)
        self._compressors = threading.local()
        self._pool: ThreadPoolExecutor | None = None
        if self._options.compression_type != "none":
            self._new_compressor()
        self.is_idempotent = True
        self._lanes: dict[int, _Lane] = {}
        self._acks: list[Ack] = []
        self._states: dict[int, PartitionState] = {}
        # Those whose last batch is to be retried, with the leader that did not take it.
        self._retried: dict[PartitionState, int | None] = {}
        self._leaderless: set[PartitionState] = set()
        self._metadata_count = 0
        self._leadership_count = 0
        self._delivery_numbers = itertools.count(1)
        self._metrics = ProduceMetrics()
        self._asked: ProducerIdRequest | None = None
        self._ask_again_s = 0.0

    def __repr__(self) -> str:
        return f"<KafkaSink {','.join(self._servers)}>"

    # --- open and close

    def open(self, host: SinkHost) -> None:
        """Begins to look for the cluster; nothing is waited for.

        Raises:
            InvalidArgumentError: a secret or a certificate cannot be read.
        """
        self._host = host
        self._take_sender_options(host.options)
        config = self._client_config(host.arena_name)
        self._client = Client(config, host.report)
        self._topics = Topics(self._client, self._options.max_block_ms)
        if self._options.compression_type != "none":
            self._pool = ThreadPoolExecutor(self._options.compression_threads, thread_name_prefix="shmaccum-compress")
        self._client.start()

    def _take_sender_options(self, options: Mapping[str, Any]) -> None:
        given = {**vars(SenderOptions()), **options}
        self._required_acks = ACKS[str(given["acks"])]
        self._request_timeout_ms = int(given["request_timeout_ms"])
        self._retry_backoff_ms = int(given["retry_backoff_ms"])
        self._requests_max = int(given["max_in_flight_requests_per_connection"])
        self.is_idempotent = bool(given["enable_idempotence"])
        self.in_flight_max = min(self._requests_max, IN_FLIGHT_MAX) if self.is_idempotent else self._requests_max
        self.request_size_max = int(given["max_request_size"])

    def _client_config(self, arena_name: str) -> dict[str, Any]:
        config = {name: _revealed(getattr(self._options, name)) for name in LIBRARY_OPTIONS}
        return {
            **config,
            "bootstrap_servers": self._servers,
            "client_id": self._options.client_id or f"shmaccum-{arena_name.strip('/').rpartition('/')[2]}",
            "request_timeout_ms": self._request_timeout_ms,
            "retry_backoff_ms": self._retry_backoff_ms,
            "rebootstrap_trigger_ms": self._options.metadata_recovery_rebootstrap_trigger_ms,
            "socket_options": list(self._socket_options()),
        }

    def _socket_options(self) -> Iterator[tuple[int, int, int]]:
        yield socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        yield socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1
        if self._options.send_buffer_bytes >= 0:
            yield socket.SOL_SOCKET, socket.SO_SNDBUF, self._options.send_buffer_bytes
        if self._options.receive_buffer_bytes >= 0:
            yield socket.SOL_SOCKET, socket.SO_RCVBUF, self._options.receive_buffer_bytes

    def close(self, timeout_s: float) -> None:  # noqa: ARG002 - an ack could not be given any more: nothing to wait for
        """Breaks off what is under way and closes every connection."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._client.close()
        self._lanes.clear()
        self._states.clear()
        self._acks.clear()

    # --- what the arena must know

    @property
    def identity(self) -> bytes:
        """Of the cluster, by its id; of its bootstrap list where the brokers have none. All zeros until it is found."""
        if not self._client.is_bootstrapped:
            return bytes(IDENTITY_SIZE)
        name = self._client.cluster_id or ",".join(sorted(self._servers))
        return hashlib.blake2b(name.encode(), digest_size=IDENTITY_SIZE).digest()

    def new_producer_id(self) -> tuple[int, int] | None:
        """From any broker (InitProducerId); asked again after a pause when it could not be had."""
        if not self.is_idempotent:
            return NO_PRODUCER_ID
        if self._asked is None:
            if self._client.is_bootstrapped and time.monotonic() >= self._ask_again_s:
                self._asked = self._client.ask_producer_id()
            return None
        if not self._asked.is_answered:
            return None
        asked, self._asked = self._asked, None
        if asked.error_code == 0:
            return asked.producer_id, asked.producer_epoch
        self._ask_again_s = time.monotonic() + self._retry_backoff_ms / 1000
        if treatment(asked.error_code).action is Action.REFUSE:
            self._host.report(f"the cluster gives no producer id: {sentence(asked.error_code, asked.message or None)}")
        return None

    def partition_count(self, topic: str) -> int | None:
        return self._topics.partition_count(topic)

    # --- plan

    def plan(self, ready: Sequence[int]) -> Sequence[Sequence[int]]:
        """One delivery for each leader that can take one; what was delivered longest ago first."""
        self._forget_old_leaders()
        by_node: dict[int, list[int] | None] = {}
        now_s = time.monotonic()
        is_idempotent = self.is_idempotent
        for state in sorted(map(self._state, ready), key=BY_DELIVERY):
            node_id = state.node_id if state.node_id is not None else self._look_for_leader(state)
            if node_id is None:
                continue
            if node_id not in by_node:
                by_node[node_id] = [] if self._can_take(node_id) else None
            planned = by_node[node_id]
            if planned is None or (is_idempotent and state.in_flight and state.waits_for_first_ack(now_s, FORGOTTEN_S)):
                continue
            planned.append(state.partition_index)
        return [planned for planned in by_node.values() if planned]

    def _state(self, partition_index: int) -> PartitionState:
        state = self._states.get(partition_index)
        if state is None:
            topic, partition = self._host.topic_partition(partition_index)
            state = self._states[partition_index] = PartitionState(partition_index, topic, partition)
        return state

    def _forget_old_leaders(self) -> None:
        if self._client.leadership_count != self._leadership_count:
            self._leadership_count = self._client.leadership_count
            for state in self._states.values():
                state.node_id = None

    def _look_for_leader(self, state: PartitionState) -> int | None:
        """None while nobody leads the partition; then metadata are asked for."""
        state.node_id = self._client.leader(state.topic, state.partition)
        if state.node_id is None:
            self._miss_leader(state)
        return state.node_id

    def _miss_leader(self, state: PartitionState) -> None:
        if state not in self._leaderless:
            self._leaderless.add(state)
            self._host.set_available(state.partition_index, False)
        self._client.watch_topic(state.topic)
        self._client.refresh_metadata()
        error_code = self._client.topic_state(state.topic).error_code
        if treatment(error_code).action is Action.REFUSE:
            self._host.report(f"{state.topic} cannot be delivered to: {sentence(error_code)}")

    def _can_take(self, node_id: int) -> bool:
        if self._lane(node_id).count >= self._requests_max or not self._client.is_ready(node_id):
            return False
        newest = self._client.produce_versions(node_id)[1]
        if newest < VERSION_MIN:
            self._host.report(f"broker {node_id} is too old (Produce up to version {newest}): use Kafka 0.11 or newer")
        return newest >= VERSION_MIN

    def _lane(self, node_id: int) -> _Lane:
        return self._lanes.setdefault(node_id, _Lane())

    # --- deliver

    def deliver(self, batches: Sequence[WireBatch]) -> None:
        for delivery in self._deliveries(batches):
            if self._pool is None:
                self._send(delivery)
            else:
                self._compress(delivery)

    def _deliveries(self, batches: Sequence[WireBatch]) -> list[Delivery]:
        """One request per node, and more only where a partition comes more than once."""
        deliveries: list[Delivery] = []
        newest: dict[int, Delivery] = {}
        number = next(self._delivery_numbers)
        self._forget_old_leaders()
        for wire in batches:
            state = self._state(wire.partition_index)
            state.delivery_number = number
            if self._retried:
                self._retried.pop(state, None)
            batch = state.begin(wire)
            node_id = state.node_id if state.node_id is not None else self._look_for_leader(state)
            if node_id is None:
                self._end(batch, no_answer(LEADER_NOT_AVAILABLE, "no leader is known"))
                continue
            delivery = newest.get(node_id)
            if delivery is None or not delivery.add(batch):
                delivery = newest[node_id] = Delivery(node_id)
                delivery.add(batch)
                deliveries.append(delivery)
        return deliveries

    def _send(self, delivery: Delivery) -> None:
        """Hands a request to the client; where the node is gone meanwhile, its batches are acked for a retry."""
        if not self._client.is_ready(delivery.node_id):
            self._end_all(
                delivery, no_answer(NETWORK_EXCEPTION, f"broker {delivery.node_id} is not connected any more")
            )
            return
        topics = delivery.records(self._client.topic_id)
        version = version_for(self._client.produce_versions(delivery.node_id), topics)
        if version < VERSION_ZSTD and self._options.compression_type == "zstd":
            topics = self._uncompressed(delivery)
        self._count_sent(delivery, topics)
        self._lane(delivery.node_id).sent.add(delivery)
        self._client.produce(
            delivery.node_id, delivery, version, self._encoder(version, topics), is_answered=self._required_acks != 0
        )

    def _uncompressed(self, delivery: Delivery) -> list[TopicRecords]:
        """For a broker that would not understand."""
        self._host.report(f"broker {delivery.node_id} is too old for zstd (Kafka 2.1): batches go uncompressed")
        for batch in delivery.batches():
            batch.compressed = None
        return delivery.records(self._client.topic_id)

    def _encoder(self, version: int, topics: Sequence[TopicRecords]) -> Any:
        acks, timeout_ms = self._required_acks, self._request_timeout_ms

        def encode_with(correlation_id: int, client_id: str) -> list[Piece]:
            return encode(ProduceHead(version, correlation_id, client_id, acks, timeout_ms), topics)

        return encode_with

    def _count_sent(self, delivery: Delivery, topics: Sequence[TopicRecords]) -> None:
        wires = delivery.wires
        size = sum([records.size for topic in topics for records in topic.partitions])
        self._metrics.sent(delivery.node_id, size, sum([wire.record_count for wire in wires]))
        if self._pool is not None:
            self._metrics.compression_rate.record(size / sum(wire.size for wire in wires))

    # --- compress

    def _new_compressor(self) -> Compressor:
        name = self._options.compression_type
        level = None if name == "snappy" else int(getattr(self._options, f"compression_{name}_level"))
        return Compressor(CODECS[name], level)

    def _compress(self, delivery: Delivery) -> None:
        assert self._pool is not None
        jobs = []
        for batch in delivery.batches():
            job = self._pool.submit(self._compress_in_thread, batch)
            job.add_done_callback(lambda _: self._client.wake())
            jobs.append(job)
        self._lane(delivery.node_id).waiting.append((delivery, jobs))

    def _compress_in_thread(self, batch: InFlight) -> bytes | None:
        """In a thread of the pool: it reads lent bytes, and writes nothing that anybody shares.

        It is given the batch and not its buffers: the pool keeps the arguments for a moment after the job is done.
        """
        compressor: Compressor | None = getattr(self._compressors, "own", None)
        if compressor is None:
            compressor = self._compressors.own = self._new_compressor()
        return compressor.compress(batch.wire.buffers)

    def _send_compressed(self) -> None:
        """Whatever heads its lane and is compressed goes."""
        for lane in list(self._lanes.values()):
            while lane.waiting and all(job.done() for job in lane.waiting[0][1]):
                delivery, jobs = lane.waiting.popleft()
                for batch, job in zip(delivery.batches(), jobs, strict=True):
                    batch.compressed = self._compressed(job)
                self._send(delivery)

    def _compressed(self, job: Future[bytes | None]) -> bytes | None:
        error = job.exception()
        if error is None:
            return job.result()
        self._host.report(f"a batch could not be compressed and went as it is: {type(error).__name__}: {error}")
        return None

    # --- poll

    def poll(self, timeout_s: float, doorbell: int) -> Sequence[Ack]:
        self._send_compressed()
        for outcome in self._client.poll(0 if self._acks else timeout_s, doorbell):
            self._finish(outcome)
        self._send_compressed()
        if self._client.metadata_count != self._metadata_count:
            self._metadata_count = self._client.metadata_count
            self._take_news()
        acks, self._acks = self._acks, []
        return acks

    def _finish(self, outcome: Outcome) -> None:
        """A request has its answer, or will have none."""
        delivery: Delivery = outcome.tag
        self._lane(delivery.node_id).sent.discard(delivery)
        if outcome.answer is None:
            self._end_all(delivery, no_answer(outcome.error_code, outcome.message))
            return
        self._metrics.answered(delivery.node_id, outcome.latency_ms, outcome.answer.throttle_time_ms)
        now_s = time.monotonic()
        for batch, answer in delivery.answers(outcome.answer.partitions):
            if answer.error_code == 0:
                self._acks.append(batch.end_delivered(answer, now_s))
            else:
                is_news = self._client.note_leader(batch.wire.topic, answer, outcome.answer.nodes)
                self._end(batch, answer, retries_at_once=is_news)

    def _end_all(self, delivery: Delivery, answer: PartitionAnswer) -> None:
        """All of a request end alike: without acks, or without an answer."""
        now_s = time.monotonic()
        for batch in delivery.batches():
            if answer.error_code == 0:
                self._acks.append(batch.end_delivered(answer, now_s))
            else:
                self._end(batch, answer)

    def _end(self, batch: InFlight, answer: PartitionAnswer, *, retries_at_once: bool = False) -> None:
        """Acks a batch that was not delivered; `poll` gives the ack out."""
        ack = batch.end(ack_of(batch, answer))
        if treatment(answer.error_code).is_metadata_stale:
            self._client.refresh_metadata()
        if ack.verdict is Verdict.RETRY:
            ack.retry_after_ms = 0 if retries_at_once else None
            self._retried[batch.state] = self._client.leader(batch.wire.topic, batch.wire.partition)
        self._acks.append(ack)

    def _take_news(self) -> None:
        """New metadata: where another node leads now, there is nothing to wait for (KAFKA-15415)."""
        for state, former in list(self._retried.items()):
            leader = self._client.leader(state.topic, state.partition)
            if leader is not None and leader != former:
                del self._retried[state]
                self._host.end_backoff(state.partition_index)
        for state in list(self._leaderless):
            if self._client.leader(state.topic, state.partition) is not None:
                self._leaderless.discard(state)
                self._host.set_available(state.partition_index, True)

    # --- metrics

    def metrics(self) -> Mapping[str, float]:
        """As Kafka's producer-metrics and producer-node-metrics; of one broker with ``.node-ID`` behind the name."""
        counters = self._client.counters
        named = self._metrics.snapshot()
        named["requests-in-flight"] = sum(len(lane.sent) for lane in self._lanes.values())
        named["metadata-age"] = self._client.metadata_age_s
        named["connection-count"] = self._client.connected_node_count()
        for name, attribute in COUNTER_NAMES.items():
            named[name] = sum(getattr(counter, attribute) for counter in counters.values())
            for node_id, counter in counters.items():
                named[f"{name}.node-{node_id}"] = getattr(counter, attribute)
        return named


COUNTER_NAMES: Mapping[str, str] = {
    "connection-creation-total": "connections_created",
    "connection-close-total": "connections_closed",
    "request-total": "requests",
    "response-total": "responses",
    "outgoing-byte-total": "bytes_sent",
    "incoming-byte-total": "bytes_received",
}


def _revealed(value: Any) -> Any:
    return value.reveal() if isinstance(value, Secret) else value
