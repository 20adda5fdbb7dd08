# SPDX-License-Identifier: Apache-2.0
"""confluent-kafka's producers on an arena (confluent-kafka 2)."""

from shmaccum.compat.confluent_aio import AIOProducer
from shmaccum.compat.confluent_options import ROWS
from shmaccum.compat.confluent_producer import Producer
from shmaccum.compat.confluent_serializing import SerializingProducer

__all__ = ["ROWS", "AIOProducer", "Producer", "SerializingProducer"]
