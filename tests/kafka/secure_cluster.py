# SPDX-License-Identifier: Apache-2.0
"""A broker of Apache Kafka that requires TLS and a login."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import trustme
from cryptography.hazmat.primitives import serialization

from tests.kafka.broker import LOGIN_MODULES, LOOPBACK, SECURE_PROPERTIES, Cluster, running_cluster

admin: Any = importlib.import_module("confluent_kafka.admin")  # its stubs export other names

USER = "alice"
PASSWORD = "correct-horse-battery-staple"
REQUEST_TIMEOUT_S = 120.0


class SecureCluster(NamedTuple):
    """The broker, and the certificate of its authority."""

    cluster: Cluster
    authority: Path

    def options(self, **changed: Any) -> dict[str, Any]:
        """The options with which a sink can connect."""
        fitting = {
            "security_protocol": "SASL_SSL",
            "ssl_cafile": str(self.authority),
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_plain_username": USER,
            "sasl_plain_password": PASSWORD,
        }
        return {**fitting, **changed}


@contextmanager
def secure_cluster(directory: Path, **arguments: Any) -> Iterator[SecureCluster]:
    """Runs the broker.

    Args:
        directory: of its certificates and its log.
        arguments: more arguments of `running_cluster`.
    """
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "authority.pem")
    _write_broker_pem(authority.issue_cert(LOOPBACK, "localhost"), directory / "broker.pem")
    properties = {
        **SECURE_PROPERTIES,
        "ssl.keystore.location": str(directory / "broker.pem"),
        "listener.name.sasl_ssl.plain.sasl.jaas.config": (
            f'{LOGIN_MODULES}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        ),
        **arguments.pop("properties", {}),
    }
    with running_cluster(directory, properties=properties, **arguments) as cluster:
        _add_user(cluster.admin())
        yield SecureCluster(cluster, directory / "authority.pem")


def _write_broker_pem(certificate: trustme.LeafCert, path: Path) -> None:
    """Write key and certificates for Java, the key in PKCS#8."""
    key = serialization.load_pem_private_key(certificate.private_key_pem.bytes(), None)
    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(encoded + b"".join(blob.bytes() for blob in certificate.cert_chain_pems))


def _add_user(client: Any) -> None:
    """Add a user for both SCRAM mechanisms."""
    mechanisms = (admin.ScramMechanism.SCRAM_SHA_256, admin.ScramMechanism.SCRAM_SHA_512)
    for mechanism in mechanisms:
        credential = admin.ScramCredentialInfo(mechanism, 4096)
        change = admin.UserScramCredentialUpsertion(USER, credential, PASSWORD.encode())
        for done in client.alter_user_scram_credentials([change]).values():
            done.result(REQUEST_TIMEOUT_S)
