# SPDX-License-Identifier: Apache-2.0
"""The library's exceptions as Kafka's error codes, and as sentences with a remedy."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from kafka import errors

from shmaccum.sender.sinks.kafka.errors import NETWORK_EXCEPTION, REQUEST_TIMED_OUT, UNSUPPORTED_VERSION


def error_code(error: Exception) -> int:
    """Return Kafka's error code for a request without a response."""
    if isinstance(error, (errors.RequestTimedOutError, errors.KafkaTimeoutError)):
        return REQUEST_TIMED_OUT
    if isinstance(error, errors.UnsupportedVersionError):
        return UNSUPPORTED_VERSION
    return NETWORK_EXCEPTION


class LoginUnansweredError(errors.KafkaConnectionError):  # type: ignore[misc]
    """A broker did not respond to a login, or closed the connection instead. Some brokers reject a login this way."""


ADVICE_ON_LOGINS: Mapping[str, str] = {
    "OAUTHBEARER": "check the source of tokens (sasl_oauthbearer_method, sasl_oauth_token_provider)",
    "GSSAPI": "check for which service the ticket is (sasl_kerberos_service_name)",
    "AWS_MSK_IAM": "check the AWS credentials of the sender",
}
ADVICE_ON_PASSWORDS = "check user and password (sasl_plain_username, sasl_plain_password)"
ADVICE: Sequence[tuple[type[Exception], str]] = (
    (errors.UnsupportedSaslMechanismError, "choose a sasl_mechanism that the broker supports"),
    (errors.IllegalSaslStateError, "the listener expects no login: check security_protocol"),
    (errors.IncompatibleBrokerVersion, "shmaccum needs Apache Kafka 0.11 or newer"),
    (errors.UnsupportedVersionError, "shmaccum needs Apache Kafka 0.11 or newer"),
    (
        errors.InvalidReceiveError,
        "the server at this address does not speak Kafka's protocol: check port and security_protocol",
    ),
    (errors.KafkaTimeoutError, "check address and firewall"),
    (errors.RequestTimedOutError, "the broker did not answer in time"),
    (errors.KafkaConnectionError, "check the address, that the broker runs, and that security_protocol fits"),
)
LOGIN_FAILURES = (errors.SaslAuthenticationFailedError, LoginUnansweredError)
"""A broker did not accept a login."""
KERBEROS_ADVICE = (
    "get a ticket with kinit or name a keytab in KRB5_CLIENT_KTNAME, and check the broker's name "
    "(sasl_kerberos_service_name, sasl_kerberos_domain_name)"
)


def text_of(error: Exception) -> str:
    """Return the problem without advice."""
    return ", ".join(map(str, error.args)) or type(error).__name__


def describe(error: Exception, mechanism: str | None = None) -> str:
    """Return a sentence with the problem and advice, without secrets.

    Args:
        mechanism: of the logins (sasl_mechanism).
    """
    text = text_of(error)
    if isinstance(error, LOGIN_FAILURES):
        return f"{text}: {ADVICE_ON_LOGINS.get(mechanism or '', ADVICE_ON_PASSWORDS)}"
    # kafka-python does not change the errors of gssapi. If gssapi was not imported, no such error can occur.
    package = sys.modules.get("gssapi.exceptions")
    advice_on_kerberos = () if package is None else ((package.GSSError, KERBEROS_ADVICE),)
    for kind, advice in (*ADVICE, *advice_on_kerberos):
        if isinstance(error, kind):
            return f"{text}: {advice}"
    return text
