# SPDX-License-Identifier: Apache-2.0
"""The connection of the sink to a cluster."""

from __future__ import annotations

import selectors
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kafka import errors
from kafka.protocol.producer import InitProducerIdRequest
from kafka.structs import TopicPartition

from shmaccum._native import ProduceRequest
from shmaccum.common import clock
from shmaccum.common.clock import NS_PER_S
from shmaccum.sender.sinks.kafka.library.connections import Manager
from shmaccum.sender.sinks.kafka.library.failures import LOGIN_FAILURES, describe, error_code
from shmaccum.sender.sinks.kafka.library.frames import OVER, OverTimer, ResponseOutcome, Sent
from shmaccum.sender.sinks.kafka.library.login import check_login, quiet_library, tls_files
from shmaccum.sender.sinks.kafka.library.loop import Selector
from shmaccum.sender.sinks.kafka.library.tokens import TokenRefresher
from shmaccum.sender.sinks.kafka.produce import PRODUCE_API_KEY, PartitionAnswer, PlainAnswer
from shmaccum.sender.sinks.kafka.traffic import Traffic
from shmaccum.sender.sinks.kafka.transaction.requests import FetchOffsets, FindCoordinator, Request, TransactionResponse
from shmaccum.sender.sinks.sensors import WINDOW_NS
from shmaccum.sender.sinks.sink import Delivered, SocketEnd, Unanswered

# The library's limit would also pause metadata requests. This sink limits only Produce requests.
LIBRARY_IN_FLIGHT_MAX = 1_000
FRAME_SIZE_MAX = 100_000_000
CORRELATION_IDS = 2**31
BOOTSTRAP_PAUSE_S = 0.1
BOOTSTRAP_PAUSE_MAX_S = 10.0
REBOOTSTRAP_CHECK_S = 1.0
NEAR_LOGIN_S = 1.5
"""Longer than a borrower keeps a socket (RUN_NS in shmaccum/sender/pump.py)."""
WINDOW_S = WINDOW_NS / NS_PER_S


@dataclass(slots=True)
class TopicState:
    partition_count: int | None = None
    error_code: int = 0
    """The error in the last metadata; 0 if there is none."""


@dataclass(slots=True)
class ProducerIdRequest:
    producer_id: int = -1
    producer_epoch: int = -1
    error_code: int = 0
    message: str = ""
    is_answered: bool = False


@dataclass(slots=True)
class TransactionExchange:
    """A request of a transaction, and its response."""

    request: Request | FetchOffsets
    answer: TransactionResponse | None = None
    error_code: int = 0
    """The reason why there is no response."""
    message: str = ""
    is_answered: bool = False
    is_unsent: bool = False
    """It is certain that no byte of it was sent."""


class Client:
    """The connection of the sink to a cluster. For one thread; only `wake` may be called from others.

    Args:
        config: options of kafka-python, by its names, and rebootstrap_trigger_ms.
        report: takes sentences about failures.

    Raises:
        InvalidArgumentError: certificates cannot be read, or a package for the login is missing.
    """

    def __init__(self, config: Mapping[str, Any], report: Callable[[str], None]) -> None:
        self._servers = ",".join(config["bootstrap_servers"])
        self._report = report
        self.client_id: str = config["client_id"]
        self.last_failure = ""
        """The last connection failure; empty if there was none."""
        self.is_login_rejected = False
        """The last connection failure was a login that no broker accepted."""
        self._mechanism: str | None = config["sasl_mechanism"]
        self._outcomes: list[ResponseOutcome] = []
        self._wake_fd = -1
        self._wake_task: Any = None
        self._bootstrap_failures = 0
        self._hint_count = 0
        self._rebootstrap_s = config["rebootstrap_trigger_ms"] / 1000
        quiet_library(has_login=config["security_protocol"].startswith("SASL"))
        fixed = {
            "max_in_flight_requests_per_connection": LIBRARY_IN_FLIGHT_MAX,
            "receive_message_max_bytes": FRAME_SIZE_MAX,
        }
        tls = tls_files(config)
        check_login(config)
        self._net = Selector(client_id=config["client_id"], slow_task_threshold_secs=0)
        source = config["token_source"]
        self._tokens = None if source is None else TokenRefresher(self._net, source, self._report)
        self.traffic = Traffic(self._net.times)
        self._manager = Manager(
            self._net, self.traffic, self._connection_failed, report, self._tokens, tls, **{**config, **fixed}
        )

    def __repr__(self) -> str:
        return f"<Client of {self._servers}>"

    # --- the loop

    def start(self) -> None:
        """Start to connect to the cluster."""
        self._bootstrap()
        self._net.call_later(REBOOTSTRAP_CHECK_S, self._maybe_rebootstrap)
        self._net.call_later(WINDOW_S, self._end_window)

    def _end_window(self) -> None:
        if not self._manager.closed:
            self.traffic.sample()
            self._net.call_later(WINDOW_S, self._end_window)

    def _bootstrap(self) -> None:
        self._manager.bootstrap_async().add_errback(self._bootstrap_failed)

    def _maybe_rebootstrap(self) -> None:
        """Bootstrap again if no known broker has sent metadata for too long (KIP-1102)."""
        if self._manager.closed:
            return
        if self._manager.bootstrapped and self.metadata_age_s > self._rebootstrap_s:
            self._report(f"no metadata for {self._rebootstrap_s:g} s: looking for the cluster at {self._servers} again")
            self._bootstrap()
        self._net.call_later(REBOOTSTRAP_CHECK_S, self._maybe_rebootstrap)

    def poll(self, timeout_s: float, wake_fd: int) -> list[ResponseOutcome]:
        """Run one round: wait for sockets, timers, the wake fd or `wake`, and do what is due."""
        self._watch_wake_fd(wake_fd)
        self._net.poll(timeout_ms=0 if self._outcomes else timeout_s * 1000)
        return self._take_outcomes()

    def wake(self) -> None:
        """Make `poll` return."""
        self._net.wakeup()

    def close(self) -> list[ResponseOutcome]:
        """Close every connection. Each request in flight ends with an error."""
        self._watch_wake_fd(-1)
        if self._tokens is not None:
            self._tokens.close()
        for conn in self._manager.connections():
            is_writing = conn.transport is not None and bool(conn.transport.unwritten)
            conn.close(errors.Cancelled("the sink was closed") if is_writing else None)
        self._manager.close()
        self._net.close()
        return self._take_outcomes()

    def _take_outcomes(self) -> list[ResponseOutcome]:
        taken = self._outcomes[:]
        self._outcomes.clear()
        return taken

    def _watch_wake_fd(self, wake_fd: int) -> None:
        if wake_fd == self._wake_fd:
            return
        if self._wake_task is not None:
            self._net.cancel(self._wake_task)
        self._wake_fd = wake_fd
        self._wake_task = self._net.call_soon(self._listen) if wake_fd >= 0 else None

    async def _listen(self) -> None:
        """Keep the wake fd in the selector's set. It is never read: its readiness only ends the wait."""
        wake_fd = self._wake_fd
        try:
            while True:
                await self._net.wait_readable(wake_fd)
        finally:
            self._net.unregister_event(wake_fd, selectors.EVENT_READ)

    # --- failures

    def _bootstrap_failed(self, error: Exception) -> None:
        if self._manager.closed:
            return
        self._fail(f"no usable broker at {self._servers}: {describe(error)}")
        delay_s = min(BOOTSTRAP_PAUSE_S * 2**self._bootstrap_failures, BOOTSTRAP_PAUSE_MAX_S)
        self._bootstrap_failures += 1
        self._net.call_later(delay_s, self._bootstrap)

    def _connection_failed(self, address: str, error: Exception) -> None:
        self._fail(f"no connection to {address}: {describe(error, self._mechanism)}")
        self.is_login_rejected = isinstance(error, LOGIN_FAILURES)

    def _fail(self, sentence: str) -> None:
        self.is_login_rejected = False
        self.last_failure = sentence
        self._report(sentence)

    # --- metadata

    @property
    def is_bootstrapped(self) -> bool:
        """True after a broker has sent metadata."""
        return self.metadata_count > 0

    @property
    def cluster_id(self) -> str | None:
        """The id of the cluster; None before the bootstrap, or if its brokers have none."""
        cluster_id: str | None = self._manager.cluster.cluster_id
        return cluster_id

    @property
    def metadata_age_s(self) -> float:
        """Seconds since the last metadata; 0 before the first."""
        age_s: float = self._manager.cluster.age_s
        return age_s

    @property
    def leadership_count(self) -> int:
        """A number that changes when leaders may have changed."""
        count: int = self._manager.cluster.update_count + self._hint_count
        return count

    @property
    def metadata_count(self) -> int:
        count: int = self._manager.cluster.update_count
        return count

    def watch_topic(self, topic: str) -> None:
        """Include the topic in metadata requests; the broker may create it.

        Raises:
            ValueError: the name is invalid.
        """
        self._manager.cluster.watch(topic)

    def unwatch_topic(self, topic: str) -> None:
        """Remove the topic from metadata requests."""
        self._manager.cluster.unwatch(topic)

    def topic_state(self, topic: str) -> TopicState:
        """Return the newest metadata of a topic."""
        cluster = self._manager.cluster
        partitions = cluster.partitions_for_topic(topic)
        return TopicState(len(partitions) if partitions else None, cluster.topic_errors.get(topic, 0))

    def topic_id(self, topic: str) -> uuid.UUID | None:
        """Return the id of a topic (Kafka 2.8 and newer)."""
        topic_id = self._manager.cluster.topic_id(topic)
        return topic_id if isinstance(topic_id, uuid.UUID) and topic_id.int else None

    def leader(self, topic: str, partition: int) -> int | None:
        """Return the node that leads a partition; None if there is none, or if it is unknown."""
        leader = self._manager.cluster.leader_for_partition(TopicPartition(topic, partition))
        return leader if leader is not None and leader >= 0 else None

    def refresh_metadata(self) -> None:
        """Request metadata as soon as the backoff allows."""
        if self.is_bootstrapped and not self._manager.cluster.need_update:
            self._manager.cluster.request_update()

    def note_leader(
        self, topic: str, answer: PartitionAnswer, nodes: Sequence[tuple[int, str, int, str | None]]
    ) -> bool:
        """Apply a leader hint of a Produce response (KIP-951). Return True if it is new, and its node is known."""
        if answer.leader_id < 0:
            return False
        for node in nodes:
            self._manager.cluster.add_node(node)
        partition = TopicPartition(topic, answer.partition)
        is_new = self._manager.cluster.update_partition_leader(partition, answer.leader_id, answer.leader_epoch)
        self._hint_count += is_new
        return is_new and self._manager.cluster.broker_metadata(answer.leader_id) is not None

    # --- nodes

    def is_ready(self, node_id: int) -> bool:
        """True if a request may be sent to the node now. If there is no connection, start to connect."""
        return self.is_connected(node_id) and not self.is_logging_in(node_id)

    def is_connected(self, node_id: int) -> bool:
        """True if the node accepts requests, or will after its login is repeated. Otherwise, start to connect."""
        conn = self._manager.connection(node_id)
        if conn is None:
            self._connect(node_id)
            return False
        return conn.connected and not conn.paused

    def is_logging_in(self, node_id: int) -> bool:
        """True while the login to a connected node is repeated. Requests to it should wait."""
        conn = self._manager.connection(node_id)
        return conn is not None and conn.connected and conn._reauth.is_reauthenticating  # noqa: SLF001 - see `Session`

    def _connect(self, node_id: int) -> None:
        try:
            self._manager.get_connection(node_id)
        except errors.NodeNotReadyError:
            pass  # the pause has not passed yet
        except errors.UnknownBrokerIdError:
            self.refresh_metadata()

    def produce_versions(self, node_id: int) -> tuple[int, int]:
        """Return the oldest and newest version of Produce that a connected node accepts."""
        known = self._manager.connection(node_id).broker_version_data.api_versions
        oldest, newest = known.get(PRODUCE_API_KEY, (0, 0))
        return oldest, newest

    # --- requests

    def produce(self, node_id: int, tag: Any, request: ProduceRequest, *, is_answered: bool) -> None:
        """Send a Produce request to a node that is ready. `poll` will return a `ResponseOutcome` with the tag.

        Args:
            is_answered: False with acks=0. Then the outcome is returned after the last byte was written.
        """
        conn = self._manager.connection(node_id)
        correlation_id = conn.parser._next_correlation_id()  # noqa: SLF001 - shared with the library's own requests
        sent = Sent(self._outcomes, tag, request, correlation_id, conn.transport.traffic, is_answered=is_answered)
        if is_answered:
            conn.parser.in_flight_requests.append(sent)
            conn.in_flight_requests.append(_in_flight(sent))
        conn.transport.timer.watch(sent)
        started_ns = clock.monotonic_ns()
        conn.transport.write(sent)
        self._net.times.io_ns += clock.monotonic_ns() - started_ns

    def untouched(self, node_id: int) -> list[Sent]:
        """Return the unwritten Produce requests to a node, which may be replaced or withdrawn."""
        conn = self._manager.connection(node_id)
        if conn is None or conn.transport is None:
            return []
        untouched: list[Sent] = conn.transport.untouched
        return untouched

    def withdraw(self, node_id: int, sent: Sent) -> None:
        """Withdraw an unwritten request. Its buffers are released, and there will be no `ResponseOutcome`."""
        conn = self._manager.connection(node_id)
        conn.transport.withdraw(sent)
        if sent.is_answered:
            conn.parser.in_flight_requests.remove(sent)
            conn.in_flight_requests.remove(_in_flight(sent))
            conn._reauth.on_response_processed()  # noqa: SLF001 - a login waits until nothing is in flight

    def hand_over_socket(self, node_id: int) -> tuple[int, int] | None:
        """Return the socket of a ready node, and its next correlation id.

        Return None if a request is in flight, or if the login must soon be repeated: a borrower would delay it.
        """
        conn = self._manager.connection(node_id)
        if conn._reauth.due_s < clock.monotonic() + NEAR_LOGIN_S:  # noqa: SLF001 - see `Session`
            return None
        if conn.in_flight_requests or conn.parser.in_flight_requests or conn.transport.unwritten:
            return None
        last_correlation_id: int = conn.parser._correlation_id  # noqa: SLF001 - the borrower continues from it
        return conn.transport.hand_over(), (last_correlation_id + 1) % CORRELATION_IDS

    def adopt(self, node_id: int, tag: Any, request: ProduceRequest, unanswered: Unanswered) -> None:
        """Continue a Produce request that a borrower of the socket began; `poll` will return a `ResponseOutcome`."""
        conn = self._manager.connection(node_id)
        correlation_id, traffic = unanswered.correlation_id, conn.transport.traffic
        sent = Sent(self._outcomes, tag, request, correlation_id, traffic, is_answered=True)
        sent.begun_s -= unanswered.age_s
        sent.skip(unanswered.sent_size)
        conn.parser.in_flight_requests.append(sent)
        conn.in_flight_requests.append(_in_flight(sent))
        conn.transport.timer.watch(sent)
        if sent.is_written:
            traffic.request_written(sent.size)
        else:
            conn.transport.write(sent)

    def take_back_socket(self, node_id: int, delivered: Delivered, unanswered_count: int) -> None:
        """Return the socket of a node to the library. Its next correlation id follows those of the borrower.

        The requests without a response are adopted next, and then `resume_socket` is called.
        """
        conn = self._manager.connection(node_id)
        begun_count = delivered.request_count + unanswered_count
        conn.parser._correlation_id = (conn.parser._correlation_id + begun_count) % CORRELATION_IDS  # noqa: SLF001
        conn.transport.take_back(delivered)

    def resume_socket(self, node_id: int, end: SocketEnd) -> None:
        """Process the bytes that the borrower has received, and close a broken socket.

        Does nothing if the connection was closed meanwhile, because an adopted request has found the end of the socket.
        """
        conn = self._manager.connection(node_id)
        if conn is None:
            return
        conn.transport.resume(end)
        if end.throttle_ms:
            conn._maybe_throttle(PlainAnswer(end.throttle_ms, (), ()))  # noqa: SLF001 - as for every response

    def ask_producer_id(self) -> ProducerIdRequest:
        """Request a new producer id from any broker (InitProducerId without a transactional id)."""
        asked = ProducerIdRequest()
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000, max_version=4)
        future = self._manager.send(request)
        future.add_callback(lambda response: _take_producer_id(asked, response))
        future.add_errback(lambda error: _miss_producer_id(asked, error))
        return asked

    def ask(self, node_id: int | None, request: Request | FetchOffsets) -> TransactionExchange:
        """Start a request of a transaction. If `node_id` is None, use any node. Connect if necessary."""
        from shmaccum.sender.sinks.kafka.library.transaction_messages import (
            message_of,  # most senders have no transaction
        )

        asked = TransactionExchange(request)
        try:
            future = self._manager.send(message_of(request), node_id)
        except errors.KafkaError as error:  # metadata does not have the broker any more, or a login failed
            self.refresh_metadata()
            _fail_exchange(asked, error)
            asked.is_unsent = True
            return asked
        future.add_callback(lambda response: self._take(asked, response))
        future.add_errback(lambda error: _fail_exchange(asked, error))
        return asked

    def _take(self, asked: TransactionExchange, response: Any) -> None:
        """Process a response, which may name a coordinator that was unknown."""
        from shmaccum.sender.sinks.kafka.library.transaction_messages import answer_of, coordinator_in

        asked.answer = answer_of(asked.request, response)
        if isinstance(asked.request, FindCoordinator) and asked.answer.error_code == 0:
            found = coordinator_in(response)
            self._manager.cluster.add_node((found.node_id, found.host, found.port, None))
        asked.is_answered = True


def _fail_exchange(asked: TransactionExchange, error: Exception) -> None:
    asked.error_code, asked.message = error_code(error), describe(error)
    asked.is_unsent = isinstance(error, errors.NodeNotReadyError)
    asked.is_answered = True


def _in_flight(sent: Sent) -> tuple[int, Sent, float, float, OverTimer]:
    """Return an entry of the library's queue: number, future, start, deadline, timer."""
    return sent.correlation_id, sent, sent.begun_s, 0.0, OVER


def _take_producer_id(asked: ProducerIdRequest, response: Any) -> None:
    asked.producer_id, asked.producer_epoch = response.producer_id, response.producer_epoch
    asked.error_code = response.error_code
    asked.is_answered = True


def _miss_producer_id(asked: ProducerIdRequest, error: Exception) -> None:
    asked.error_code, asked.message = error_code(error), describe(error)
    asked.is_answered = True
