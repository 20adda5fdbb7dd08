# SPDX-License-Identifier: Apache-2.0
"""kafka-python: `send` from one thread, with larger batches and a linger as its documentation recommends.

A mock cluster takes what it sends. It cannot read that cluster's refusal of the newest question for versions, so it is
told which broker it talks to.
"""

from __future__ import annotations

from bench.arenas import TOPIC
from bench.harness.question import Contender, Guarantees, Measurement
from bench.mock_cluster import mock_cluster
from bench.packages import installed_version, load
from bench.sending import send_plain

RECORD_COUNT = 20_000
OPTIONS = {"linger_ms": 5, "batch_size": 128 << 10}
MOCK_CLUSTER_VERSION = (2, 0)


def _run() -> Measurement:
    module = load("kafka", "kafka-python")
    with mock_cluster() as bootstrap:
        producer = module.KafkaProducer(bootstrap_servers=bootstrap, api_version=MOCK_CLUSTER_VERSION, **OPTIONS)
        producer.partitions_for(TOPIC)
        measured = send_plain(producer.send, RECORD_COUNT)
        producer.flush()
        producer.close()
    return measured


def _send() -> list[Contender]:
    guarantees = Guarantees(record="copy", order="partition", checksum="CRC32C", kill="lost")
    return [
        Contender(
            "kafka-python send",
            _run,
            version=lambda: installed_version("kafka-python"),
            guarantees=guarantees,
        )
    ]


WORKS = {"send": _send}
