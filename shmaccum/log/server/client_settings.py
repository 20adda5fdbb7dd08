# SPDX-License-Identifier: Apache-2.0
"""The settings with which a command connects to a server, from a properties file as for Kafka's own tools.

::

    security.protocol=SASL_SSL
    ssl.truststore.type=PEM
    ssl.truststore.location=/etc/kafka/authority.pem
    sasl.mechanism=SCRAM-SHA-256
    sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="...";

The names are those of Kafka's Java clients (``--command-config``). Settings that do not concern the connection, such as
``request.timeout.ms``, are ignored. An unknown setting for TLS or login is rejected.
"""

from __future__ import annotations

import configparser
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from shmaccum.common.secret_files import load_certificate, read_secret
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.log.files.regular_files import open_regular
from shmaccum.log.server.login import MECHANISMS

FILE_SIZE_MAX = 1 << 20
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
KNOWN = {
    "security.protocol",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "sasl.mechanism",
    "sasl.jaas.config",
}
SECRETS = {"ssl.key.password", "sasl.jaas.config"}
OF_A_CONNECTION = ("security.", "ssl.", "sasl.")
LOGIN_MODULE = re.compile(r"(?:\w+\.)*(?:Plain|Scram)LoginModule\s+required\s+(?P<options>.*?)\s*;", re.DOTALL)
LOGIN_OPTION = re.compile(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class ClientSettings:
    """The settings of a connection.

    Attributes:
        tls: the TLS context. None for a connection without TLS.
        mechanism: the SASL mechanism. None if the client does not log in.
        username, password: the credentials for the login.
    """

    tls: ssl.SSLContext | None = None
    mechanism: str | None = None
    username: str = ""
    password: str = field(default="", repr=False)


PLAIN_CONNECTION = ClientSettings()
"""A connection without TLS and login."""


def read_client_settings(path: str) -> ClientSettings:
    """Read the settings from a file.

    Raises:
        InvalidArgumentError: the file is unreadable or invalid, or has a secret and others may read it.
    """
    try:
        with open(path, encoding="utf-8", opener=open_regular) as file:
            properties = _properties(file.read(FILE_SIZE_MAX))
        if SECRETS & properties.keys():  # then use contents that no other user could have changed
            properties = _properties(read_secret(path, "file of client properties"))
        return client_settings(properties)
    except (OSError, UnicodeDecodeError, configparser.Error, InvalidArgumentError) as error:
        raise InvalidArgumentError(f"the file of client properties {path} cannot be used: {error}") from None


def _properties(text: str) -> dict[str, str]:
    """Parse a file in Java's properties format, in which a backslash continues a line."""
    parser = configparser.ConfigParser(interpolation=None, comment_prefixes=("#", "!"), strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    joined = re.sub(r"\\\n[ \t]*", "", text)
    parser.read_string("[client]\n" + "\n".join(line.strip() for line in joined.splitlines()))
    return dict(parser["client"])


def client_settings(properties: Mapping[str, str]) -> ClientSettings:
    """Convert properties to settings.

    Raises:
        InvalidArgumentError: a property is unknown, or properties contradict each other.
    """
    for name in properties:
        if name.startswith(OF_A_CONNECTION) and name not in KNOWN:
            raise InvalidArgumentError(f"{name} is not supported: use only {', '.join(sorted(KNOWN))}")
    protocol = properties.get("security.protocol", "PLAINTEXT")
    if protocol not in PROTOCOLS:
        raise InvalidArgumentError(f"security.protocol is {protocol!r}: write one of {', '.join(PROTOCOLS)}")
    tls = _tls(properties) if protocol.endswith("SSL") else None
    if not protocol.startswith("SASL"):
        return ClientSettings(tls)
    mechanism = properties.get("sasl.mechanism")
    if mechanism not in MECHANISMS:
        raise InvalidArgumentError(f"sasl.mechanism is {mechanism!r}: write one of {', '.join(MECHANISMS)}")
    return ClientSettings(tls, mechanism, *_login(properties.get("sasl.jaas.config", "")))


def _tls(properties: Mapping[str, str]) -> ssl.SSLContext:
    for name in ("ssl.truststore", "ssl.keystore"):
        if f"{name}.location" in properties and properties.get(f"{name}.type") != "PEM":
            raise InvalidArgumentError(f"{name}.type must be PEM, and {name}.location must name a PEM file")
    authority, own = properties.get("ssl.truststore.location"), properties.get("ssl.keystore.location")
    try:
        context = ssl.create_default_context(cafile=authority)
        if own is not None:
            password = properties.get("ssl.key.password")
            load_certificate(context, own, None, password, password_option="ssl.key.password")
    except OSError as error:
        files = " and ".join(path for path in (authority, own) if path is not None)
        raise InvalidArgumentError(f"{files} cannot be used: {error.strerror or error}") from None
    context.check_hostname = properties.get("ssl.endpoint.identification.algorithm", "https") != ""
    return context


def _login(jaas: str) -> tuple[str, str]:
    """Return user name and password."""
    found = LOGIN_MODULE.fullmatch(jaas.strip())
    options = dict(LOGIN_OPTION.findall(found["options"])) if found else {}
    if not {"username", "password"} <= options.keys():
        raise InvalidArgumentError(
            'sasl.jaas.config must name PlainLoginModule or ScramLoginModule: write ... required username="..." '
            'password="...";'
        )
    username, password = (re.sub(r"\\(.)", r"\1", options[name]) for name in ("username", "password"))
    return username, password
