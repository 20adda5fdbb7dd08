# SPDX-License-Identifier: Apache-2.0
"""One Kafka producer per host, shared by every Python process through memory."""

from shmaccum.accumulator import Accumulator, BatchResult, Completion
from shmaccum.arena import Arena, ArenaStatistics, VerifyDepth
from shmaccum.exceptions import ShmaccumError

__version__ = "0.1.0"

__all__ = [
    "Accumulator",
    "Arena",
    "ArenaStatistics",
    "BatchResult",
    "Completion",
    "ShmaccumError",
    "VerifyDepth",
    "__version__",
]
