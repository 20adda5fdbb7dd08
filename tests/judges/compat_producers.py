# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest (``-p compat_producers``) that gives other libraries' tests of producers ours.

It stands for the change of one import: a test that imports the library's producer gets the one of `shmaccum.compat`.
The address of the judged server is in the environment. confluent-kafka's tests run without a broker, or name one at
localhost:9092; where they name it, their records go to the server. Each arena that a test made is removed at the end.
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
    """confluent-kafka's tests name a broker of their authors' machines."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        if arguments and isinstance(arguments[0], dict):
            servers = arguments[0].get("bootstrap.servers", NO_BROKER)
            arguments = ({**arguments[0], "bootstrap.servers": ADDRESS if servers == ABSENT_BROKER else servers},)
        super().__init__(*arguments, **options)


class JudgedAIOKafkaProducer(AIOKafkaProducer):
    """One of aiokafka's tests has no topic by stopping the metadata of a client in the process.

    Ours are in the sender's process, and the judged server makes a topic when it is asked for one. So the server is
    asked to make none.
    """

    def __init__(self, **options: Any) -> None:
        if TEST_WITHOUT_TOPIC in os.environ.get("PYTEST_CURRENT_TEST", ""):
            options["shmaccum_allow_auto_create_topics"] = False
        super().__init__(**options)


class AbsentAvroProducer:
    """The producer with a schema registry needs packages that no other test needs."""

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
    """The senders leave when their arenas are gone."""
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
    """The part of aiokafka's own fixture that tests of producers use, with the judged server for the cluster."""
    host, _, port = ADDRESS.rpartition(":")
    facts = {"loop": loop, "hosts": [ADDRESS], "kafka_host": host, "kafka_port": port, "kafka_version": KAFKA_VERSION}
    for name, value in facts.items() if request.cls is not None else ():
        setattr(request.cls, name, value)
