# SPDX-License-Identifier: Apache-2.0
"""The producer for asyncio: every wait is a task's, and the event loop never stands still for it.

::

    producer        `AIOKafkaProducer`'s call shapes: start, send, send_and_wait, flush, stop
    loop_producer   the producer inside it, which raises where another one would wait
    deliveries      the results of many records that a task sent in one call
    transaction     a transaction whose waits are tasks
"""

from shmaccum.aio.deliveries import Deliveries
from shmaccum.aio.producer import Producer
from shmaccum.aio.transaction import Transaction

__all__ = ["Deliveries", "Producer", "Transaction"]
