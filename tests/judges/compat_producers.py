# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin (``-p compat_producers``) that replaces the producers of other libraries' tests.

It simulates the change of one import: a test that imports the library's producer gets that of `shmaccum.compat`.
The address of the judged server is in the environment. confluent-kafka's tests use no broker, or one at
localhost:9092, which the server replaces. Each arena that a test made is removed at the end.
"""

from __future__ import annotations

import asyncio
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

import aiokafka
import aiokafka.producer
import confluent_kafka
import kafka
import pytest

from shmaccum.arena import Arena
from shmaccum.compat.aiokafka import AIOKafkaProducer
from shmaccum.compat.confluent import Producer
from shmaccum.compat.kafka_python import KafkaProducer
from shmaccum.compat.settings import OwnerOptions

ADDRESS = os.environ["JUDGED_ADDRESS"]
NO_BROKER = "127.0.0.1:1"
ABSENT_BROKER = "localhost:9092"
KAFKA_VERSION = "4.1.1"
TEST_WITHOUT_TOPIC = "test_producer_notopic"

_arena_names: set[str] = set()
_make = OwnerOptions.make


def _make_and_remember(settings: OwnerOptions) -> dict[str, Any]:
    _arena_names.add(settings.arena_name)
    return _make(settings)


class JudgedProducer(Producer):
    """Replaces the broker that confluent-kafka's tests name."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        if arguments and isinstance(arguments[0], dict):
            servers = arguments[0].get("bootstrap.servers", NO_BROKER)
            arguments = ({**arguments[0], "bootstrap.servers": ADDRESS if servers == ABSENT_BROKER else servers},)
        super().__init__(*arguments, **options)


class JudgedAIOKafkaProducer(AIOKafkaProducer):
    """For a missing topic, one of aiokafka's tests stops the metadata updates of its client.

    Our client is in the sender's process, and the judged server creates topics on request. So the producer requests
    no creation.
    """

    def __init__(self, **options: Any) -> None:
        if TEST_WITHOUT_TOPIC in os.environ.get("PYTEST_CURRENT_TEST", ""):
            options["shmaccum_allow_auto_create_topics"] = False
        super().__init__(**options)


class AbsentAvroProducer:
    """Raises ImportError, because no other test needs the packages for a schema registry."""

    def __init__(self, *_arguments: Any) -> None:
        raise ImportError("the packages of confluent-kafka[avro] are not installed")


avro: Any = types.ModuleType("confluent_kafka.avro")
avro.AvroProducer = AbsentAvroProducer
sys.modules["confluent_kafka.avro"] = avro
OwnerOptions.make = _make_and_remember  # type: ignore[method-assign, assignment]
kafka.KafkaProducer = KafkaProducer
confluent_kafka.Producer = JudgedProducer  # type: ignore[misc, assignment]
aiokafka.AIOKafkaProducer = aiokafka.producer.AIOKafkaProducer = JudgedAIOKafkaProducer


def pytest_unconfigure() -> None:
    """Remove the arenas. Their senders then exit."""
    for name in _arena_names:
        Arena.remove(name, missing_ok=True)


@pytest.fixture(scope="class", name="loop")
def event_loop_of_a_class() -> Iterator[asyncio.AbstractEventLoop]:
    """The event loop of a class of aiokafka's tests."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield loop
    loop.close()


@pytest.fixture(scope="class", autouse=True)
def setup_test_class(request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop) -> None:
    """The part of aiokafka's fixture that producer tests use, with the judged server as the cluster."""
    host, _, port = ADDRESS.rpartition(":")
    facts = {"loop": loop, "hosts": [ADDRESS], "kafka_host": host, "kafka_port": port, "kafka_version": KAFKA_VERSION}
    for name, value in facts.items() if request.cls is not None else ():
        setattr(request.cls, name, value)
