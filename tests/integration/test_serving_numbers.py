# SPDX-License-Identifier: Apache-2.0
"""A server's metrics have the names of Kafka's broker, and count the actions of clients."""

from __future__ import annotations

import contextlib
import re
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shmaccum import Producer
from shmaccum.arena import Arena
from shmaccum.exceptions import LogError
from shmaccum.log.server import LogServer
from shmaccum.observe.prometheus import ServerCollector
from shmaccum.observe.server import MetricsServer
from shmaccum.sender import Sender
from tests.support.log_server import confluent_consumer, consume_with_confluent, port_of, produce
from tests.support.processes import WATCHDOG_S, wait_until
from tests.support.segment_log import TOPIC

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "metrics-arena.rst"
RECORD_COUNT = 300


def scraped(port: int) -> dict[str, dict[tuple[str, ...], float]]:
    """Maps a name to a map from label values to the value."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WATCHDOG_S) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {
            sample.name: {tuple(one.labels.values()): one.value for one in family.samples if one.name == sample.name}
            for family in families
            for sample in family.samples
        }


@contextlib.contextmanager
def measured(path: Path) -> Iterator[tuple[str, int]]:
    """Run a writable server in a thread. Return its address, and the port of its metrics."""
    with LogServer(path, "127.0.0.1:0", is_writable=True) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        metrics = MetricsServer("127.0.0.1:0", ServerCollector(server.families))
        try:
            yield f"127.0.0.1:{server.address.port}", metrics.port
        finally:
            server.stop()
            thread.join()
            metrics.close()


def test_what_clients_do_is_counted_by_kafka_s_names(tmp_path: Path) -> None:
    with measured(tmp_path / "log") as (address, port):
        produce(address, range(RECORD_COUNT))
        with contextlib.closing(confluent_consumer(address, "g", **{"enable.auto.commit": False})) as consumer:
            consume_with_confluent(consumer, RECORD_COUNT)
            consumer.commit(asynchronous=False)
            produce(address, range(7))
            wait_until(lambda: scraped(port)["kafka_consumergroup_lag"] == {("g", "0", TOPIC): 7}, "the lag is 7")
            found = scraped(port)
    assert found["kafka_server_brokertopicmetrics_messagesin_total"] == {(TOPIC,): RECORD_COUNT + 7}
    bytes_in = found["kafka_server_brokertopicmetrics_bytesin_total"][TOPIC,]
    assert bytes_in == sum(file.stat().st_size for file in tmp_path.glob("log/*/*.log"))
    assert found["kafka_server_brokertopicmetrics_bytesout_total"][TOPIC,] >= bytes_in / 2
    requests = found["kafka_network_requestmetrics_requests_total"]
    times_ms = found["kafka_network_requestmetrics_totaltimems_total"]
    assert {("Fetch",), ("Produce",), ("Metadata",), ("JoinGroup",), ("OffsetCommit",)} <= requests.keys()
    assert requests.keys() == times_ms.keys()
    assert min(times_ms.values()) > 0
    assert found["kafka_coordinator_group_groupmetadatamanager_numgroups"] == {("Stable",): 1}
    assert found["kafka_server_socketservermetrics_connection_count"][()] >= 1


def test_every_name_stands_on_the_page_of_metrics(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    with LogServer(tmp_path / "log", "127.0.0.1:0", is_writable=True) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        names = {family.name for family in server.families()}
        server.stop()
        thread.join()
    assert names == set(re.findall(r"``(kafka_(?:server|network|coordinator|consumergroup)_\w+)``", page))


def test_a_server_that_does_not_run_leaves_its_numbers_out_of_a_scrape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shmaccum.log.server.server.NUMBERS_TIMEOUT_S", 0.01)
    with LogServer(tmp_path / "log", "127.0.0.1:0", is_writable=True) as server:
        with pytest.raises(LogError):
            server.families()
        assert list(ServerCollector(server.families).collect()) == []


def test_a_sender_that_serves_reports_the_numbers_of_its_server(arena: Arena, tmp_path: Path) -> None:
    with Sender(
        arena, f"log:{tmp_path}/log", listen="127.0.0.1:0", metrics_listen="127.0.0.1:0", linger_ms=0
    ) as sender:
        assert sender.open()
        thread = threading.Thread(target=sender.run)
        thread.start()
        with Producer(arena) as producer:
            producer.send(TOPIC, b"x").get(WATCHDOG_S)
        with contextlib.closing(confluent_consumer(f"127.0.0.1:{port_of(sender)}", "g")) as consumer:
            assert len(consumer.consume(1, WATCHDOG_S)) == 1
        found = scraped(sender.metrics_port or 0)
        sender.stop()
        thread.join()
    assert found["kafka_server_brokertopicmetrics_bytesout_total"][TOPIC,] > 0
    assert "shmaccum_buffer_bytes" in found
    assert "kafka_producer_record_send_total" in found
