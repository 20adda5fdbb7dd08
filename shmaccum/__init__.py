# SPDX-License-Identifier: Apache-2.0
"""One Kafka producer per host, shared by every Python process through memory."""

from shmaccum._native import DeliveryFuture
from shmaccum.accumulator import Accumulator, BatchResult, Completion
from shmaccum.arena import Arena, ArenaStatistics, VerifyDepth
from shmaccum.delivery import RecordMetadata, TopicPartition
from shmaccum.exceptions import ShmaccumError
from shmaccum.producer import Producer

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
    "ShmaccumError",
    "TopicPartition",
    "VerifyDepth",
    "__version__",
]
