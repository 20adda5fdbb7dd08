# SPDX-License-Identifier: Apache-2.0
"""GSSAPI with Apache Kafka and an MIT KDC: with a keytab, with a ticket, and with neither."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shmaccum.arena import Arena
from tests.kafka import distribution, kerberos
from tests.kafka.broker import Cluster, running_cluster
from tests.kafka.conftest import OpenLoop
from tests.kafka.loop import append, first_report
from tests.kafka.reading import consume

SERVICE = "kafka/localhost"
USER = "events"
RECORD_COUNT = 300
OPTIONS = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "GSSAPI"}


class Kerberized(NamedTuple):
    """A broker that requires a ticket, and the realm that issues it."""

    cluster: Cluster
    realm: kerberos.Realm
    keytab: Path
    """The keys of the user."""


@pytest.fixture(scope="module")
def kerberized(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kerberized]:
    kerberos.require()
    distribution.require()
    directory = tmp_path_factory.mktemp("kerberos")
    realm = kerberos.Realm(directory)
    with realm.running(), pytest.MonkeyPatch.context() as patch:
        for name, value in realm.environment.items():
            patch.setenv(name, value)
        patch.setenv("JDK_JAVA_OPTIONS", f"-Djava.security.krb5.conf={realm.environment['KRB5_CONFIG']}")
        properties = broker_properties(realm.add_principal(SERVICE))
        with running_cluster(directory, properties=properties) as cluster:
            yield Kerberized(cluster, realm, realm.add_principal(USER))


def broker_properties(keytab: Path) -> dict[str, str]:
    """The properties of a broker that is a Kerberos service."""
    login = f'useKeyTab=true storeKey=true keyTab="{keytab}" principal="{SERVICE}@{kerberos.REALM}"'
    return {
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "listener.name.sasl_plaintext.gssapi.sasl.jaas.config": (
            f"com.sun.security.auth.module.Krb5LoginModule required {login};"
        ),
    }


@pytest.fixture(autouse=True)
def no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the tickets and keytabs of the user who runs the tests."""
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'none.cache'}")
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", f"FILE:{tmp_path / 'none.keytab'}")


def append_and_check(cluster: Cluster, topic: str, arena: Arena, open_loop: OpenLoop, **options: Any) -> None:
    cluster.create_topic(topic, 1)
    loop = open_loop(cluster.secure_bootstrap, **OPTIONS, **options)
    values = [b"value %d" % number for number in range(RECORD_COUNT)]
    append(arena, topic, *values)
    loop.run_until_idle()
    assert consume(cluster.bootstrap, topic, 1, RECORD_COUNT) == {0: values}
    assert loop.reports == []


def test_records_arrive_with_a_keytab(
    kerberized: Kerberized, arena: Arena, open_loop: OpenLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", f"FILE:{kerberized.keytab}")
    append_and_check(kerberized.cluster, "keytab", arena, open_loop)


def test_records_arrive_with_a_ticket(
    kerberized: Kerberized, arena: Arena, open_loop: OpenLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{kerberized.realm.log_in(USER, kerberized.keytab)}")
    append_and_check(kerberized.cluster, "ticket", arena, open_loop, sasl_kerberos_name="kafka@localhost")


def test_no_ticket_is_reported_and_the_records_wait(kerberized: Kerberized, arena: Arena, open_loop: OpenLoop) -> None:
    loop = open_loop(kerberized.cluster.secure_bootstrap, **OPTIONS)
    append(arena, "nobody", b"a")
    report = first_report(loop)
    assert "kinit" in report
    assert "KRB5_CLIENT_KTNAME" in report
    assert loop.queued_count() == 1


def test_a_service_the_realm_does_not_know_is_reported(
    kerberized: Kerberized, open_loop: OpenLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", f"FILE:{kerberized.keytab}")
    loop = open_loop(kerberized.cluster.secure_bootstrap, **OPTIONS, sasl_kerberos_service_name="coffee")
    assert "sasl_kerberos_service_name" in first_report(loop)


def test_a_ticket_for_another_service_is_reported(
    kerberized: Kerberized, open_loop: OpenLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    kerberized.realm.add_principal("tea/localhost")
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", f"FILE:{kerberized.keytab}")
    loop = open_loop(kerberized.cluster.secure_bootstrap, **OPTIONS, sasl_kerberos_service_name="tea")
    report = first_report(loop)
    assert "SaslAuthenticationFailedError" in report
    assert "sasl_kerberos_service_name" in report


def test_a_ticket_is_fetched_as_soon_as_there_is_a_keytab(
    kerberized: Kerberized, arena: Arena, open_loop: OpenLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    kerberized.cluster.create_topic("late", 1)
    loop = open_loop(kerberized.cluster.secure_bootstrap, **OPTIONS)
    append(arena, "late", b"a")
    first_report(loop)
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", f"FILE:{kerberized.keytab}")
    loop.run_until_idle()
    assert consume(kerberized.cluster.bootstrap, "late", 1, 1) == {0: [b"a"]}
