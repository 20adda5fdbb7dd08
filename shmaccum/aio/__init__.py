# SPDX-License-Identifier: Apache-2.0
"""The producer for asyncio. Only tasks wait, and the event loop is never blocked.

::

    producer        the API of `AIOKafkaProducer`: start, send, send_and_wait, flush, stop
    loop_producer   the producer inside it, which raises an exception instead of waiting
    deliveries      the results of many records that a task sent in one call
    transaction     a transaction that waits in tasks
"""

from shmaccum.aio.deliveries import Deliveries
from shmaccum.aio.producer import Producer
from shmaccum.aio.transaction import Transaction

__all__ = ["Deliveries", "Producer", "Transaction"]
