# SPDX-License-Identifier: Apache-2.0
"""The producer for asyncio: every wait is a task's, and the event loop never stands still for it."""

from shmaccum.aio.deliveries import Deliveries
from shmaccum.aio.producer import Producer
from shmaccum.aio.transaction import Transaction

__all__ = ["Deliveries", "Producer", "Transaction"]
