# SPDX-License-Identifier: Apache-2.0
"""One Kafka producer per host, shared by every Python process through memory."""

from shmaccum._native import DeliveryFuture
from shmaccum.accumulator import Accumulator, BatchResult, Completion
from shmaccum.arena import Arena, ArenaStatistics, VerifyDepth
from shmaccum.delivery import RecordMetadata, TopicPartition
from shmaccum.ensure_sender import ensure_sender
from shmaccum.exceptions import ShmaccumError
from shmaccum.producer import Producer
from shmaccum.sender import Sender
from shmaccum.sinks import open_sink

__version__ = "0.1.0"

__all__ = [
    "Accumulator",
    "Arena",
    "ArenaStatistics",
    "BatchResult",
    "Completion",
    "DeliveryFuture",
    "Producer",
    "RecordMetadata",
    "Sender",
    "ShmaccumError",
    "TopicPartition",
    "VerifyDepth",
    "__version__",
    "ensure_sender",
    "open_sink",
]
