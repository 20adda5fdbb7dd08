# SPDX-License-Identifier: Apache-2.0
"""Options of a served log: the options of the log itself, and those of the server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shmaccum.config.option import INT_MAX, LONG_MAX, boolean, count, duration_ms, secret, size, text
from shmaccum.config.secret import Secret
from shmaccum.config.sinks import LogSinkOptions


@dataclass(frozen=True, kw_only=True)
class ServerOptions(LogSinkOptions):
    """Options of ``shmaccum serve``. The options of the log itself apply to a writable server."""

    scope = "served log"
    place = "shmaccum.log.server.LogServer or ``shmaccum serve -X``"

    advertised_listener: str | None = text(
        None,
        "The HOST:PORT that clients connect to. HOST alone implies the port that the server listens on. The default is "
        "the address that it listens on, unless that is every address of the host (0.0.0.0).",
        kafka="advertised.listeners",
    )
    insecure: bool = boolean(False, "Allow other hosts to connect without TLS.")
    ssl_certfile: str | None = text(
        None, "PEM file with the server's certificate chain. If it is set, clients connect with TLS.", unset="none"
    )
    ssl_keyfile: str | None = text(
        None, "PEM file with the certificate's key. By default, the key is in ssl_certfile.", unset="none"
    )
    ssl_password: Secret | None = secret("The password of an encrypted key.", kafka="ssl.key.password")
    ssl_cafile: str | None = text(
        None, "PEM file with the authority of clients. If it is set, each client needs its certificate.", unset="none"
    )
    users_file: str | None = text(
        None, "File of the users who may log in, with their rights. By default, no login is required.", unset="none"
    )
    login_timeout_ms: int = duration_ms(
        "10s", "The longest time that a client may take for the TLS handshake and its login.", minimum=100
    )
    connections_max_idle_ms: int = duration_ms(
        "10min", "A connection that completes no request and takes no byte of a response for this time is closed."
    )
    connection_count_max: int = count(2000, "The maximum number of connected clients.", kafka="max.connections")
    connection_count_per_address_max: int = count(
        1000, "The maximum number of connected clients per address.", kafka="max.connections.per.ip"
    )
    request_memory_max: int = size(
        "256MiB",
        "The maximum size of all requests above 256KiB that arrive at the same time. Further requests wait unread.",
        kafka="queued.max.request.bytes",
        minimum=1024,
    )
    request_size_max: int = size("1MiB", "Size limit of any other request.", minimum=1024, maximum=INT_MAX)
    produce_size_max: int = size(
        "100MiB", "Size limit of a Produce request.", kafka="socket.request.max.bytes", minimum=1024, maximum=INT_MAX
    )
    max_message_bytes: int = size(
        1_048_588, "The maximum size of a record batch that a client produces.", minimum=62, maximum=INT_MAX
    )
    message_timestamp_after_max_ms: int = duration_ms(
        "1h",
        "A client's record whose timestamp is further ahead of the clock than this is rejected.",
        kafka="log.message.timestamp.after.max.ms",
        maximum=LONG_MAX,
    )
    group_min_session_timeout_ms: int = duration_ms("500ms", "The shortest session timeout of a group member.")
    group_max_session_timeout_ms: int = duration_ms("30min", "The longest session timeout of a group member.")
    group_max_size: int = count(10_000, "The maximum number of members of one group.")
    group_memory_max: int = size(
        "64MiB",
        "The maximum size of the metadata and assignments of the members of all groups. One group may use at most a "
        "quarter. A member that exceeds the limit gets GROUP_MAX_SIZE_REACHED.",
        minimum=1024,
    )
    offsets_retention_ms: int = duration_ms(
        "7d",
        "A group without members is deleted with its offsets when its last commit, or the departure of its last "
        "member, is older than this.",
        kafka="offsets.retention.minutes",
    )
    group_initial_rebalance_delay_ms: int = duration_ms(
        "200ms", "The first rebalance of an empty group waits this time for more members.", minimum=0
    )
    group_consumer_session_timeout_ms: int = duration_ms(
        "45s",
        "A member of a group with group.protocol=consumer that sends no heartbeat for this time counts as dead.",
        kafka="group.consumer.session.timeout.ms",
        minimum=100,
    )
    group_consumer_heartbeat_interval_ms: int = duration_ms(
        "1s",
        "The heartbeat interval of members of groups with group.protocol=consumer, whose responses report changes.",
        kafka="group.consumer.heartbeat.interval.ms",
        minimum=10,
    )

    def contradictions(self) -> Iterator[str]:
        yield from super().contradictions()
        if self.group_consumer_heartbeat_interval_ms >= self.group_consumer_session_timeout_ms:
            yield "group_consumer_heartbeat_interval_ms must be less than group_consumer_session_timeout_ms"
        for name in ("ssl_keyfile", "ssl_password", "ssl_cafile"):
            if getattr(self, name) is not None and self.ssl_certfile is None:
                yield f"{name} has no effect without ssl_certfile: set ssl_certfile, too"
