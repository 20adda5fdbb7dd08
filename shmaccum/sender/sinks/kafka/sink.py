# SPDX-License-Identifier: Apache-2.0
"""``kafka:HOST:PORT[,HOST:PORT...]`` delivers to the brokers of a Kafka cluster, like Kafka's own producer (Sender).

::

    ready partitions ── plan ──> by leader ── deliver ──> one Produce request each ── poll ──> acks
                                    │                        │         (compressed first, in threads, if configured)
                                 a node that is not connected, throttled, or has enough requests in flight
                                 is omitted; the others continue

A partition has one batch in flight until the broker has recently acked one. A broker that does not know a producer, or
has forgotten it, accepts any first sequence (KIP-360). If the first batch failed and the second one arrived, their
order would be lost. After the first ack, up to `in_flight_max` batches are in flight. (The drain ensures that an epoch
begins with a single batch.)

Each node has a queue that keeps the order of its requests, at most `max_in_flight_requests_per_connection` of them
without a response. The arena's bytes are written to the socket directly (`client`). After the response, or after the
connection is closed, the ack releases them. The table in `errors` has the meaning of each response. The sender computes
pauses, counts attempts, and splits batches.

With TLS, the bytes are copied into a record and encrypted. Compressed batches are in private memory. Records of a log
are sent from the page cache to the socket (sendfile), but not with TLS.
"""

from __future__ import annotations

import hashlib
import socket
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shmaccum._native import ProduceRequest
from shmaccum.common import clock
from shmaccum.common.format.group_offsets import OFFSETS_TOPIC
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.common.packages import needed
from shmaccum.common.units import format_count
from shmaccum.config import KafkaSinkOptions, SenderOptions
from shmaccum.config.secret import Secret
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.sender.sinks.compression import Compression, Form, compressed, compression_of
from shmaccum.sender.sinks.kafka.arena_transactions import KafkaTransactions
from shmaccum.sender.sinks.kafka.delivery import Delivery, ack_of, in_requests, no_answer
from shmaccum.sender.sinks.kafka.errors import (
    LEADER_NOT_AVAILABLE,
    NETWORK_EXCEPTION,
    Action,
    sentence,
    treatment,
)
from shmaccum.sender.sinks.kafka.metrics import ProduceMetrics
from shmaccum.sender.sinks.kafka.produce import (
    VERSION_EXPLICIT,
    VERSION_MAX,
    VERSION_MIN,
    VERSION_ZSTD,
    PartitionAnswer,
    PlainAnswer,
    version_for,
)
from shmaccum.sender.sinks.kafka.token_sources import token_source
from shmaccum.sender.sinks.kafka.topics import RequestedTopics
from shmaccum.sender.sinks.kafka.transaction.driver import GroupOffsets, TransactionDriver
from shmaccum.sender.sinks.kafka.transaction.protocol import RecoveryState, State, TransactionProtocol
from shmaccum.sender.sinks.names import one_spelling
from shmaccum.sender.sinks.sink import (
    IDENTITY_SIZE,
    IN_FLIGHT_MAX,
    Ack,
    Acks,
    BorrowedSocket,
    Delivered,
    Ended,
    Limits,
    Peer,
    ProducerIds,
    Sink,
    SinkHost,
    SinkTransactions,
    SocketEnd,
    Sockets,
    Unanswered,
    Verdict,
    WireBatch,
    check_is_same_sink,
)

with needed("kafka-python", "kafka", "the sink kafka: needs"):
    from shmaccum.sender.sinks.kafka.library.client import Client, ProducerIdRequest
    from shmaccum.sender.sinks.kafka.library.frames import ResponseOutcome

if TYPE_CHECKING:
    from concurrent.futures import Future

ACKS: Mapping[str, int] = {"all": -1, "-1": -1, "1": 1, "0": 0}
PORT_MAX = 65535
HOLD_BACK_S = 0.02
"""The longest time for which new requests wait, so that a node's queue gets empty and its socket can be handed over."""
HOLD_BACK_AGAIN_S = 1.0
"""The time until the next such attempt."""
FORGOTTEN_S = 60.0
"""After this time without acks, a partition has one batch in flight again: the broker may have forgotten it."""
MISSING_INTERVAL_S = 1.0
"""Time between two reports of a partition that does not exist in the cluster."""
REJECTED_LOGIN_S = 3.0
"""A cluster that does not respond for this time, and rejected the last login, has an outage."""
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
    "ssl_crlfile",
    "ssl_check_hostname",
    "sasl_mechanism",
    "sasl_plain_username",
    "sasl_plain_password",
    "sasl_kerberos_name",
    "sasl_kerberos_service_name",
    "sasl_kerberos_domain_name",
)
"""Options that kafka-python accepts under the same names."""


def parse_servers(place: str) -> list[str]:
    """Return the bootstrap list of ``HOST:PORT,HOST:PORT``.

    Raises:
        InvalidArgumentError: it is empty, or a server has no port.
    """
    servers = [server.strip() for server in place.split(",") if server.strip()]
    if not servers:
        raise InvalidArgumentError("kafka: needs bootstrap brokers, as in kafka:localhost:9092")
    for server in servers:
        if server.startswith("//"):
            bare = place.replace("//", "").rstrip("/")
            raise InvalidArgumentError(f"kafka:{place}: write kafka:{bare}, without slashes")
        host, _, port = server.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
            raise InvalidArgumentError(
                f"{server!r} is not a broker address: write HOST:PORT, as in kafka:localhost:9092"
            )
    return servers


class _NodeQueue:
    """The requests to one node, in their order."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Delivery, list[Future[Form | None]]]] = deque()
        """Requests that are being compressed, or wait because too many are in flight; the first is sent first."""
        self.sent: dict[Delivery, None] = {}

        self._held_back_s = 0.0

    @property
    def count(self) -> int:
        """The number of requests that wait or are in flight."""
        return len(self.waiting) + len(self.sent)

    def hold_back(self, now_s: float) -> None:
        """Delay new requests for a short time, for a borrower of the socket, unless this was tried recently."""
        if self.count and now_s >= self._held_back_s + HOLD_BACK_AGAIN_S:
            self._held_back_s = now_s

    def is_held_back(self, now_s: float) -> bool:
        """True while new requests are delayed until the present ones have responses."""
        return bool(self.count) and now_s < self._held_back_s + HOLD_BACK_S


class _AckedPartitions:
    """Partitions with a recently acked batch: in this half of `FORGOTTEN_S`, or in the previous one."""

    def __init__(self) -> None:
        self._young: set[int] = set()
        self._old: set[int] = set()
        self._turn_s = 0.0

    def acked(self, partition_indices: Iterable[int], now_s: float) -> None:
        """Note that a broker has a batch of each partition."""
        if now_s >= self._turn_s:
            self._old = self._young if now_s < self._turn_s + FORGOTTEN_S / 2 else set()
            self._young = set()
            self._turn_s = now_s + FORGOTTEN_S / 2
        self._young.update(partition_indices)

    def missing(self, partition_indices: Iterable[int], now_s: float) -> set[int]:
        """Return the partitions whose producer a broker may have forgotten."""
        if now_s >= self._turn_s + FORGOTTEN_S / 2:
            return set(partition_indices)
        missing = set(partition_indices) - self._young
        return missing if now_s >= self._turn_s else missing - self._old


class KafkaSink(Sink, ProducerIds, SinkTransactions, Sockets, Peer):
    """Delivers to Kafka.

    Args:
        place: the bootstrap brokers.
        options: those of `KafkaSinkOptions`.

    Raises:
        InvalidArgumentError: a server or an option is invalid, or a library is missing.
    """

    def __init__(self, place: str, **options: Any) -> None:
        self._servers = parse_servers(place)
        self.name = one_spelling(f"kafka:{place}")
        self._options = KafkaSinkOptions.parse(options)
        self._has_client = False  # remains False if it could not be opened
        self._compression = compression_of(self._options)
        takes_files = self._compression is None and "SSL" not in self._options.security_protocol
        self.limits = Limits(takes_files=takes_files)
        self.producer_ids = self.transactions = self.peer = self
        self.fast_path = self if takes_files else None
        self._queues: dict[int, _NodeQueue] = {}
        self._acks: list[Ack | Acks] = []
        # Partition index -> its leader's node, until new metadata arrives.
        self._leaders: dict[int, int] = {}
        self._missing_at_s: dict[TopicPartition, float] = {}
        self._known = _AckedPartitions()
        # Partition index -> the leader that did not accept the last batch, for batches to be retried.
        self._retried: dict[int, int | None] = {}
        self._leaderless: set[int] = set()
        self._metadata_count = 0
        self._leadership_count = 0
        self._metrics = ProduceMetrics(clock.monotonic_ns())
        self._produce_answer_count = 0
        self._seen_answer_count = 0
        self._unanswered_since_s: float | None = None  # None while no response is expected
        self._transaction: TransactionDriver | None = None
        self._arena_transactions: KafkaTransactions | None = None
        self._is_same_cluster = False
        self._asked: ProducerIdRequest | None = None
        self._ask_again_s = 0.0

    def __repr__(self) -> str:
        return f"<KafkaSink {','.join(self._servers)}>"

    # --- open and close

    def open(self, host: SinkHost) -> None:
        """Start to connect to the cluster, without waiting.

        Raises:
            InvalidArgumentError: a secret or a certificate cannot be read.
        """
        self._host = host
        self._take_sender_options(host.options)
        config = self._client_config(host.arena_name)
        self._client = Client(config, host.report)
        self._has_client = True
        if host.durability != "process" and host.options.acks != "all":
            host.report(
                f"{self.name} gets records with acks={host.options.acks}, and {host.arena_name} keeps them through a "
                f"power cut (durability={host.durability}): a broker that fails may lose what the arena has freed. Set "
                "acks=all"
            )
        if host.transactions is not None:
            self._arena_transactions = KafkaTransactions(
                host.transactions, self.take_part, host.report, self._retry_backoff_ms
            )
        self._topics = RequestedTopics(self._client, self._options.max_block_ms)
        self._client.start()

    def _take_sender_options(self, options: SenderOptions) -> None:
        self._required_acks = ACKS[options.acks]
        self.is_carried = self.limits.takes_files and self._required_acks != 0
        self._request_timeout_ms = options.request_timeout_ms
        self._retry_backoff_ms = options.retry_backoff_ms
        self._requests_max = options.max_in_flight_requests_per_connection
        self.producer_ids = self if options.enable_idempotence else None
        in_flight_max = min(self._requests_max, IN_FLIGHT_MAX) if options.enable_idempotence else self._requests_max
        self.limits = Limits(in_flight_max, options.max_request_size, self.limits.takes_files)

    def _client_config(self, arena_name: str) -> dict[str, Any]:
        config = {name: _revealed(getattr(self._options, name)) for name in LIBRARY_OPTIONS}
        return {
            **config,
            "ssl_password": self._options.ssl_password,
            "token_source": token_source(self._options),
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

    def close(self, timeout_s: float) -> None:  # noqa: ARG002 - waiting is useless, since acks cannot be returned now
        """Cancel all work in progress, and close every connection."""
        if self._compression is not None:
            self._compression.close()
        if self._has_client:
            self._client.close()
        self._queues.clear()
        self._acks.clear()

    # --- transactions

    def take_part(
        self, protocol: TransactionProtocol, save: Callable[[RecoveryState], object] = lambda _: None
    ) -> TransactionDriver:
        """Make every batch part of a transaction of this producer; `poll` then sends the protocol's requests.

        `plan` adds partitions to the transaction, and omits those unknown to the coordinator.

        Args:
            protocol: of the producer whose id, epoch and attribute the batches have.
            save: see `TransactionDriver`.
        """
        self._transaction = TransactionDriver(self._client, protocol, save)
        return self._transaction

    def end_transaction(
        self,
        producer_id: int,  # noqa: ARG002
        producer_epoch: int,  # noqa: ARG002
        *,
        is_commit: bool,
    ) -> Ended | None:
        transactions = self._arena_transactions
        assert transactions is not None
        self._want_answer()
        return transactions.end(is_commit=is_commit) if self._has_checked_cluster() else None

    def _has_checked_cluster(self) -> bool:
        """Return True if the arena's transactions are known to be of this cluster; False before the first response.

        Raises:
            OtherSinkError: another cluster has the open transaction.
        """
        transactions = self._host.transactions
        if self._is_same_cluster or transactions is None or not self._client.is_bootstrapped:
            return self._is_same_cluster or transactions is None
        producer_id, _, identity = transactions.producer_identity
        if producer_id >= 0 and identity != self.identity and self._arena_transactions is not None:
            if self._arena_transactions.may_be_elsewhere:
                check_is_same_sink(transactions, self.identity, self._host.arena_name)
            self._arena_transactions.forget()
        self._is_same_cluster = True
        return True

    @property
    def knows_producer_id(self) -> bool:
        return self._arena_transactions is None or self._arena_transactions.has_current_id

    def group_offsets(self, group: str) -> GroupOffsets:
        """Request the committed offsets of a group. The response arrives while the sink is polled."""
        return GroupOffsets(self._client, group, self._retry_backoff_ms / 1000)

    def _added(self, ready: Sequence[int]) -> Sequence[int]:
        """Return the ready partitions that may get batches now."""
        if self._transaction is None:
            return ready
        places = {index: TopicPartition(*self._host.topic_partition(index)) for index in ready}
        if self._arena_transactions is not None:
            admitted = self._arena_transactions.admit(tuple(places.values()))
            return [index for index in ready if places[index] in admitted]
        protocol = self._transaction.protocol
        if protocol.recovery_state.state is State.OPEN:
            protocol.add_partitions(places.values())
            self._transaction.save()
        return [index for index in ready if protocol.may_produce(places[index])]

    def _step(self) -> None:
        """Continue with the requests of a transaction."""
        if self._arena_transactions is not None:
            if self._has_checked_cluster():
                self._arena_transactions.step()
                self._acks += self._arena_transactions.take_acks()
        elif self._transaction is not None:
            self._transaction.step()

    # --- facts for the arena

    @property
    def identity(self) -> bytes:
        """A hash of the cluster's id, or of the bootstrap list if brokers have none. All zeros until it is known."""
        if not self._client.is_bootstrapped:
            return bytes(IDENTITY_SIZE)
        name = self._client.cluster_id or ",".join(sorted(self._servers))
        return hashlib.blake2b(name.encode(), digest_size=IDENTITY_SIZE).digest()

    def new_producer_id(self) -> tuple[int, int] | None:
        """Return an id from any broker (InitProducerId). After a failure, request it again after a pause."""
        self._want_answer()
        if self._arena_transactions is not None:
            return self._arena_transactions.names() if self._has_checked_cluster() else None
        if self._asked is None:
            if self._client.is_bootstrapped and clock.monotonic() >= self._ask_again_s:
                self._asked = self._client.ask_producer_id()
            return None
        if not self._asked.is_answered:
            return None
        asked, self._asked = self._asked, None
        if asked.error_code == 0:
            return asked.producer_id, asked.producer_epoch
        self._ask_again_s = clock.monotonic() + self._retry_backoff_ms / 1000
        if treatment(asked.error_code).action is Action.REFUSE:
            self._host.report(f"the cluster refused a producer id: {sentence(asked.error_code, asked.message or None)}")
        return None

    def partition_count(self, topic: str) -> int | None:
        if topic == OFFSETS_TOPIC and self._arena_transactions is not None:
            return 1
        count = self._topics.partition_count(topic)
        if count is None:
            self._want_answer()
        return count

    def ask_again(self, topic: str) -> None:  # noqa: ARG002 - one request covers all topics
        self._client.refresh_metadata()

    # --- whether the cluster responds

    @property
    def answer_count(self) -> int:
        """Responses to Produce and Metadata requests, which a broker sends only after it has accepted the login."""
        return self._produce_answer_count + self._client.metadata_count

    @property
    def outage(self) -> str | None:
        """A sentence if no broker has responded for request_timeout_ms, although a response was expected.

        If the last login was rejected, `REJECTED_LOGIN_S` are enough.
        """
        patience_s = self._request_timeout_ms / 1000
        if self._client.is_login_rejected:
            patience_s = min(patience_s, REJECTED_LOGIN_S)
        if self._unanswered_s <= patience_s:
            return None
        failure = self._client.last_failure
        return f"no broker of {','.join(self._servers)} answers{f': {failure}' if failure else ''}"

    @property
    def _unanswered_s(self) -> float:
        """The time for which a response of the cluster has been expected, and none has arrived."""
        since_s = self._unanswered_since_s
        return 0.0 if since_s is None or self._seen_answer_count != self.answer_count else clock.monotonic() - since_s

    @property
    def _is_awaiting(self) -> bool:
        """True while a batch, or offsets of a group, have no response from the cluster."""
        transactions = self._arena_transactions
        return any(self._in_flight()) or (transactions is not None and transactions.is_awaiting)

    def _want_answer(self) -> None:
        if self._unanswered_since_s is None:
            self._unanswered_since_s = clock.monotonic()

    def _watch_cluster(self) -> None:
        """Restart the timer after each response. After a long silence, request metadata to provoke a response."""
        if self._seen_answer_count != self.answer_count:
            self._seen_answer_count = self.answer_count
            self._unanswered_since_s = clock.monotonic() if self._is_awaiting else None
        elif self._unanswered_s > self._request_timeout_ms / 1000 / 2:
            self._client.refresh_metadata()

    # --- plan

    def plan(self, ready: Sequence[int]) -> Sequence[Sequence[int]]:
        """Return one delivery for each leader that can accept one, and one for offsets of groups."""
        self._want_answer()
        self._forget_old_leaders()
        ready = self._added(ready)
        if self._arena_transactions is None:
            return self._plan_for_leaders(ready)
        offsets = [index for index in ready if self._has_offsets(index)]
        planned = self._plan_for_leaders([index for index in ready if index not in offsets])
        return [*planned, offsets] if offsets else planned

    def _has_offsets(self, partition_index: int) -> bool:
        """True for the partition of offsets that are committed with a transaction."""
        return self._arena_transactions is not None and self._host.topic_partition(partition_index)[0] == OFFSETS_TOPIC

    def _plan_for_leaders(self, ready: Sequence[int]) -> Sequence[Sequence[int]]:
        nodes = set(map(self._leaders.get, ready))
        if None in nodes:
            nodes = set(map(self._leader_of, ready))
        planned: dict[int | None, list[int]] = {
            node_id: [] for node_id in nodes if node_id is not None and self._can_take(node_id)
        }
        if not planned:
            return []
        may_go = ready
        if self.producer_ids is not None and (unknown := self._known.missing(ready, clock.monotonic())):
            indices_in_flight = {index for delivery in self._in_flight() for index in delivery.partition_indices()}
            waiting = unknown & indices_in_flight
            may_go = [partition_index for partition_index in ready if partition_index not in waiting]
        if len(planned) == len(nodes) == 1:
            return [may_go] if may_go else []
        for partition_index in may_go:
            if (node_id := self._leaders.get(partition_index)) in planned:
                planned[node_id].append(partition_index)
        return [indices for indices in planned.values() if indices]

    def _in_flight(self) -> Iterator[Delivery]:
        """Yield deliveries without a response."""
        for queue in self._queues.values():
            yield from queue.sent
            yield from (delivery for delivery, _ in queue.waiting)

    def _forget_old_leaders(self) -> None:
        if self._client.leadership_count != self._leadership_count:
            self._leadership_count = self._client.leadership_count
            self._leaders.clear()

    def _leader_of(self, partition_index: int) -> int | None:
        """Return the leader's node. If there is none, request metadata and return None."""
        node_id = self._leaders.get(partition_index)
        if node_id is None:
            node_id = self._client.leader(*self._host.topic_partition(partition_index))
            if node_id is None:
                self._miss_leader(partition_index)
            else:
                self._leaders[partition_index] = node_id
        return node_id

    def _miss_leader(self, partition_index: int) -> None:
        topic, partition = self._host.topic_partition(partition_index)
        if partition_index not in self._leaderless:
            self._leaderless.add(partition_index)
            self._host.set_available(partition_index, False)
        self._client.watch_topic(topic)
        self._client.refresh_metadata()
        state = self._client.topic_state(topic)
        if treatment(state.error_code).action is Action.REFUSE:
            self._host.report(f"{topic} cannot be delivered to: {sentence(state.error_code)}")
        elif state.partition_count is not None and partition >= state.partition_count:
            self._report_missing(TopicPartition(topic, partition), state.partition_count)

    def _report_missing(self, place: TopicPartition, partition_count: int) -> None:
        """Report a partition that was declared in the arena, and that the cluster lacks. Its records wait until it
        exists.
        """
        now_s = clock.monotonic()
        if now_s >= self._missing_at_s.get(place, 0.0):
            self._missing_at_s[place] = now_s + MISSING_INTERVAL_S
            self._host.report(
                f"{place} does not exist: the cluster's topic {place.topic} has "
                f"{format_count(partition_count, 'partition')}, numbered from 0. Its records wait until they expire "
                f"(delivery_timeout_ms): give the topic {place.partition + 1} partitions, or declare fewer in the arena"
            )

    def leader_of(self, partition_index: int) -> int | None:
        """The broker to which batches of the partition were sent last; None if no leader was looked up yet."""
        return self._leaders.get(partition_index)

    def _can_take(self, node_id: int) -> bool:
        queue = self._queue(node_id)
        is_full = queue.count >= self._requests_max or queue.is_held_back(clock.monotonic())
        if is_full or not self._client.is_ready(node_id):
            return False
        newest = self._client.produce_versions(node_id)[1]
        if newest < VERSION_MIN:
            self._host.report(f"broker {node_id} is too old (Produce up to version {newest}): use Kafka 0.11 or newer")
            return False
        return True

    @property
    def is_full(self) -> bool:
        return bool(self._queues) and not any(
            queue.count < self._requests_max and self._client.is_ready(node_id)
            for node_id, queue in self._queues.items()
        )

    def _queue(self, node_id: int) -> _NodeQueue:
        known = self._queues.get(node_id)
        if known is None:
            known = self._queues[node_id] = _NodeQueue()
        return known

    # --- deliver

    def deliver(self, batches: Sequence[WireBatch]) -> None:
        self._leave_out_ended()
        if self._arena_transactions is not None and self._has_offsets(batches[0].partition_index):
            self._arena_transactions.add_offsets(batches)
            return
        self._forget_old_leaders()
        for node_id, wires in self._requests(batches):
            if node_id is None:
                for wire in wires:
                    self._end(None, wire, no_answer(LEADER_NOT_AVAILABLE, "no leader is known"))
                continue
            delivery = Delivery(node_id, wires, tuple(self._in_flight()))
            if self._compression is not None:
                self._compress(delivery, self._compression)
            elif self._queue(node_id).count < self._requests_max and not self._client.is_logging_in(node_id):
                self._send(delivery)
            else:
                self._queue(node_id).waiting.append((delivery, []))

    def _requests(self, wires: Sequence[WireBatch]) -> Sequence[tuple[int | None, Sequence[WireBatch]]]:
        """Group the batches by leader. The fast path is for the batches of one plan and one topic."""
        indices = [wire.partition_index for wire in wires]
        for partition_index in self._retried.keys() & indices:
            del self._retried[partition_index]
        nodes = set(map(self._leaders.get, indices))
        if len(nodes) == 1 and len({wire.topic for wire in wires}) == 1 and len(set(indices)) == len(indices):
            (node_id,) = nodes
            if node_id is not None:
                return [(node_id, wires)]
        return in_requests(wires, self._leader_of)

    def _send(self, delivery: Delivery) -> None:
        """Pass a request to the client. If the node is disconnected meanwhile, ack its batches for a retry."""
        node_id = delivery.node_id
        if not self._client.is_connected(node_id):
            self._end_all(delivery, no_answer(NETWORK_EXCEPTION, f"broker {node_id} is not connected any more"))
            return
        request = self._request(delivery)
        self._count_sent(delivery)
        self._queue(node_id).sent[delivery] = None
        self._client.produce(node_id, delivery, request, is_answered=self._required_acks != 0)

    def _request(self, delivery: Delivery) -> ProduceRequest:
        topics = delivery.topics(self._client.topic_id)
        has_topic_ids = all(topic_id is not None for _, topic_id, _, _ in topics)
        version = self._version_for(delivery.node_id, has_topic_ids=has_topic_ids)
        if version < VERSION_ZSTD and self._options.compression_type == "zstd":
            self._host.report(f"broker {delivery.node_id} is too old for zstd (Kafka 2.1): batches go uncompressed")
            delivery.compressed = ()
            topics = delivery.topics(self._client.topic_id)
        return ProduceRequest(
            version,
            self._client.client_id,
            self._required_acks,
            self._request_timeout_ms,
            topics,
            self._transactional_id,
        )

    def _version_for(self, node_id: int, *, has_topic_ids: bool) -> int:
        is_explicit = self._transaction is not None and not self._transaction.protocol.is_implicit
        newest = VERSION_EXPLICIT if is_explicit else VERSION_MAX
        return version_for(self._client.produce_versions(node_id), has_topic_ids=has_topic_ids, newest=newest)

    @property
    def _transactional_id(self) -> str | None:
        """The transactional id of the batches' producer; None outside of transactions."""
        return None if self._transaction is None else self._transaction.protocol.transactional_id

    def _count_sent(self, delivery: Delivery) -> None:
        now_ns = clock.monotonic_ns()
        self._metrics.sent(delivery.node_id, sum([wire.record_count for wire in delivery.wires]), now_ns)
        if self._compression is not None:
            self._compression.metrics.sent(delivery.with_sizes(), now_ns)

    # --- hand over sockets

    def hand_over(self, partition_indices: Sequence[int]) -> Sequence[BorrowedSocket]:
        """Hand over the socket of each leader without requests in flight, with its recently acked partitions.

        Partitions that the open transaction does not have yet are omitted. `plan` adds them.
        """
        self._want_answer()
        self._forget_old_leaders()
        unknown = self._known.missing(partition_indices, clock.monotonic())
        by_node: dict[int, list[int]] = {}
        for partition_index in filter(self._has_added, partition_indices):
            node_id = self._leader_of(partition_index)
            if node_id is not None and partition_index not in unknown:
                by_node.setdefault(node_id, []).append(partition_index)
        now_s = clock.monotonic()
        for node_id in by_node:
            self._queue(node_id).hold_back(now_s)
        handed_over = [
            self._borrowed(node_id, indices) for node_id, indices in by_node.items() if self._can_take(node_id)
        ]
        return [borrowed for borrowed in handed_over if borrowed is not None]

    def _has_added(self, partition_index: int) -> bool:
        """True if batches of the partition may be sent without a request to the coordinator."""
        if self._transaction is None:
            return True
        place = TopicPartition(*self._host.topic_partition(partition_index))
        return self._transaction.protocol.may_produce(place)

    def _borrowed(self, node_id: int, indices: Sequence[int]) -> BorrowedSocket | None:
        handed = None if self._queue(node_id).count else self._client.hand_over_socket(node_id)
        if handed is None:
            return None
        descriptor, correlation_id = handed
        found = {topic: self._client.topic_id(topic) for topic, _ in map(self._host.topic_partition, indices)}
        topic_ids = {topic: topic_id.bytes for topic, topic_id in found.items() if topic_id is not None}
        has_topic_ids = len(topic_ids) == len(found)
        return BorrowedSocket(
            node_id,
            descriptor,
            self._version_for(node_id, has_topic_ids=has_topic_ids),
            self._client.client_id,
            self._required_acks,
            min(self._requests_max, IN_FLIGHT_MAX),
            correlation_id,
            indices,
            topic_ids if has_topic_ids else {},
            self._transactional_id,
        )

    def return_socket(self, borrowed: BorrowedSocket, delivered: Delivered, end: SocketEnd) -> None:
        self._produce_answer_count += delivered.request_count
        self._known.acked([row[0] for row in delivered.rows], clock.monotonic())
        self._metrics.count_borrowed(borrowed.node_id, delivered, end.throttle_ms, clock.monotonic_ns())
        self._client.take_back_socket(borrowed.node_id, delivered, len(end.unanswered))
        for unanswered in end.unanswered:
            self._adopt(borrowed, unanswered)
        self._client.resume_socket(borrowed.node_id, end)

    def _adopt(self, borrowed: BorrowedSocket, unanswered: Unanswered) -> None:
        """Continue a request of the borrower, as if it had been started here."""
        delivery = Delivery(borrowed.node_id, unanswered.wires, tuple(self._in_flight()))
        ids = borrowed.topic_ids
        topics = delivery.topics(lambda topic: uuid.UUID(bytes=ids[topic]) if ids else None)
        request = ProduceRequest(
            borrowed.version,
            borrowed.client_id,
            borrowed.acks,
            self._request_timeout_ms,
            topics,
            borrowed.transactional_id,
        )
        self._count_sent(delivery)
        self._queue(borrowed.node_id).sent[delivery] = None
        self._client.adopt(borrowed.node_id, delivery, request, unanswered)

    # --- remove ended batches

    def _leave_out_ended(self) -> None:
        """Remove ended batches from requests that wait for their socket. Withdraw requests without any batch left.

        The others keep their places, so order and sequences do not change.
        """
        for node_id, queue in self._queues.items():
            for sent in self._client.untouched(node_id):
                delivery: Delivery = sent.tag
                if not self._ack_ended(delivery):
                    continue
                if delivery.wires:
                    sent.replace(self._request(delivery))
                else:
                    self._client.withdraw(node_id, sent)
                    del queue.sent[delivery]

    def _ack_ended(self, delivery: Delivery) -> bool:
        """Ack the batches that have their result meanwhile. Return False if there are none."""
        ended = delivery.leave_out_ended()
        self._acks += [Ack(wire, Verdict.REFUSED, message="it ended before it was sent") for wire in ended]
        if not delivery.wires:
            delivery.end()
        return bool(ended)

    # --- compress

    def _compress(self, delivery: Delivery, compression: Compression) -> None:
        jobs = []
        for wire in delivery.wires:
            job = compression.begin(wire)
            job.add_done_callback(lambda _: self._client.wake())
            jobs.append(job)
        self._queue(delivery.node_id).waiting.append((delivery, jobs))

    # --- wait

    def _may_send(self, node_id: int, queue: _NodeQueue) -> bool:
        """True if the first waiting delivery of a node is compressed, if necessary, and may be in flight."""
        has_room = len(queue.sent) < self._requests_max and not self._client.is_logging_in(node_id)
        return has_room and bool(queue.waiting) and all(job.done() for job in queue.waiting[0][1])

    def _send_waiting(self) -> None:
        """Send the waiting deliveries that may be sent, without batches that expired meanwhile.

        `plan` omits a node with enough requests in flight. Batches that the pump did not send are delivered without a
        plan. So together with the pump's requests, a node may have more.
        """
        for node_id, queue in list(self._queues.items()):
            while self._may_send(node_id, queue):
                delivery, jobs = queue.waiting.popleft()
                delivery.compressed = [compressed(job, self._host.report) for job in jobs]
                self._ack_ended(delivery)
                if delivery.wires:
                    self._send(delivery)

    # --- poll

    def poll(self, timeout_s: float, wake_fd: int) -> Sequence[Ack | Acks]:
        self._leave_out_ended()
        self._send_waiting()
        self._step()
        if self._transaction is not None:
            timeout_s = min(timeout_s, self._transaction.rest_s)
        for outcome in self._client.poll(0 if self._acks else timeout_s, wake_fd):
            self._finish(outcome)
        self._step()
        self._send_waiting()
        if self._client.metadata_count != self._metadata_count:
            self._metadata_count = self._client.metadata_count
            self._take_metadata()
        self._watch_cluster()
        acks, self._acks = self._acks, []
        return acks

    def _finish(self, outcome: ResponseOutcome) -> None:
        """Process the response to a request, or its failure."""
        delivery: Delivery = outcome.tag
        self._produce_answer_count += outcome.answer is not None
        del self._queue(delivery.node_id).sent[delivery]
        answer = outcome.answer
        if answer is None:
            self._end_all(delivery, no_answer(outcome.error_code, outcome.message))
            return
        self._metrics.answered(delivery.node_id, outcome.latency_ms, answer.throttle_time_ms, clock.monotonic_ns())
        if isinstance(answer, PlainAnswer):
            self._ack_delivered(delivery, answer.base_offsets, answer.log_append_times_ms)
            return
        for wire, partition in delivery.answers(answer.partitions):
            if partition.error_code == 0:
                self._known.acked((wire.partition_index,), clock.monotonic())
                self._acks.append(Ack(wire, Verdict.DELIVERED, partition.base_offset, partition.log_append_time_ms))
            else:
                is_new = self._client.note_leader(wire.topic, partition, answer.nodes)
                self._end(delivery, wire, partition, retries_at_once=is_new)
        delivery.end()

    def _ack_delivered(
        self, delivery: Delivery, base_offsets: Sequence[int], log_append_times_ms: Sequence[int]
    ) -> None:
        """Ack the batches of a response without errors, the usual case."""
        self._known.acked(delivery.partition_indices(), clock.monotonic())
        self._acks.append(Acks(delivery.wires, base_offsets, log_append_times_ms))
        delivery.end()

    def _end_all(self, delivery: Delivery, answer: PartitionAnswer) -> None:
        """Ack all batches of a request with the same result: with acks=0, or without a response."""
        if answer.error_code == 0:
            unknown = [-1] * len(delivery.wires)
            self._ack_delivered(delivery, unknown, unknown)
            return
        for wire in delivery.wires:
            self._end(delivery, wire, answer)
        delivery.end()

    def _end(
        self, delivery: Delivery | None, wire: WireBatch, answer: PartitionAnswer, *, retries_at_once: bool = False
    ) -> None:
        """Create the Ack of a batch that was not delivered; `poll` returns it."""
        ack = ack_of(delivery, wire, answer)
        if delivery is not None:
            delivery.verdicts[wire.partition_index] = ack.verdict
        if treatment(answer.error_code).is_metadata_stale:
            self._client.refresh_metadata()
        if self._arena_transactions is not None and ack.verdict in {Verdict.REFUSED, Verdict.OUT_OF_SEQUENCE}:
            ack.verdict = Verdict.REFUSED  # a lost sequence ends its transaction
            self._arena_transactions.batch_failed(ack.error_code, ack.message)
        if ack.verdict is Verdict.RETRY:
            ack.retry_after_ms = 0 if retries_at_once else None
            self._retried[wire.partition_index] = self._client.leader(wire.topic, wire.partition)
        self._acks.append(ack)

    def _take_metadata(self) -> None:
        """Process new metadata: a partition with a new leader does not have to wait (KAFKA-15415)."""
        for partition_index, former in list(self._retried.items()):
            leader = self._client.leader(*self._host.topic_partition(partition_index))
            if leader is not None and leader != former:
                del self._retried[partition_index]
                self._host.end_backoff(partition_index)
        for partition_index in list(self._leaderless):
            if self._client.leader(*self._host.topic_partition(partition_index)) is not None:
                self._leaderless.discard(partition_index)
                self._host.set_available(partition_index, True)

    # --- metrics

    def metrics(self) -> Mapping[str, float]:
        """Return Kafka's metrics (docs/reference/metrics.rst), including those of brokers and topics."""
        now_ns = clock.monotonic_ns()
        return {
            **self._metrics.read(now_ns),
            **({} if self._compression is None else self._compression.metrics.read(now_ns)),
            **self._client.traffic.read(now_ns),
            "requests-in-flight": sum(len(queue.sent) for queue in self._queues.values()),
            "metadata-age": self._client.metadata_age_s,
        }


def _revealed(value: Any) -> Any:
    return value.reveal() if isinstance(value, Secret) else value
