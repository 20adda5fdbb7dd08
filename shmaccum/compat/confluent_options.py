# SPDX-License-Identifier: Apache-2.0
"""The options of librdkafka's producer, each with its owner or with a reason (librdkafka's CONFIGURATION.md)."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from shmaccum.compat.options import NO_CONNECTIONS, OptionRow, Rows, met, refused, rows_of, to, without_use
from shmaccum.config import INT_MAX, LONG_MAX
from shmaccum.exceptions import InvalidArgumentError

IN_FLIGHT_MAX = 5
"""The maximum with idempotence, which is on here."""


def _consistent(key: bytes | None, partitions: Sequence[int], _available: Sequence[int]) -> int:
    """Chooses by the CRC-32 of the key, where no key counts as an empty one (rd_kafka_msg_partitioner_consistent)."""
    return partitions[zlib.crc32(key or b"") % len(partitions)]


def _consistent_random(key: bytes | None, partitions: Sequence[int], available: Sequence[int]) -> int:
    """The same, but draws a partition if the key is missing or empty (rd_kafka_msg_partitioner_consistent_random)."""
    return _consistent(key, partitions, available) if key else random.choice(available or partitions)


PARTITIONERS: dict[str, Any] = {
    "murmur2": "builtin",
    "murmur2_random": "builtin",
    "consistent": _consistent,
    "consistent_random": _consistent_random,
}
"""Maps librdkafka's name of a partitioner to a built-in name, or to a function."""


def _partitioner(given: Any) -> Any:
    if given not in PARTITIONERS:
        raise InvalidArgumentError(
            f'Invalid value for configuration property "partitioner": {given} ({", ".join(PARTITIONERS)} are known)'
        )
    return PARTITIONERS[given]


def _milliseconds(given: Any) -> int:
    """librdkafka also accepts a fraction of a millisecond, and a number as text."""
    return math.ceil(float(given))


def _timeout_ms(given: Any) -> int:
    """In librdkafka, 0 means a timeout that never ends."""
    return _milliseconds(given) or LONG_MAX


def _refresh_ms(given: Any) -> int:
    """In librdkafka, -1 means that metadata is requested only when needed."""
    wanted_ms = _milliseconds(given)
    return LONG_MAX if wanted_ms < 0 else max(wanted_ms, 1)


def _verification(given: Any) -> None:
    if str(given).lower() in {"false", "0"}:
        raise InvalidArgumentError(
            "enable.ssl.certificate.verification=false is refused: the sender verifies brokers. Set ssl.ca.location to "
            "their authority"
        )


def _all(row: OptionRow, *names: str) -> dict[str, OptionRow]:
    return dict.fromkeys(names, row)


HERE = met()
BUSY_CONNECTIONS = without_use(f"{NO_CONNECTIONS}, and the sender's are always in use")
NO_QUEUE = without_use("the arena limits the memory of all processes, and reserves it: shmaccum.buffer_memory")
NO_METADATA = without_use("the sender requests metadata, and again when a leader changes")
NO_LOG = without_use("the sender has its own log")
NO_CALLBACK = refused(NO_CONNECTIONS)
NO_PEM = refused("certificates are PEM files: ssl.ca.location, ssl.certificate.location, ssl.key.location")
NO_TOKENS = refused(
    "the sender requests tokens: set sasl.oauthbearer.method=oidc or shmaccum.sasl_oauth_token_provider=module:function"
)

OWN: Rows = {
    "message.max.bytes": to("max_request_size"),
    "linger.ms": to("linger_ms", _milliseconds, owner="producer"),
    "delivery.timeout.ms": to("delivery_timeout_ms", _timeout_ms),
    "retries": to("retries", lambda given: min(int(given), INT_MAX)),
    "retry.backoff.max.ms": to("retry_backoff_max_ms"),
    "max.in.flight.requests.per.connection": to(
        "max_in_flight_requests_per_connection", lambda given: min(int(given), IN_FLIGHT_MAX)
    ),
    "partitioner": to("partitioner", _partitioner),
    **_all(to("metadata_max_age_ms", _refresh_ms), "metadata.max.age.ms", "topic.metadata.refresh.interval.ms"),
    "metadata.recovery.rebootstrap.trigger.ms": to("metadata_recovery_rebootstrap_trigger_ms"),
    "connections.max.idle.ms": to("connections_max_idle_ms", _timeout_ms),
    "socket.connection.setup.timeout.ms": to("socket_connection_setup_timeout_ms"),
    "socket.send.buffer.bytes": to("send_buffer_bytes", lambda given: int(given) or -1),
    "socket.receive.buffer.bytes": to("receive_buffer_bytes", lambda given: int(given) or -1),
    "security.protocol": to("security_protocol", lambda given: str(given).upper()),
    "sasl.username": to("sasl_plain_username"),
    "sasl.password": to("sasl_plain_password"),
    "ssl.ca.location": to("ssl_cafile"),
    "ssl.certificate.location": to("ssl_certfile"),
    "ssl.key.location": to("ssl_keyfile"),
    "ssl.key.password": to("ssl_password"),
    "ssl.crl.location": to("ssl_crlfile"),
    "ssl.endpoint.identification.algorithm": to(
        "ssl_check_hostname", lambda given: str(given).lower() not in {"none", ""}
    ),
    **_all(HERE, "on_delivery", "error_cb", "stats_cb", "logger", "statistics.interval.ms"),
    "topic.metadata.propagation.max.ms": HERE,
    "throttle_cb": without_use("the sender obeys the throttling of a broker, and reports it in its metrics"),
    "delivery.report.only.error": refused("give no callback, and use error_cb"),
    **_all(
        NO_QUEUE, "queue.buffering.max.messages", "queue.buffering.max.kbytes", "queue.buffering.backpressure.threshold"
    ),
    **_all(without_use("every batch is a batch of the arena"), "batch.num.messages", "message.copy.max.bytes"),
    "sticky.partitioning.linger.ms": without_use("the sticky partition changes with each batch of the host"),
    "queuing.strategy": without_use("batches are sent in order"),
    "compression.level": refused("use the level of the codec, such as shmaccum.compression_zstd_level"),
    "enable.gapless.guarantee": refused("a rejected record leaves a gap, as in Kafka's own producer"),
    "transactional.id": to("transactional_id"),
    **_all(
        NO_METADATA,
        "metadata.recovery.strategy",
        "topic.metadata.refresh.fast.interval.ms",
        "topic.metadata.refresh.fast.cnt",
        "topic.metadata.refresh.sparse",
        "topic.blacklist",
    ),
    **_all(
        BUSY_CONNECTIONS,
        "api.version.request",
        "api.version.request.timeout.ms",
        "api.version.fallback.ms",
        "broker.version.fallback",
        "broker.address.ttl",
        "broker.address.family",
        "receive.message.max.bytes",
        "socket.timeout.ms",
        "socket.blocking.max.ms",
        "socket.keepalive.enable",
        "socket.nagle.disable",
        "socket.max.fails",
        "reconnect.backoff.jitter.ms",
        "enable.metrics.push",
        "builtin.features",
        "enable.random.seed",
        "internal.termination.signal",
    ),
    **_all(
        NO_LOG, "debug", "log_level", "log.queue", "log.thread.name", "log.connection.close", "log_cb", "enabled_events"
    ),
    **_all(
        NO_CALLBACK,
        "socket_cb",
        "connect_cb",
        "closesocket_cb",
        "resolve_cb",
        "background_event_cb",
        "plugin.library.paths",
    ),
    **_all(
        NO_PEM,
        "ssl.ca.pem",
        "ssl.ca.certificate.stores",
        "ssl.certificate.pem",
        "ssl.key.pem",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.engine.location",
        "ssl.engine.id",
        "ssl.providers",
    ),
    "enable.ssl.certificate.verification": OptionRow(
        read=_verification, why="the sender verifies the brokers of a TLS listener"
    ),
    **_all(
        refused("the sender offers the defaults of the system's OpenSSL"),
        "ssl.cipher.suites",
        "ssl.curves.list",
        "ssl.sigalgs.list",
    ),
    **_all(
        refused("the sender uses the tickets of its user: run kinit for it"),
        "sasl.kerberos.principal",
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.keytab",
        "sasl.kerberos.min.time.before.relogin",
    ),
    **_all(NO_TOKENS, "oauth_cb", "sasl.oauthbearer.config"),
    "sasl.oauthbearer.method": to("sasl_oauthbearer_method", lambda given: str(given).lower()),
    "sasl.oauthbearer.token.endpoint.url": to("sasl_oauthbearer_token_endpoint_url"),
    "sasl.oauthbearer.client.id": to("sasl_oauthbearer_client_id"),
    "sasl.oauthbearer.client.secret": to("sasl_oauthbearer_client_secret"),
    "sasl.oauthbearer.scope": to("sasl_oauthbearer_scope"),
    "sasl.oauthbearer.extensions": to("sasl_oauthbearer_extensions"),
}

DEFAULTS: Mapping[str, str] = {
    "client.id": "rdkafka",
    "message.max.bytes": "1000000",
    "max.in.flight.requests.per.connection": "1000000",
    "metadata.recovery.rebootstrap.trigger.ms": "300000",
    "topic.metadata.refresh.interval.ms": "300000",
    "metadata.max.age.ms": "900000",
    "socket.send.buffer.bytes": "0",
    "socket.receive.buffer.bytes": "0",
    "socket.connection.setup.timeout.ms": "30000",
    "connections.max.idle.ms": "0",
    "reconnect.backoff.ms": "100",
    "reconnect.backoff.max.ms": "10000",
    "allow.auto.create.topics": "true",
    "security.protocol": "plaintext",
    "ssl.ca.certificate.stores": "Root",
    "ssl.engine.id": "dynamic",
    "ssl.endpoint.identification.algorithm": "https",
    "sasl.mechanism": "GSSAPI",
    "sasl.kerberos.service.name": "kafka",
    "sasl.kerberos.principal": "kafkaclient",
    "sasl.kerberos.min.time.before.relogin": "60000",
    "sasl.oauthbearer.method": "default",
    "transaction.timeout.ms": "60000",
    "enable.idempotence": "false",
    "enable.gapless.guarantee": "false",
    "linger.ms": "5",
    "retries": "2147483647",
    "retry.backoff.ms": "100",
    "retry.backoff.max.ms": "1000",
    "compression.type": "none",
    "batch.size": "1000000",
    "delivery.report.only.error": "false",
    "client.dns.lookup": "use_all_dns_ips",
    "acks": "-1",
    "request.timeout.ms": "30000",
    "delivery.timeout.ms": "300000",
    "compression.level": "-1",
}
"""librdkafka's defaults of options that have an owner or that are refused.

``partitioner`` is not included: without it, keys go to the same partitions as with Kafka's Java producer.
"""

ALIASES: Mapping[str, str] = {
    "compression.codec": "compression.type",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "message.send.max.retries": "retries",
    "message.timeout.ms": "delivery.timeout.ms",
    "queue.buffering.max.ms": "linger.ms",
    "request.required.acks": "acks",
    "sasl.mechanisms": "sasl.mechanism",
}
"""Maps another name of an option to its name."""

_ROWS = rows_of(OWN, DEFAULTS, ".")
ROWS: Rows = {**_ROWS, **{alias: _ROWS[name] for alias, name in ALIASES.items()}}
"""The options of librdkafka's producer, each with its owner or with a reason."""
