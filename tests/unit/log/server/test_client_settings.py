# SPDX-License-Identifier: Apache-2.0
"""Properties of Kafka's clients are read as Kafka's own tools read them. Invalid ones are rejected."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme

from shmaccum.exceptions import InvalidArgumentError
from shmaccum.log.server.client_settings import PLAIN_CONNECTION, ClientSettings, client_settings, read_client_settings

JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="a \\"b\\" = c;";'
LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": JAAS}


def written(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "client.properties"
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return str(path)


def test_without_properties_a_connection_has_neither_tls_nor_a_login() -> None:
    assert client_settings({"request.timeout.ms": "5000"}) == PLAIN_CONNECTION == ClientSettings()


def test_a_login_is_read_and_its_password_is_never_shown() -> None:
    found = client_settings(LOGIN)
    assert (found.tls, found.mechanism, found.username, found.password) == (
        None,
        "SCRAM-SHA-512",
        "alice",
        'a "b" = c;',
    )
    assert found.password not in repr(found)


def test_a_file_is_read_in_javas_format(tmp_path: Path) -> None:
    jaas = JAAS.replace(" required ", " required \\\n    ").replace("ScramLogin", "PlainLogin")
    text = "# a comment\n! one more\n\nsecurity.protocol : SASL_PLAINTEXT\n  sasl.mechanism=PLAIN\nsasl.jaas.config="
    found = read_client_settings(written(tmp_path, text + jaas))
    assert (found.mechanism, found.username) == ("PLAIN", "alice")


def test_tls_demands_a_certificate_of_the_authority_and_the_name_of_the_host(tmp_path: Path) -> None:
    authority = tmp_path / "authority.pem"
    trustme.CA().cert_pem.write_to_path(str(authority))
    properties = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority),
    }
    tls = client_settings(properties).tls
    assert tls is not None
    assert (tls.verify_mode, tls.check_hostname, len(tls.get_ca_certs())) == (ssl.CERT_REQUIRED, True, 1)
    tls = client_settings({**properties, "ssl.endpoint.identification.algorithm": ""}).tls
    assert tls is not None
    assert (tls.verify_mode, tls.check_hostname) == (ssl.CERT_REQUIRED, False)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"security.protocol": "TLS"}, "write one of PLAINTEXT"),
        ({"sasl.mechanism": "GSSAPI"}, "write one of PLAIN, SCRAM-SHA-256"),
        ({"sasl.jaas.config": "required username=alice;"}, "must name PlainLoginModule"),
        ({"sasl.jaas.config": JAAS.replace("password", "secret")}, "must name PlainLoginModule"),
        ({"ssl.cipher.suites": "x"}, "ssl.cipher.suites is not supported"),
        ({"security.protocol": "SASL_SSL", "ssl.truststore.location": "a.jks"}, "ssl.truststore.type must be PEM"),
        (
            {
                "security.protocol": "SASL_SSL",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": "/nowhere/authority.pem",
            },
            "/nowhere/authority.pem cannot be used: No such file",
        ),
    ],
)
def test_properties_that_make_no_sense_are_named(changed: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError, match=sentence):
        client_settings({**LOGIN, **changed})


@pytest.mark.parametrize(
    ("text", "mode", "sentence"),
    [
        (f"sasl.jaas.config={JAAS}\n", 0o644, "chmod 0600"),
        ("nonsense\n", 0o600, "cannot be used"),
        ("a=1\na=2\n", 0o600, "cannot be used"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, text: str, mode: int, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError, match=sentence):
        read_client_settings(written(tmp_path, text, mode))
