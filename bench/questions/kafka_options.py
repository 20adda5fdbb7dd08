# SPDX-License-Identifier: Apache-2.0
"""What do compression and TLS cost one process that sends to Apache Kafka on the same machine?

With either, Python handles each batch of the sender, and lz4 or OpenSSL its bytes. Both sides have the same options,
also those of ``kafka_one_process``; the login is SCRAM-SHA-256. A record is a JSON object of about 170 bytes, because
zeros would compress to nothing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from bench.harness.question import Contender, Measurement, Question
from bench.parts.apache_kafka import BATCH_SIZE, FIGURES, LINGER_MS, new_topic, produced, secure_cluster
from bench.parts.arenas import GUARANTEES
from bench.parts.kafka_sender import produced_through_arena
from bench.peers import confluent_kafka as peer

RECORD_COUNT = 200_000
OPTIONS = {
    "plain": {},
    "lz4": {"compression_type": "lz4"},
    "TLS": {"security_protocol": "SASL_SSL"},
    "lz4, TLS": {"compression_type": "lz4", "security_protocol": "SASL_SSL"},
}
PEERS_NAMES = {
    "compression_type": "compression.type",
    "security_protocol": "security.protocol",
    "ssl_cafile": "ssl.ca.location",
    "sasl_mechanism": "sasl.mechanism",
    "sasl_plain_username": "sasl.username",
    "sasl_plain_password": "sasl.password",
}


def _flight(choice: random.Random) -> bytes:
    airports = ("FRA", "JFK", "LHR", "HND", "SIN", "DXB", "AMS", "CDG")
    flight = {
        "flight": f"{choice.choice('ABCDEL')}{choice.choice('AFHKL')}{choice.randrange(1, 9999)}",
        "from": choice.choice(airports),
        "to": choice.choice(airports),
        "latitude": round(choice.uniform(-90, 90), 5),
        "longitude": round(choice.uniform(-180, 180), 5),
        "altitude_ft": choice.randrange(0, 41_000, 25),
        "speed_kt": choice.randrange(120, 560),
        "time": f"2026-11-27T{choice.randrange(24):02}:{choice.randrange(60):02}:{choice.random() * 60:06.3f}Z",
    }
    return json.dumps(flight).encode()


VALUES = [_flight(choice) for choice in [random.Random(1)] for _ in range(10_000)]


def _place(options: dict[str, str]) -> tuple[str, dict[str, str]]:
    """Return the address of the broker, and all options of the connection."""
    secure = secure_cluster()
    if "security_protocol" in options:
        return secure.cluster.secure_bootstrap, {**options, **secure.options()}
    return secure.cluster.bootstrap, options


def _without_secrets(options: dict[str, str]) -> dict[str, str]:
    """Return options for a command line, with the password in a file."""
    if "sasl_plain_password" not in options:
        return options
    path = secure_cluster().authority.with_name("password")
    path.touch(0o600)
    path.write_text(options["sasl_plain_password"])
    return {**options, "sasl_plain_password": f"file:{path}"}


def _ours(options: dict[str, str]) -> Callable[[], Measurement]:
    def run() -> Measurement:
        bootstrap, given = _place(options)
        topic = new_topic(secure_cluster().cluster)
        return produced_through_arena(bootstrap, RECORD_COUNT, topic, VALUES, **_without_secrets(given))

    return run


def _peers(options: dict[str, str]) -> Callable[[], Measurement]:
    def run() -> Measurement:
        bootstrap, given = _place(options)
        common = {"acks": "all", "enable.idempotence": True, "linger.ms": LINGER_MS, "batch.size": BATCH_SIZE}
        named = {PEERS_NAMES[name]: value for name, value in given.items()}
        with peer.running_producer(bootstrap, **common, **named) as producer:
            topic = new_topic(secure_cluster().cluster)
            return produced(producer.produce, producer.flush, RECORD_COUNT, topic, VALUES)

    return run


def contenders() -> list[Contender]:
    """Return both sides with each set of options."""
    ours = [
        Contender(f"shmaccum, {name}", _ours(options), peer=f"confluent-kafka, {name}", guarantees=GUARANTEES)
        for name, options in OPTIONS.items()
    ]
    return ours + [
        Contender(f"confluent-kafka, {name}", _peers(options), version=peer.version, guarantees=peer.GUARANTEES)
        for name, options in OPTIONS.items()
    ]


QUESTION = Question(
    title="one process sends JSON to Apache Kafka on the same machine, compressed or encrypted",
    figures=FIGURES,
    contenders=contenders,
    peer="confluent-kafka, plain",
    scope="full",
)
