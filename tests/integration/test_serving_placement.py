# SPDX-License-Identifier: Apache-2.0
"""Administrators ask a served log for the placement of partitions, and clients get the advertised address."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka.structs import TopicPartitionReplica

from shmaccum.config import ServerOptions
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.log.server import LogServer
from shmaccum.log.server.addresses import listener_name, parse_advertised
from tests.support.log_server import PARTITION_COUNT, produce, running, served
from tests.support.segment_log import TOPIC

NODE = 1
NO_ELECTION, NO_PARTITION, NO_DIRECTORY, NO_SUCH_REPLICA, NO_MOVE = 84, 3, 57, 39, 85


@contextlib.contextmanager
def administrator(address: str) -> Iterator[KafkaAdminClient]:
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=address)) as client:
        yield client


def test_the_directory_is_reported_with_the_bytes_of_each_partition(tmp_path: Path) -> None:
    with served(tmp_path / "log") as address:
        produce(address, range(50))
        with administrator(address) as client:
            (node,) = client.describe_log_dirs()
            (chosen,) = client.describe_log_dirs({TOPIC: [1, 1, 99], "missing": [0]})
    assert node["broker"] == NODE
    (directory,) = node["log_dirs"]
    assert (directory["error_code"], directory["log_dir"]) == (0, str(tmp_path / "log"))
    assert directory["total_bytes"] > directory["usable_bytes"] > 0
    (topic,) = directory["topics"]
    told = {one["partition_index"]: one["partition_size"] for one in topic["partitions"]}
    folders = {number: tmp_path / "log" / f"{TOPIC}-{number}" for number in told}
    written = {number: sum(each.stat().st_size for each in folder.glob("*.log")) for number, folder in folders.items()}
    assert told == written
    assert len(told) == PARTITION_COUNT
    (known,) = chosen["log_dirs"][0]["topics"]
    assert [one["partition_index"] for one in known["partitions"]] == [1]


def test_a_move_to_the_place_where_a_partition_is_succeeds_and_any_other_is_refused(tmp_path: Path) -> None:
    with served(tmp_path / "log") as address:
        produce(address, range(3))
        with administrator(address) as client:
            here, gone = TopicPartitionReplica(TOPIC, 0, NODE), TopicPartitionReplica(TOPIC, 9, NODE)
            moved = client.alter_replica_log_dirs({here: str(tmp_path / "log"), gone: str(tmp_path / "log")})
            assert (moved[here].errno, moved[gone].errno) == (0, NO_PARTITION)
            for path in ("/elsewhere", "", "a\0b"):
                assert client.alter_replica_log_dirs({here: path})[here].errno == NO_DIRECTORY
            place = TopicPartition(TOPIC, 0)
            assert client.alter_partition_reassignments({place: [NODE]}) == {place: None}
            errors = {tuple(wanted or ()): error_of(client, place, wanted) for wanted in ([NODE, 2], [2], None)}
            assert errors == {(NODE, 2): NO_SUCH_REPLICA, (2,): NO_SUCH_REPLICA, (): NO_MOVE}
            assert error_of(client, TopicPartition("missing", 0), [NODE]) == NO_PARTITION
            assert client.list_partition_reassignments() == {}


def error_of(client: KafkaAdminClient, place: TopicPartition, wanted: list[int] | None) -> int:
    """The error of one reassignment."""
    return int(client.alter_partition_reassignments({place: wanted})[place].errno)


def test_no_election_is_needed(tmp_path: Path) -> None:
    with served(tmp_path / "log") as address:
        produce(address, range(3))
        with administrator(address) as client:
            answer = client.elect_leaders(0, {TOPIC: [0, 9]}, raise_errors=False)
    (result,) = answer.replica_election_results
    assert [(one.partition_id, one.error_code) for one in result.partition_result] == [
        (0, NO_ELECTION),
        (9, NO_PARTITION),
    ]


def test_settings_name_their_source_and_what_has_settings_is_listed(tmp_path: Path) -> None:
    with served(tmp_path / "log", retention_ms=5000) as address:
        produce(address, range(3))
        with administrator(address) as client:
            assert set(client.list_config_resources()["topic"]) == {TOPIC}
            assert set(client.list_config_resources([ConfigResourceType.BROKER])) == {"broker"}
            asked = [ConfigResource(ConfigResourceType.TOPIC, TOPIC), ConfigResource(ConfigResourceType.BROKER, "1")]
            found = client.describe_configs(asked, config_filter="all")
    topic, node = found["topic"][TOPIC], found["broker"]["1"]
    assert topic["retention.ms"]["config_source"] == "STATIC_BROKER_CONFIG"
    assert topic["segment.ms"]["config_source"] == "DEFAULT_CONFIG"
    assert topic["segment.ms"]["synonyms"] == []
    assert node["advertised.listeners"]["value"] == f"PLAINTEXT://{address}"


def test_clients_get_the_address_that_was_advertised(tmp_path: Path) -> None:
    """The loopback network has many addresses: the client connects to one and consumes from another."""
    with running(tmp_path / "log", advertised_listener="localhost") as server:
        address = f"127.0.0.1:{server.address.port}"
        produce(address, range(3))
        consumer = KafkaConsumer(TOPIC, bootstrap_servers=address, auto_offset_reset="earliest")
        with contextlib.closing(consumer):
            assert len([next(consumer) for _ in range(3)]) == 3
            (node,) = consumer._client.cluster.brokers()
            assert (node.host, node.port) == ("localhost", server.address.port)


@pytest.mark.parametrize(
    ("text", "told"),
    [(None, ("10.1.2.3", 0)), ("host", ("host", 0)), ("host:99", ("host", 99)), ("[::1]:99", ("::1", 99))],
)
def test_an_advertised_address_is_read(text: str | None, told: tuple[str, int]) -> None:
    assert parse_advertised(text, "10.1.2.3") == told


@pytest.mark.parametrize("text", ["", ":99", "host:", "host:port", "host:0", "host:70000"])
def test_an_address_that_is_none_is_refused_before_anything_is_opened(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="write HOST:PORT"):
        LogServer(tmp_path / "log", "127.0.0.1:0", is_writable=True, advertised_listener=text)
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(
    ("listen", "text"),
    [("0.0.0.0:0", None), ("[::]:0", None), ("127.0.0.1:0", "0.0.0.0"), ("127.0.0.1:0", "[::]:99")],
)
def test_clients_never_get_every_address_of_a_host(tmp_path: Path, listen: str, text: str | None) -> None:
    with pytest.raises(InvalidArgumentError, match="clients need one address"):
        LogServer(tmp_path / "log", listen, is_writable=True, insecure=True, advertised_listener=text)
    assert not (tmp_path / "log").exists()


def test_a_listener_is_named_with_its_protocol() -> None:
    address = parse_advertised("[::1]:99", "")
    assert listener_name(ServerOptions(), address) == "PLAINTEXT://[::1]:99"
    secured = ServerOptions(ssl_certfile="cert.pem", users_file="users")
    assert listener_name(secured, address) == "SASL_SSL://[::1]:99"


def test_a_server_compresses_nothing_for_its_producers(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="a server stores batches as compressed by their producers"):
        LogServer(tmp_path / "log", "127.0.0.1:0", is_writable=True, compression_type="zstd")
    assert not (tmp_path / "log").exists()
