# SPDX-License-Identifier: Apache-2.0
"""kafka-python, wrapped: connections, bootstrap, metadata, versions, TLS, SASL, reconnect backoff, throttling.

This is the only module that imports kafka-python, and it uses more than the library promises. What it stands on::

    NetworkSelector         one round of its loop per `poll`, in the caller's thread; a task watches the doorbell;
                            `register_event` and `unregister_event` are overridden to be cheaper; who reads again and
                            again stays registered (`wait_readable`)
    KafkaConnectionManager  `_build_transport` and `_connect` are overridden: our transports, name lookups in a thread,
                            a pause also after a login that failed
    ClusterMetadata         `update_metadata` is overridden to remember the error of each topic, and newer leaders
    KafkaConnection         `in_flight_requests`, and its parser's: a Produce request puts itself there (`_Sent`), and
                            has one timer per connection (`_Timer`) instead of one of its own
    KafkaTCPTransport       `write` and `_sock_send` are overridden: frames are written by sendmsg, at once if possible;
                            `_read_from_sock`: an answer to Produce that came whole does not go through the parser
    KafkaSSLTransport       the same, a record of TLS at a time: gathering and encrypting are copies

Requests of every kind share a connection, and are answered in their order. So the library's two queues of what is in
flight stay the only ones: in front stands who is answered next. When that is a `_Sent`, and its answer is whole, it is
taken out of both and read natively (the short way). Everything else goes to the library, which finds in a `_Sent` what
it looks for: the header of a request, the future of a response, and a timer that is over already (the long way).

The rule that all of it serves: the arena's bytes are read by the kernel inside `sendmsg` and by nobody afterwards. A
request forgets its buffers when its last byte was taken or its connection is closed; only then an `Outcome` tells of
it.
"""

from __future__ import annotations

import errno
import importlib
import ipaddress
import logging
import os
import selectors
import socket
import ssl
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kafka import errors
from kafka.cluster import ClusterMetadata
from kafka.future import Future
from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.net.selector import KernelEvent, NetworkSelector, Task, TaskState
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.protocol.metadata import MetadataResponse
from kafka.protocol.producer import InitProducerIdRequest, ProduceResponse
from kafka.structs import TopicPartition
from kafka.util import ensure_valid_topic_name

from shmaccum._native import ProduceRequest
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.kafka.errors import NETWORK_EXCEPTION, REQUEST_TIMED_OUT, UNSUPPORTED_VERSION
from shmaccum.kafka.produce import PRODUCE_API_KEY, PartitionAnswer, PlainAnswer, ProduceAnswer

logger = logging.getLogger(__name__)

RECEIVE_SIZE = 64 * 1024
FRAME_HEAD_SIZE = 4
VERSION_OF_VERSIONS_PLAIN = 2
# The library's own limit pauses a connection for everything, metadata too: ours counts Produce requests only.
LIBRARY_IN_FLIGHT_MAX = 1_000
FRAME_SIZE_MAX = 100_000_000
BOOTSTRAP_PAUSE_S = 0.1
BOOTSTRAP_PAUSE_MAX_S = 10.0
REBOOTSTRAP_CHECK_S = 1.0


class Outcome(NamedTuple):
    """How a request ended. Its buffers are not used any more."""

    tag: Any
    """As given to `Client.produce`."""
    answer: ProduceAnswer | PlainAnswer | None
    """None when there was none: with acks=0, or after an error."""
    error_code: int
    """0, or why there is no answer."""
    message: str
    latency_ms: float


@dataclass(slots=True)
class ConnectionCounters:
    """What went over the connections to one broker, since the start."""

    connections_created: int = 0
    connections_closed: int = 0
    requests: int = 0
    responses: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


# --- requests on their way


class _Frame:
    """The bytes of a request of the library on their way out."""

    def __init__(self, data: bytes | bytearray) -> None:
        self._left = memoryview(data)

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
        """What is left."""
        return self._left

    def skip(self, count: int) -> None:
        """So many bytes are written."""
        self._left = self._left[count:]

    def end(self) -> None:
        """Nothing of it will be written any more."""


class _Sent:
    """A Produce request from its first byte to its answer: a frame, and what the library wants to see in its queues.

    The header of a request (`api_key`, `correlation_id`, ...), the future of a response (`success`, `failure`), and a
    timer that is over (`state`): there is one per connection (`_Timer`).
    """

    __slots__ = (
        "_client",
        "_counters",
        "_is_answered",
        "_request",
        "begun_s",
        "correlation_id",
        "peek",
        "send",
        "skip",
        "tag",
    )
    api_key = PRODUCE_API_KEY
    state = TaskState.DONE
    is_done = False

    def __init__(
        self,
        client: Client,
        tag: Any,
        request: ProduceRequest,
        correlation_id: int,
        counters: ConnectionCounters,
        *,
        is_answered: bool,
    ) -> None:
        request.begin(correlation_id)
        self._client = client
        self._request = request
        self._counters = counters
        self._is_answered = is_answered
        self.tag = tag
        self.begun_s = time.monotonic()
        self.correlation_id = correlation_id
        self.send = request.send
        self.peek = request.peek
        self.skip = request.skip

    # --- as a frame

    @property
    def is_written(self) -> bool:
        """True when nothing is left."""
        return self._request.is_written

    def end(self) -> None:
        """Nothing of it will be written any more; of one without an answer that is the end."""
        is_written = self._request.is_written
        self._request.release()
        if self._is_answered:
            return
        if is_written:
            self._tell(None, 0, "")
        else:
            self._tell(None, NETWORK_EXCEPTION, "the connection was closed")

    # --- as the library's header

    @property
    def api_version(self) -> int:
        """Of the request."""
        return self._request.version

    def get_response_class(self) -> _Sent:
        """Who parses the response."""
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
        """It was answered."""
        self._counters.responses += 1
        self._tell(answer, 0, "")

    def failure(self, error: Exception) -> None:
        """It will not be answered: its connection is closed."""
        self._request.release()
        self._tell(None, error_code(error), describe(error))

    def _tell(self, answer: ProduceAnswer | PlainAnswer | None, code: int, message: str) -> None:
        latency_ms = (time.monotonic() - self.begun_s) * 1000
        self._client.outcomes.append(Outcome(self.tag, answer, code, message, latency_ms))

    def __repr__(self) -> str:
        return repr(self._request)


class _Timer:
    """Closes a connection whose oldest Produce request has waited too long for its answer, or to be written."""

    def __init__(self, net: Any, conn: Any, timeout_s: float) -> None:
        self._net = net
        self._conn = conn
        self._timeout_s = timeout_s
        self._is_set = False

    def watch(self, sent: _Sent) -> None:
        """This one, too."""
        if not self._is_set:
            self._is_set = True
            self._net.call_at(sent.begun_s + self._timeout_s, self._look)

    def _look(self) -> None:
        self._is_set = False
        conn = self._conn
        if conn.closed:
            return
        waiting = [*(entry[1] for entry in conn.in_flight_requests), *conn.transport.unwritten]
        oldest = next((sent for sent in waiting if type(sent) is _Sent), None)
        if oldest is None:
            return
        timeout_at = oldest.begun_s + self._timeout_s
        if timeout_at <= time.monotonic():
            conn._request_timed_out(oldest, oldest.begun_s, timeout_at)  # noqa: SLF001 - as the library's own timers
        else:
            self.watch(oldest)


# --- transports


class _FrameTransport(KafkaTCPTransport):  # type: ignore[misc]
    """Writes frames, whole or in parts, without copying; counts bytes."""

    counters: ConnectionCounters
    timer: _Timer
    _writing: bool
    _dropped: Sequence[_Frame | _Sent] = ()

    def write(self, data: Any) -> None:
        """Begins to write, at once if nothing else waits."""
        frame = data if isinstance(data, _Sent) else _Frame(data)
        if self._closed:  # its loss is being told already
            frame.end()
            return
        self._write_buffer.append(frame)
        self.counters.requests += 1
        if self._writing:
            return
        _, error = self._sock_send()
        if error is not None:
            self.abort(error=error)
        elif self._write_buffer:
            self._writing = True
            self._write_task = self._net.call_soon(self._write_to_sock)

    @property
    def unwritten(self) -> Sequence[_Frame | _Sent]:
        """What waits for the socket, or is half written."""
        return self._write_buffer  # type: ignore[no-any-return]

    def _sock_send(self) -> tuple[int, Exception | None]:
        """Writes until nothing is left or the socket is full."""
        total = 0
        try:
            while self._write_buffer:
                frame = self._write_buffer[0]
                total += self._send_some(frame)
                if not frame.is_written:
                    break
                self._write_buffer.popleft().end()
        except OSError as error:
            # Not the error itself: its traceback would keep buffers of the arena.
            return total, errors.KafkaConnectionError(str(error))
        finally:
            self.counters.bytes_sent += total
            self.last_write = time.monotonic()
        return total, None

    def _send_some(self, frame: _Frame | _Sent) -> int:
        """What the socket takes at once."""
        return frame.send(self._sock.fileno())

    async def _read_from_sock(self) -> None:
        sock = self._sock
        try:
            while self._read and not self._closed:
                await self._net.wait_readable(sock)
                received, error = self._sock_recv()
                if error is not None:
                    self.abort(error=error)
                    return
                self.last_read = time.monotonic()
                self._take(received)
        except errors.KafkaProtocolError as error:
            self.abort(error=error)
        except Exception as error:  # noqa: BLE001 - hostile bytes raise anything in the library, and nobody else reads
            self.abort(error=errors.KafkaProtocolError(f"an answer cannot be read: {error}"))
        finally:
            self._net.unregister_event(sock, selectors.EVENT_READ)

    def _sock_recv(self) -> tuple[bytes, Exception | None]:
        try:
            received = self._receive()
        except (BlockingIOError, InterruptedError):
            return b"", None
        except OSError as error:
            return b"", errors.KafkaConnectionError(str(error))
        self.counters.bytes_received += len(received)
        return received, None if received else errors.KafkaConnectionError("the broker closed the connection")

    def _receive(self) -> bytes:
        """What is there, or as much of it as is taken at once; raises BlockingIOError when there is nothing."""
        received: bytes = self._sock.recv(RECEIVE_SIZE)
        return received

    def _take(self, received: bytes) -> None:
        """Answers to Produce that are whole and well go the short way, the rest to the library's parser."""
        conn = self._protocol
        rest = memoryview(received)
        while len(rest) >= FRAME_HEAD_SIZE and _is_between_frames(conn.parser) and conn.in_flight_requests:
            sent = conn.in_flight_requests[0][1]
            end = FRAME_HEAD_SIZE + int.from_bytes(rest[:FRAME_HEAD_SIZE], "big", signed=True)
            if type(sent) is not _Sent or not FRAME_HEAD_SIZE < end <= len(rest):
                break
            answer = sent.read(rest[FRAME_HEAD_SIZE:end])
            if answer is None:
                break
            conn.in_flight_requests.popleft()
            conn.parser.in_flight_requests.popleft()
            rest = rest[end:]
            if answer.throttle_time_ms:
                conn._maybe_throttle(answer)  # noqa: SLF001 - as the library does with every answer
            sent.success(answer)
            conn._reauth.on_response_processed()  # noqa: SLF001 - a login waits until nothing is in flight
        if rest:
            conn.data_received(bytes(rest))

    def _close(self, error: Exception | None = None) -> None:
        super()._close(error)
        unwritten, self._dropped = self._dropped, ()
        for frame in unwritten:
            frame.end()

    def abort(self, error: Exception | None = None) -> None:
        """Closes the socket, then lets go of what was not written."""
        if not self._closed:
            self._dropped = list(self._write_buffer)
        super().abort(error)


def _is_between_frames(parser: Any) -> bool:
    """The parser is in the middle of none."""
    return not parser._receiving and parser._header.tell() == 0  # noqa: SLF001 - the library has no other way to ask


class _TlsTransport(_FrameTransport, KafkaSSLTransport):  # type: ignore[misc]
    """The same over TLS: gathering a record, and encrypting it, copies."""

    def _send_some(self, frame: _Frame | _Sent) -> int:
        """What the socket takes at once. After "want write" OpenSSL is given the same bytes again, as it demands."""
        total = 0
        try:
            while not frame.is_written:
                sent = self._sock.send(frame.peek())
                frame.skip(sent)
                total += sent
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        return total

    def _receive(self) -> bytes:
        """All that is there: what OpenSSL has decrypted already wakes no selector."""
        received = bytearray()
        try:
            while data := self._sock.recv(RECEIVE_SIZE):
                received += data
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            if not received:
                raise BlockingIOError from error
        return bytes(received)


# --- the loop


class _Selector(NetworkSelector):  # type: ignore[misc]
    """Knows what is registered without asking for an error, whose text costs two system calls for each wait."""

    def __init__(self, **configs: Any) -> None:
        super().__init__(**configs)
        self._waited_for: dict[int, int] = {}

    def register_event(self, fileobj: Any, event: int, task: Any) -> None:
        """Wakes the task when the file is ready."""
        descriptor = _descriptor(fileobj)
        events = self._waited_for.get(descriptor, 0)
        if events or not isinstance(task, Task):
            super().register_event(fileobj, event, task)
        else:
            self._selector.register(fileobj, event, (task, None) if event == selectors.EVENT_READ else (None, task))
        self._waited_for[descriptor] = events | event

    def wait_readable(self, fileobj: Any) -> Awaitable[None]:
        """Waits, and stays registered, for whoever reads again and again; who stops unregisters the event."""
        return KernelEvent("_wait_readable", fileobj)  # type: ignore[no-any-return]

    def _wait_readable(self, fileobj: Any) -> None:
        """What that event does, in the loop's words."""
        task = self._current
        if not self._waited_for.get(_descriptor(fileobj), 0) & selectors.EVENT_READ:
            self.register_event(fileobj, selectors.EVENT_READ, task)
        task.state = TaskState.WAIT_IO

    def unregister_event(self, fileobj: Any, event: int) -> None:
        """Does not, any more."""
        descriptor = _descriptor(fileobj)
        events = self._waited_for.pop(descriptor, 0) & ~event
        if events:
            self._waited_for[descriptor] = events
        super().unregister_event(fileobj, event)


def _descriptor(fileobj: Any) -> int:
    """-1 of one that was closed."""
    return fileobj if isinstance(fileobj, int) else int(fileobj.fileno())


# --- cluster and manager


class _Cluster(ClusterMetadata):  # type: ignore[misc]
    """Cluster metadata that remembers what was wrong with a topic."""

    def __init__(self, **configs: Any) -> None:
        super().__init__(**configs)
        self.topic_errors: dict[str, int] = {}
        self.update_count = 0

    @property
    def age_s(self) -> float:
        """Since the last metadata; 0 before the first."""
        refreshed_ms: float = self._last_successful_refresh_ms
        return max(time.monotonic() - refreshed_ms / 1000, 0.0) if refreshed_ms else 0.0

    def update_metadata(self, metadata: Any) -> None:
        """Takes a response over, but for leaders of which newer ones are known."""
        self._keep_newer_leaders(metadata)
        self.update_count += 1
        self.topic_errors = {topic.name: topic.error_code for topic in metadata.topics if topic.error_code}
        super().update_metadata(metadata)

    def _keep_newer_leaders(self, metadata: Any) -> None:
        """A broker that is behind names former leaders, also after a hint; the library would go back to them.

        An epoch says nothing about that of another topic, which may have had the same name. (Metadata.java,
        updateLatestMetadata)
        """
        for topic in metadata.topics:
            if topic.topic_id and topic.topic_id == self.topic_id(topic.name):
                known = self._partitions.get(topic.name, {})
                for partition in topic.partitions:
                    former = known.get(partition.partition_index, partition)
                    if 0 <= partition.leader_epoch < former.leader_epoch:
                        partition.leader_id, partition.leader_epoch = former.leader_id, former.leader_epoch

    def watch(self, topic: str) -> None:
        """The topic is asked for from now on. Raises ValueError when Kafka allows no such name."""
        if topic in self._topics:
            return
        if self._manager.bootstrapped:
            self.add_topic(topic)
        else:
            ensure_valid_topic_name(topic)
            self._topics.add(topic)

    def unwatch(self, topic: str) -> None:
        """The topic is not asked for any more."""
        self._topics.discard(topic)
        self.topic_errors.pop(topic, None)

    def add_node(self, node: tuple[int, str, int, str | None]) -> None:
        """A broker that is not in the metadata yet (KIP-951)."""
        self._brokers.setdefault(node[0], MetadataResponse.MetadataResponseBroker(*node))


class _Manager(KafkaConnectionManager):  # type: ignore[misc]
    """Connections with our transports."""

    def __init__(self, net: Any, on_failure: Callable[[str, Exception], None], **configs: Any) -> None:
        super().__init__(net, **configs)
        self.on_failure = on_failure
        self.counters: dict[Any, ConnectionCounters] = {}
        # Brokers whose answer to the newest ApiVersions could not be read: they get an old one next time.
        self._misunderstood: set[tuple[str, int]] = set()
        self.cluster = _Cluster(**configs)
        self.cluster.attach(self)

    def connection(self, node_id: Any) -> Any:
        """The library's connection to a node, in whatever state; None when there is none."""
        return self._conns.get(node_id)

    def connections(self) -> list[Any]:
        """All of them."""
        return list(self._conns.values())

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        sock = await self._open_socket(node.host, node.port, timeout_at)
        if self.ssl_enabled:
            settings = {key: value for key, value in self.config.items() if key.startswith("ssl_")}
            transport = _TlsTransport(self._net, sock, host=node.host, **settings)
        else:
            transport = _FrameTransport(self._net, sock, host=node.host)
        transport.counters = self.counters.setdefault(node.node_id, ConnectionCounters())
        try:
            await transport.handshake()
        except (OSError, ValueError, errors.KafkaError) as error:
            transport.abort(error)
            raise errors.KafkaConnectionError(f"TLS handshake failed: {error}") from None
        return transport

    async def _open_socket(self, host: str, port: int, timeout_at: float | None) -> socket.socket:
        """Connected to the first of the host's addresses that answers."""
        reason = f"{host} has no address"
        for family, address in await self._resolve(host, port):
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                await self._connect_socket(sock, address, timeout_at)
            except (OSError, errors.KafkaError) as error:
                sock.close()
                reason = str(error)
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        raise errors.KafkaConnectionError(reason)

    async def _connect_socket(self, sock: socket.socket, address: Any, timeout_at: float | None) -> None:
        sock.setblocking(False)
        for option in self.config["socket_options"]:
            sock.setsockopt(*option)
        code = sock.connect_ex(address)
        if code == errno.EINPROGRESS:
            await self._net.wait_write(sock, timeout_at)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code != 0:
            raise OSError(code, os.strerror(code))

    async def _resolve(self, host: str, port: int) -> list[tuple[Any, Any]]:
        """Families and addresses of the host, looked up in a thread: the C library's resolver may block for seconds."""
        lookup = _Lookup(self._net, host.strip("[]"), port)
        found: list[tuple[Any, Any]] = await lookup.future
        return found

    async def _connect(
        self, node: Any, conn: Any, reset_backoff_on_connect: bool = True, timeout_at: float | None = None
    ) -> None:
        """As the library's, which forgets to pause after a login that failed.

        Each broker tells its own versions; the library would keep those of the bootstrap, through upgrades too.
        """
        conn.broker_version_data = None
        if (node.host, node.port) in self._misunderstood:
            conn._api_versions_idx = VERSION_OF_VERSIONS_PLAIN  # noqa: SLF001
        await super()._connect(node, conn, reset_backoff_on_connect=False, timeout_at=timeout_at)
        self._auth_failures.pop(node.node_id, None)
        counters = self.counters.setdefault(node.node_id, ConnectionCounters())
        if conn.connected:
            conn.transport.timer = _Timer(self._net, conn, self.config["request_timeout_ms"] / 1000)
            counters.connections_created += 1
            conn.close_future.add_both(lambda _: _count_close(counters))
            if reset_backoff_on_connect:
                self.reset_backoff(node.node_id)
            return
        if self.connection_delay(node.node_id) == 0:
            self.update_backoff(node.node_id)
        if isinstance(conn.init_future.exception, errors.KafkaProtocolError):
            self._misunderstood.add((node.host, node.port))
        if conn.init_future.failed() and not self.closed:
            self.on_failure(f"{node.host}:{node.port}", conn.init_future.exception)


def _tls_context(config: Mapping[str, Any]) -> ssl.SSLContext | None:
    """Made once, so that a file that cannot be read is told at the start, and not at each connection."""
    if config["security_protocol"] not in {"SSL", "SASL_SSL"}:
        return None
    try:
        context: ssl.SSLContext = KafkaSSLTransport._build_ssl_context({**config, "ssl_context": None})  # noqa: SLF001
    except OSError as error:
        files = [name for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile") if config[name]]
        raise InvalidArgumentError(f"TLS cannot be set up: {error}: check {', '.join(files)}") from None
    return context


class _TokenProvider(AbstractTokenProvider):  # type: ignore[misc]
    """A user's object with ``token()``, and perhaps ``extensions()``, or a function, as the library wants it."""

    def __init__(self, given: Any) -> None:
        super().__init__()
        self._ask = getattr(given, "token", given)
        self._ask_extensions = getattr(given, "extensions", dict)

    def token(self) -> str:
        return str(self._answer(self._ask))

    def extensions(self) -> dict[str, str]:
        return dict(self._answer(self._ask_extensions))

    @staticmethod
    def _answer(ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except Exception as error:  # noqa: BLE001 - it is the user's: whatever it raises is told, and tried again
            reason = f"sasl_oauth_token_provider has no token: {type(error).__name__}: {error}"
            raise errors.SaslAuthenticationFailedError(reason) from None


LOGIN_PACKAGES: Mapping[str, str] = {"GSSAPI": "gssapi", "AWS_MSK_IAM": "botocore"}


def _check_login(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a login has to be another way for the library; a package it will need is asked for now."""
    mechanism = config["sasl_mechanism"]
    package = LOGIN_PACKAGES.get(mechanism or "")
    try:
        if package is not None:
            importlib.import_module(package)
    except (ImportError, OSError) as error:
        raise InvalidArgumentError(
            f"sasl_mechanism={mechanism} needs the package {package}: pip install {package} ({error})"
        ) from None
    given = config["sasl_oauth_token_provider"]
    return {} if given is None else {"sasl_oauth_token_provider": _TokenProvider(given)}


def _quiet_library(*, has_login: bool) -> None:
    """What matters is reported by us, in sentences; who wants to hear the library sets the level of its logger.

    Its most talkative level writes requests as they are, logins too: it is not to be had with a login.
    """
    if logging.getLogger("kafka").level == logging.NOTSET:
        logging.getLogger("kafka").setLevel(logging.CRITICAL)
    if has_login:
        for name in ("kafka.net.connection", "kafka.protocol.parser", "kafka.net.sasl"):
            library = logging.getLogger(name)
            library.setLevel(max(logging.INFO, library.getEffectiveLevel()))


def _count_close(counters: ConnectionCounters) -> None:
    counters.connections_closed += 1


class _Lookup:
    """One name lookup in a thread of its own."""

    def __init__(self, net: Any, host: str, port: int) -> None:
        self.future = Future()
        self._net = net
        self._host, self._port = host, port
        if is_address(host):
            self._look_up(lambda finish: finish())
        else:
            threading.Thread(target=self._look_up, args=(self._in_loop,), name="shmaccum-resolve", daemon=True).start()

    def _look_up(self, run: Callable[[Callable[[], object]], object]) -> None:
        try:
            infos = socket.getaddrinfo(self._host, self._port, socket.AF_UNSPEC, socket.SOCK_STREAM)
        except OSError as error:
            failure = errors.KafkaConnectionError(f"the name {self._host} is not known: {error}")
            run(lambda: self.future.failure(failure))
            return
        found = [(info[0], info[4]) for info in infos]
        run(lambda: self.future.success(found))

    def _in_loop(self, finish: Callable[[], object]) -> None:
        try:
            self._net.call_soon_threadsafe(finish)
        except (RuntimeError, OSError):  # closed meanwhile
            logger.debug("%s was looked up too late", self._host)


def is_address(host: str) -> bool:
    """True when there is nothing to look up."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


# --- the client


@dataclass(slots=True)
class TopicState:
    """What the cluster says about a topic."""

    partition_count: int | None = None
    error_code: int = 0
    """Of the last metadata, 0 none."""


@dataclass(slots=True)
class ProducerIdRequest:
    """A producer id that is being asked for."""

    producer_id: int = -1
    producer_epoch: int = -1
    error_code: int = 0
    message: str = ""
    is_answered: bool = False


class Client:
    """The cluster, as the sink sees it. For one thread; only `wake` may be called from others.

    Args:
        config: options of kafka-python, by its names, and ours: rebootstrap_trigger_ms.
        report: takes sentences about what fails.

    Raises:
        InvalidArgumentError: certificates cannot be read, or a package that the login needs is missing.
    """

    def __init__(self, config: Mapping[str, Any], report: Callable[[str], None]) -> None:
        self._servers = ",".join(config["bootstrap_servers"])
        self._report = report
        self.client_id: str = config["client_id"]
        self.outcomes: list[Outcome] = []
        self._doorbell = -1
        self._doorbell_task: Any = None
        self._bootstrap_failures = 0
        self._hint_count = 0
        self._rebootstrap_s = config["rebootstrap_trigger_ms"] / 1000
        _quiet_library(has_login=config["security_protocol"].startswith("SASL"))
        fixed = {
            "max_in_flight_requests_per_connection": LIBRARY_IN_FLIGHT_MAX,
            "receive_message_max_bytes": FRAME_SIZE_MAX,
            "ssl_context": _tls_context(config),
            **_check_login(config),
        }
        self._net = _Selector(client_id=config["client_id"], slow_task_threshold_secs=0)
        self._manager = _Manager(self._net, self._connection_failed, **{**config, **fixed})

    def __repr__(self) -> str:
        return f"<Client of {self._servers}>"

    # --- the loop

    def start(self) -> None:
        """Begins to look for the cluster."""
        self._bootstrap()
        self._net.call_later(REBOOTSTRAP_CHECK_S, self._maybe_rebootstrap)

    def _bootstrap(self) -> None:
        self._manager.bootstrap_async().add_errback(self._bootstrap_failed)

    def _maybe_rebootstrap(self) -> None:
        """No broker we know has told of the cluster for long: ask those of the bootstrap list again (KIP-1102)."""
        if self._manager.closed:
            return
        if self._manager.bootstrapped and self.metadata_age_s > self._rebootstrap_s:
            self._report(f"no metadata for {self._rebootstrap_s:g} s: looking for the cluster at {self._servers} again")
            self._bootstrap()
        self._net.call_later(REBOOTSTRAP_CHECK_S, self._maybe_rebootstrap)

    def poll(self, timeout_s: float, doorbell: int) -> list[Outcome]:
        """One round: waits for sockets, timers, the doorbell or `wake`, whichever first, and does what is due."""
        self._watch_doorbell(doorbell)
        self._net.poll(timeout_ms=0 if self.outcomes else timeout_s * 1000)
        outcomes, self.outcomes = self.outcomes, []
        return outcomes

    def wake(self) -> None:
        """Makes `poll` come back."""
        self._net.wakeup()

    def close(self) -> list[Outcome]:
        """Closes every connection; what was in flight ends with an error."""
        self._watch_doorbell(-1)
        for conn in self._manager.connections():
            is_writing = conn.transport is not None and bool(conn.transport.unwritten)
            conn.close(errors.Cancelled("the sink was closed") if is_writing else None)
        self._manager.close()
        self._net.close()
        outcomes, self.outcomes = self.outcomes, []
        return outcomes

    def _watch_doorbell(self, doorbell: int) -> None:
        if doorbell == self._doorbell:
            return
        if self._doorbell_task is not None:
            self._net.cancel(self._doorbell_task)
        self._doorbell = doorbell
        self._doorbell_task = self._net.call_soon(self._listen) if doorbell >= 0 else None

    async def _listen(self) -> None:
        """Keeps the doorbell in the selector's set. Nothing is read: that it rang is all the round needs to know."""
        doorbell = self._doorbell
        try:
            while True:
                await self._net.wait_readable(doorbell)
        finally:
            self._net.unregister_event(doorbell, selectors.EVENT_READ)

    # --- what fails

    def _bootstrap_failed(self, error: Exception) -> None:
        if self._manager.closed:
            return
        self._report(f"{self._servers} is no broker we can use: {describe(error)}")
        delay_s = min(BOOTSTRAP_PAUSE_S * 2**self._bootstrap_failures, BOOTSTRAP_PAUSE_MAX_S)
        self._bootstrap_failures += 1
        self._net.call_later(delay_s, self._bootstrap)

    def _connection_failed(self, address: str, error: Exception) -> None:
        self._report(f"no connection to {address}: {describe(error)}")

    # --- metadata

    @property
    def is_bootstrapped(self) -> bool:
        """True once a broker has told of the cluster."""
        return self.metadata_count > 0

    @property
    def cluster_id(self) -> str | None:
        """The cluster's name for itself; None before the bootstrap, and of brokers that have none."""
        cluster_id: str | None = self._manager.cluster.cluster_id
        return cluster_id

    @property
    def metadata_age_s(self) -> float:
        """Since the last metadata; 0 before the first."""
        age_s: float = self._manager.cluster.age_s
        return age_s

    @property
    def leadership_count(self) -> int:
        """Changes when leaders may have changed."""
        count: int = self._manager.cluster.update_count + self._hint_count
        return count

    @property
    def metadata_count(self) -> int:
        """How often metadata came."""
        count: int = self._manager.cluster.update_count
        return count

    def watch_topic(self, topic: str) -> None:
        """The topic's metadata is kept from now on; the broker may create it.

        Raises:
            ValueError: no valid name.
        """
        self._manager.cluster.watch(topic)

    def unwatch_topic(self, topic: str) -> None:
        """The topic is forgotten."""
        self._manager.cluster.unwatch(topic)

    def topic_state(self, topic: str) -> TopicState:
        """What the newest metadata says."""
        cluster = self._manager.cluster
        partitions = cluster.partitions_for_topic(topic)
        return TopicState(len(partitions) if partitions else None, cluster.topic_errors.get(topic, 0))

    def topic_id(self, topic: str) -> uuid.UUID | None:
        """Since Kafka 2.8."""
        topic_id = self._manager.cluster.topic_id(topic)
        return topic_id if isinstance(topic_id, uuid.UUID) and topic_id.int else None

    def leader(self, topic: str, partition: int) -> int | None:
        """The node that leads a partition; None while nobody does, or nobody knows."""
        leader = self._manager.cluster.leader_for_partition(TopicPartition(topic, partition))
        return leader if leader is not None and leader >= 0 else None

    def refresh_metadata(self) -> None:
        """Asks for metadata as soon as the backoff allows."""
        if self.is_bootstrapped and not self._manager.cluster.need_update:
            self._manager.cluster.request_update()

    def note_leader(
        self, topic: str, answer: PartitionAnswer, nodes: Sequence[tuple[int, str, int, str | None]]
    ) -> bool:
        """Takes a hint of a Produce answer over (KIP-951). True when it was news, and its node is known."""
        if answer.leader_id < 0:
            return False
        for node in nodes:
            self._manager.cluster.add_node(node)
        partition = TopicPartition(topic, answer.partition)
        is_news = self._manager.cluster.update_partition_leader(partition, answer.leader_id, answer.leader_epoch)
        self._hint_count += is_news
        return is_news and self._manager.cluster.broker_metadata(answer.leader_id) is not None

    # --- nodes

    def is_ready(self, node_id: int) -> bool:
        """True when a request may go to the node now; begins to connect when there is no connection."""
        conn = self._manager.connection(node_id)
        if conn is None:
            self._connect(node_id)
            return False
        is_logging_in = conn._reauth.is_reauthenticating  # noqa: SLF001 - the library has no other way to ask
        return conn.connected and not conn.paused and not is_logging_in

    def _connect(self, node_id: int) -> None:
        try:
            self._manager.get_connection(node_id)
        except errors.NodeNotReadyError:
            pass  # its pause is not over
        except errors.UnknownBrokerIdError:
            self.refresh_metadata()

    def produce_versions(self, node_id: int) -> tuple[int, int]:
        """Oldest and newest version of Produce that a connected node takes."""
        known = self._manager.connection(node_id).broker_version_data.api_versions
        oldest, newest = known.get(PRODUCE_API_KEY, (0, 0))
        return oldest, newest

    def connected_node_count(self) -> int:
        """How many connections there are."""
        return sum(1 for conn in self._manager.connections() if conn.connected)

    @property
    def counters(self) -> Mapping[Any, ConnectionCounters]:
        """By node id."""
        return self._manager.counters

    # --- requests

    def produce(self, node_id: int, tag: Any, request: ProduceRequest, *, is_answered: bool) -> None:
        """Begins to send a Produce request to a node that is ready; `poll` will answer an Outcome with the tag.

        Args:
            is_answered: False with acks=0: then the Outcome comes when the last byte was written.
        """
        conn = self._manager.connection(node_id)
        correlation_id = conn.parser._next_correlation_id()  # noqa: SLF001 - shared with the library's own requests
        sent = _Sent(self, tag, request, correlation_id, conn.transport.counters, is_answered=is_answered)
        if is_answered:
            conn.parser.in_flight_requests.append(sent)
            conn.in_flight_requests.append((sent.correlation_id, sent, sent.begun_s, 0.0, sent))
        conn.transport.timer.watch(sent)
        conn.transport.write(sent)

    def ask_producer_id(self) -> ProducerIdRequest:
        """Asks any broker for a new producer id (InitProducerId without a transactional id)."""
        asked = ProducerIdRequest()
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000, max_version=4)
        future = self._manager.send(request)
        future.add_callback(lambda response: _take_producer_id(asked, response))
        future.add_errback(lambda error: _miss_producer_id(asked, error))
        return asked


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


def _take_producer_id(asked: ProducerIdRequest, response: Any) -> None:
    asked.producer_id, asked.producer_epoch = response.producer_id, response.producer_epoch
    asked.error_code = response.error_code
    asked.is_answered = True


def _miss_producer_id(asked: ProducerIdRequest, error: Exception) -> None:
    asked.error_code, asked.message = error_code(error), describe(error)
    asked.is_answered = True


# --- errors


def error_code(error: Exception) -> int:
    """Kafka's number for why a request has no answer."""
    if isinstance(error, (errors.RequestTimedOutError, errors.KafkaTimeoutError)):
        return REQUEST_TIMED_OUT
    if isinstance(error, errors.UnsupportedVersionError):
        return UNSUPPORTED_VERSION
    return NETWORK_EXCEPTION


ADVICE: Sequence[tuple[type[Exception], str]] = (
    (
        errors.SaslAuthenticationFailedError,
        (
            "check user and password (sasl_plain_username, sasl_plain_password), what sasl_oauth_token_provider gives, "
            "or for which service the ticket is (sasl_kerberos_service_name)"
        ),
    ),
    (errors.UnsupportedSaslMechanismError, "choose a sasl_mechanism the broker has"),
    (errors.IllegalSaslStateError, "the listener wants no login: check security_protocol"),
    (errors.IncompatibleBrokerVersion, "shmaccum needs Apache Kafka 0.11 or newer"),
    (errors.UnsupportedVersionError, "shmaccum needs Apache Kafka 0.11 or newer"),
    (errors.InvalidReceiveError, "what answered does not speak Kafka's protocol: check port and security_protocol"),
    (errors.KafkaTimeoutError, "check address and firewall"),
    (errors.RequestTimedOutError, "the broker did not answer in time"),
    (errors.KafkaConnectionError, "check the address, that the broker runs, and that security_protocol fits"),
)

KERBEROS_ADVICE = (
    "get a ticket with kinit or name a keytab in KRB5_CLIENT_KTNAME, and check the broker's name "
    "(sasl_kerberos_service_name, sasl_kerberos_domain_name)"
)


def describe(error: Exception) -> str:
    """A sentence for people, without anything secret: what happened and what to do."""
    text = ", ".join(map(str, error.args)) or type(error).__name__
    for kind, advice in (*ADVICE, *_advice_on_kerberos()):
        if isinstance(error, kind):
            return f"{text}: {advice}"
    return text


def _advice_on_kerberos() -> Sequence[tuple[type[Exception], str]]:
    """Its errors come through the library as they are. Without its package, which is optional, there are none."""
    package = sys.modules.get("gssapi.exceptions")
    return () if package is None else ((package.GSSError, KERBEROS_ADVICE),)
