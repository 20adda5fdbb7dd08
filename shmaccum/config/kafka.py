# SPDX-License-Identifier: Apache-2.0
"""Options of the sink for Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shmaccum.config.option import boolean, choice, count, duration_ms, function, secret, size, text
from shmaccum.config.secret import Secret
from shmaccum.config.table import Options


@dataclass(frozen=True, kw_only=True)
class KafkaSinkOptions(Options):
    """What the sink for Kafka takes (``kafka:HOST:PORT,...``)."""

    scope = "kafka sink"
    place = "open_sink or ``shmaccum sender --sink kafka:HOST:PORT -X``"

    client_id: str | None = text(
        None, "A name for the broker's logs and quotas; auto: shmaccum- and the arena's name.", unset="auto"
    )
    max_block_ms: int = duration_ms(
        "60s", "How long a topic may be unknown to the cluster before its producers are told that there is none."
    )
    allow_auto_create_topics: bool = boolean(True, "Ask the broker to create unknown topics, if it is set up to do so.")
    compression_type: str = choice(
        "none",
        ("none", "gzip", "snappy", "lz4", "zstd"),
        "How batches are compressed on their way out; one that would not become smaller goes as it is.",
    )
    compression_gzip_level: int = count(-1, "1 (fast) to 9 (small); -1 is the library's own.", minimum=-1, maximum=9)
    compression_lz4_level: int = count(9, "9 is the fast compressor; any other of 1 to 17 is a small one.", maximum=17)
    compression_zstd_level: int = count(3, "-131072 (fast) to 22 (small).", minimum=-131072, maximum=22)
    compression_threads: int = count(2, "How many threads compress.", maximum=64)
    metadata_max_age_ms: int = duration_ms("5min", "Metadata are asked for again after this time.", minimum=1)
    metadata_recovery_rebootstrap_trigger_ms: int = duration_ms(
        "5min", "Without any metadata for so long, the brokers of the bootstrap list are asked again (KIP-1102)."
    )
    client_dns_lookup: str = choice(
        "use_all_dns_ips",
        ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
        "Whether names of the bootstrap list are replaced by their canonical ones, as Kerberos may need it.",
    )
    reconnect_backoff_ms: int = duration_ms("50ms", "The pause before the first reconnect; it doubles with each more.")
    reconnect_backoff_max_ms: int = duration_ms("1s", "The longest pause between two attempts to connect.")
    connections_max_idle_ms: int = duration_ms("9min", "A connection without traffic for so long is closed.")
    socket_connection_setup_timeout_ms: int = duration_ms(
        "10s", "How long connecting may take, TLS and login included; it doubles with each failure.", minimum=1
    )
    socket_connection_setup_timeout_max_ms: int = duration_ms("30s", "The longest such time.", minimum=1)
    send_buffer_bytes: int = size(
        -1, "Of a socket (SO_SNDBUF); -1 lets the kernel choose, and grow it (Kafka: 128KiB).", minimum=-1
    )
    receive_buffer_bytes: int = size(-1, "Of a socket (SO_RCVBUF); -1 lets the kernel choose.", minimum=-1)
    security_protocol: str = choice(
        "PLAINTEXT", ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"), "What the broker's listener speaks."
    )
    ssl_cafile: str | None = text(None, "PEM file of the authorities to trust; unset: the system's.", unset="none")
    ssl_certfile: str | None = text(None, "PEM file of our certificate.", unset="none")
    ssl_keyfile: str | None = text(None, "PEM file of its key.", unset="none")
    ssl_password: Secret | None = secret("Of the key.")
    ssl_crlfile: str | None = text(None, "PEM file of revoked certificates.", unset="none")
    ssl_check_hostname: bool = boolean(True, "The broker's certificate must be for the name it was reached by.")
    sasl_mechanism: str | None = choice(
        None,
        ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM"),
        "How to log in.",
        unset="none",
    )
    sasl_plain_username: str | None = text(None, "The user, for PLAIN and SCRAM.", unset="none")
    sasl_plain_password: Secret | None = secret("The user's password.")
    sasl_kerberos_name: str | None = text(
        None, "The broker's name in Kerberos; unset: it is constructed.", unset="none"
    )
    sasl_kerberos_service_name: str = text("kafka", "The broker's service in Kerberos.")
    sasl_kerberos_domain_name: str | None = text(None, "The broker's domain; unset: its host.", unset="none")
    sasl_oauth_token_provider: Any = function(
        None, (), "token", "An object with token() -> str, for OAUTHBEARER.", kafka="sasl.oauth.token.provider"
    )

    def contradictions(self) -> Iterator[str]:
        if self.reconnect_backoff_ms > self.reconnect_backoff_max_ms:
            yield (
                f"reconnect_backoff_ms ({self.reconnect_backoff_ms}) is longer than reconnect_backoff_max_ms "
                f"({self.reconnect_backoff_max_ms}): raise the latter"
            )
        yield from self._contradictions_of_login()

    def _contradictions_of_login(self) -> Iterator[str]:
        has_login = self.security_protocol.startswith("SASL")
        if has_login and self.sasl_mechanism is None:
            yield f"security_protocol={self.security_protocol} needs sasl_mechanism: say how to log in"
        if not has_login and self.sasl_mechanism is not None:
            yield (
                f"sasl_mechanism={self.sasl_mechanism} has no effect with security_protocol={self.security_protocol}: "
                "say SASL_SSL or SASL_PLAINTEXT, or leave it out"
            )
        needs_password = (self.sasl_mechanism or "").startswith(("PLAIN", "SCRAM"))
        if needs_password and (self.sasl_plain_username is None or self.sasl_plain_password is None):
            yield f"sasl_mechanism={self.sasl_mechanism} needs sasl_plain_username and sasl_plain_password"
        if self.sasl_mechanism == "OAUTHBEARER" and self.sasl_oauth_token_provider is None:
            yield "sasl_mechanism=OAUTHBEARER needs sasl_oauth_token_provider"
