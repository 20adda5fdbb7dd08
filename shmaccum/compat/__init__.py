# SPDX-License-Identifier: Apache-2.0
"""Producers with the API of other libraries, so that a program changes only one import.

::

    from kafka import KafkaProducer              from shmaccum.compat.kafka_python import KafkaProducer
    from confluent_kafka import Producer         from shmaccum.compat.confluent import Producer
    from aiokafka import AIOKafkaProducer        from shmaccum.compat.aiokafka import AIOKafkaProducer

Each of them creates or finds an arena by its settings (`shmaccum.compat.settings`), so eight processes with equal
settings share one arena and one sender. The library itself stays installed, because programs catch its exceptions.

::

    options              the options that the libraries share, and the parsers of their values
    settings             splits a library's options into those of an arena, sender, sink and producer
    errors               the libraries' names for errors; exceptions that derive from both
    confluent            confluent_producer, confluent_serializing and confluent_aio: one class each
    confluent_options    librdkafka's options     ─ confluent_errors, confluent_callbacks   its codes, its callbacks
    page                 the tables of options that the documentation shows

With the environment variable ``SHMACCUM_COMPAT=library``, each of them is the library's own producer, without an arena.
"""

import os

from shmaccum.exceptions import InvalidArgumentError

_SWITCH = os.environ.get("SHMACCUM_COMPAT")
if _SWITCH == "library":
    from shmaccum.common import unsupported_platform

    unsupported_platform.install_libraries()
elif _SWITCH is not None:
    raise InvalidArgumentError(f"SHMACCUM_COMPAT is {_SWITCH!r}: set it to library, or remove it from the environment")
