# SPDX-License-Identifier: Apache-2.0
"""Options of a served log: those of the log itself, and those of the server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shmaccum.config.option import INT_MAX, LONG_MAX, boolean, count, duration_ms, secret, size, text
from shmaccum.config.secret import Secret
from shmaccum.config.sinks import LogSinkOptions


@dataclass(frozen=True, kw_only=True)
class ServerOptions(LogSinkOptions):
    """Options of ``shmaccum serve``. The options of the log itself count for a writable server."""

    scope = "served log"
    place = "shmaccum.log.server.LogServer or ``shmaccum serve -X``"

    advertised_listener: str | None = text(
        None,
        "The HOST:PORT at which clients find the server. HOST alone goes with the port that it listens on. "
        "default: the address that it listens on, unless that is every address of the host (0.0.0.0).",
        kafka="advertised.listeners",
    )
    insecure: bool = boolean(False, "Listen where other hosts can connect, without TLS.")
    ssl_certfile: str | None = text(
        None, "PEM file with the server's certificate, and those above it: clients connect by TLS.", unset="none"
    )
    ssl_keyfile: str | None = text(
        None, "PEM file with the certificate's key. default: the key is in ssl_certfile.", unset="none"
    )
    ssl_password: Secret | None = secret("The password of an encrypted key.", kafka="ssl.key.password")
    ssl_cafile: str | None = text(
        None, "PEM file with the authority of clients: each client needs a certificate of it.", unset="none"
    )
    users_file: str | None = text(
        None, "File of the users who may log in, and of their rights. unset: nobody has to log in.", unset="none"
    )
    login_timeout_ms: int = duration_ms(
        "10s", "The longest time that a client may take for the handshake of TLS and for its login.", minimum=100
    )
    connections_max_idle_ms: int = duration_ms(
        "10min", "A connection without a whole request and without a byte of an answer for this time is closed."
    )
    connection_count_max: int = count(2000, "The most clients that may be connected at once.", kafka="max.connections")
    connection_count_per_address_max: int = count(
        1000, "The most clients of one address that may be connected at once.", kafka="max.connections.per.ip"
    )
    request_memory_max: int = size(
        "256MiB",
        "Bytes of requests above 256KiB that arrive at once, of all clients together. Further ones wait unread.",
        kafka="queued.max.request.bytes",
        minimum=1024,
    )
    request_size_max: int = size("1MiB", "Bytes of a request that is no Produce.", minimum=1024, maximum=INT_MAX)
    produce_size_max: int = size(
        "100MiB", "Bytes of a Produce request.", kafka="socket.request.max.bytes", minimum=1024, maximum=INT_MAX
    )
    max_message_bytes: int = size(
        1_048_588, "Bytes of the largest record batch that a client may produce.", minimum=62, maximum=INT_MAX
    )
    message_timestamp_after_max_ms: int = duration_ms(
        "1h",
        "A record of a client whose time is further ahead of the clock than this is refused.",
        kafka="log.message.timestamp.after.max.ms",
        maximum=LONG_MAX,
    )
    group_min_session_timeout_ms: int = duration_ms("500ms", "The shortest session time-out of a group's member.")
    group_max_session_timeout_ms: int = duration_ms("30min", "The longest session time-out of a group's member.")
    group_max_size: int = count(10_000, "Members of one group.")
    group_memory_max: int = size(
        "64MiB",
        "Bytes that the members of all groups say about themselves, and bytes of their assignments. One group has at "
        "most a quarter of them. A member beyond them gets GROUP_MAX_SIZE_REACHED.",
        minimum=1024,
    )
    offsets_retention_ms: int = duration_ms(
        "7d",
        "A group without members is deleted with its offsets when its last commit, or the end of its last member, is "
        "older than this.",
        kafka="offsets.retention.minutes",
    )
    group_initial_rebalance_delay_ms: int = duration_ms(
        "200ms", "The first round of an empty group waits this time for more members.", minimum=0
    )
    group_consumer_session_timeout_ms: int = duration_ms(
        "45s",
        "A member of a group with group.protocol=consumer that is silent for this time is dead.",
        kafka="group.consumer.session.timeout.ms",
        minimum=100,
    )
    group_consumer_heartbeat_interval_ms: int = duration_ms(
        "1s",
        "Members of groups with group.protocol=consumer send heartbeats this far apart, and learn of changes by them.",
        kafka="group.consumer.heartbeat.interval.ms",
        minimum=10,
    )

    def contradictions(self) -> Iterator[str]:
        yield from super().contradictions()
        if self.group_consumer_heartbeat_interval_ms >= self.group_consumer_session_timeout_ms:
            yield "group_consumer_heartbeat_interval_ms has to be below group_consumer_session_timeout_ms"
        for name in ("ssl_keyfile", "ssl_password", "ssl_cafile"):
            if getattr(self, name) is not None and self.ssl_certfile is None:
                yield f"{name} has no effect without ssl_certfile: name the server's certificate, too"
