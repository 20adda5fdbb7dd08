# SPDX-License-Identifier: Apache-2.0
"""Options of the sink for Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shmaccum.config.compression import CompressionOptions
from shmaccum.config.option import boolean, choice, duration_ms, provider, secret, size, text
from shmaccum.config.secret import Secret


def extensions_of(given: str | None) -> dict[str, str]:
    """Return the extensions of ``name=value,name=value``.

    Raises:
        ValueError: one of them has no name or no value.
    """
    pairs = [part.strip().partition("=") for part in (given or "").split(",") if part.strip()]
    for name, _, value in pairs:
        if not name or not value:
            raise ValueError(f"sasl_oauthbearer_extensions has {name or value!r}: write name=value,name=value")
    return {name: value for name, _, value in pairs}


@dataclass(frozen=True, kw_only=True)
class KafkaSinkOptions(CompressionOptions):
    """Options of the sink for Kafka (``kafka:HOST:PORT,...``)."""

    scope = "kafka sink"
    place = "open_sink or ``shmaccum sender --sink kafka:HOST:PORT -X``"

    client_id: str | None = text(
        None,
        "The name of this host in the broker's logs and quotas. auto: shmaccum- and the arena's name.",
        unset="auto",
    )
    max_block_ms: int = duration_ms(
        "60s", "A topic that the cluster does not know for this time is reported to producers as missing."
    )
    allow_auto_create_topics: bool = boolean(
        True, "The sink asks the broker to create unknown topics. The broker must be configured to do so."
    )
    metadata_max_age_ms: int = duration_ms("5min", "The sender requests metadata again after this time.", minimum=1)
    metadata_recovery_rebootstrap_trigger_ms: int = duration_ms(
        "5min",
        "After this time without any metadata, the sender asks the brokers of the bootstrap list again (KIP-1102).",
    )
    client_dns_lookup: str = choice(
        "use_all_dns_ips",
        ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
        "resolve_canonical_bootstrap_servers_only replaces names of the bootstrap list by canonical names, which "
        "Kerberos may need.",
    )
    reconnect_backoff_ms: int = duration_ms(
        "50ms", "The pause before the first reconnect. The pause doubles with each further attempt."
    )
    reconnect_backoff_max_ms: int = duration_ms("1s", "The longest pause between two attempts to connect.")
    connections_max_idle_ms: int = duration_ms(
        "9min", "The sender closes a connection that had no traffic for this time."
    )
    socket_connection_setup_timeout_ms: int = duration_ms(
        "10s", "The longest time for connecting, including TLS and login. It doubles with each failure.", minimum=1
    )
    socket_connection_setup_timeout_max_ms: int = duration_ms(
        "30s", "The longest time that connecting may take after failures.", minimum=1
    )
    send_buffer_bytes: int = size(
        -1,
        "Send buffer of a socket (SO_SNDBUF). With -1, the kernel chooses its size and lets it grow (Kafka: 128KiB).",
        minimum=-1,
    )
    receive_buffer_bytes: int = size(
        -1, "Receive buffer of a socket (SO_RCVBUF). With -1, the kernel chooses its size.", minimum=-1
    )
    security_protocol: str = choice(
        "PLAINTEXT", ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"), "The protocol of the broker's listener."
    )
    ssl_cafile: str | None = text(None, "PEM file of trusted authorities, instead of the system's.", unset="none")
    ssl_certfile: str | None = text(None, "PEM file of this host's certificate.", unset="none")
    ssl_keyfile: str | None = text(None, "PEM file of the certificate's key.", unset="none")
    ssl_password: Secret | None = secret("The password of the key file.")
    ssl_crlfile: str | None = text(None, "PEM file of revoked certificates.", unset="none")
    ssl_check_hostname: bool = boolean(
        True, "The broker's certificate must contain the host name that the sender connected to."
    )
    sasl_mechanism: str | None = choice(
        None,
        ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM"),
        "The login mechanism.",
        unset="none",
    )
    sasl_plain_username: str | None = text(None, "The user, for PLAIN and SCRAM.", unset="none")
    sasl_plain_password: Secret | None = secret("The user's password.")
    sasl_kerberos_name: str | None = text(
        None, "The broker's name in Kerberos. The default is composed of service and domain.", unset="none"
    )
    sasl_kerberos_service_name: str = text("kafka", "The broker's service in Kerberos.")
    sasl_kerberos_domain_name: str | None = text(None, "The broker's domain. The default is its host.", unset="none")
    sasl_oauth_token_provider: Any = provider(
        "A function that returns a token for OAUTHBEARER, or an object with such a method token(): module:name, or the "
        "function or object itself.",
        "token",
        kafka="sasl.oauthbearer.token.provider",
    )
    sasl_oauthbearer_method: str | None = choice(
        None,
        ("oidc", "aws_msk_iam"),
        "The source of tokens for OAUTHBEARER, instead of a provider: an OpenID Connect server, or the AWS credentials "
        "of the sender.",
        unset="default",
    )
    sasl_oauthbearer_token_endpoint_url: str | None = text(
        None, "The address at which the OpenID Connect server issues tokens.", unset="none"
    )
    sasl_oauthbearer_client_id: str | None = text(
        None,
        "The name of this client at that server.",
        kafka="sasl.oauthbearer.client.credentials.client.id",
        unset="none",
    )
    sasl_oauthbearer_client_secret: Secret | None = secret(
        "The secret of this client at that server.", kafka="sasl.oauthbearer.client.credentials.client.secret"
    )
    sasl_oauthbearer_assertion_file: str | None = text(
        None,
        "A file with a signed JSON web token that proves the identity of this client (RFC 7523). It is read again for "
        "each token.",
        unset="none",
    )
    sasl_oauthbearer_scope: str | None = text(None, "The scope of the token.", unset="none")
    sasl_oauthbearer_extensions: str | None = text(
        None, "Extensions of the login (KIP-342): name=value, separated by commas.", unset="none"
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
            yield f"security_protocol={self.security_protocol} needs sasl_mechanism: set the login mechanism"
        if not has_login and self.sasl_mechanism is not None:
            yield (
                f"sasl_mechanism={self.sasl_mechanism} has no effect with security_protocol={self.security_protocol}: "
                "set SASL_SSL or SASL_PLAINTEXT, or omit it"
            )
        needs_password = (self.sasl_mechanism or "").startswith(("PLAIN", "SCRAM"))
        if needs_password and (self.sasl_plain_username is None or self.sasl_plain_password is None):
            yield f"sasl_mechanism={self.sasl_mechanism} needs sasl_plain_username and sasl_plain_password"
        yield from self._contradictions_of_tokens()

    def _contradictions_of_tokens(self) -> Iterator[str]:
        has_provider = self.sasl_oauth_token_provider is not None
        has_tokens = self.sasl_mechanism == "OAUTHBEARER"
        if has_tokens and self.sasl_oauthbearer_method is None and not has_provider:
            yield "sasl_mechanism=OAUTHBEARER needs sasl_oauth_token_provider, or sasl_oauthbearer_method=oidc"
        if self.sasl_oauthbearer_method is not None and has_provider:
            yield "sasl_oauthbearer_method and sasl_oauth_token_provider are both sources of tokens: omit one of them"
        if self.sasl_oauthbearer_method is not None and not has_tokens:
            yield f"sasl_oauthbearer_method={self.sasl_oauthbearer_method} needs sasl_mechanism=OAUTHBEARER"
        if self.sasl_oauthbearer_method == "oidc":
            yield from self._contradictions_of_oidc()

    def _contradictions_of_oidc(self) -> Iterator[str]:
        url = self.sasl_oauthbearer_token_endpoint_url
        if url is None or not url.startswith(("https://", "http://")):
            yield "sasl_oauthbearer_method=oidc needs an https address in sasl_oauthbearer_token_endpoint_url"
        has_secret = self.sasl_oauthbearer_client_secret is not None
        if has_secret != (self.sasl_oauthbearer_client_id is not None):
            yield "sasl_oauthbearer_client_id and sasl_oauthbearer_client_secret belong together: set both"
        elif not has_secret and self.sasl_oauthbearer_assertion_file is None:
            yield (
                "sasl_oauthbearer_method=oidc needs sasl_oauthbearer_client_id and sasl_oauthbearer_client_secret, or "
                "sasl_oauthbearer_assertion_file"
            )
        try:
            extensions_of(self.sasl_oauthbearer_extensions)
        except ValueError as error:
            yield str(error)
