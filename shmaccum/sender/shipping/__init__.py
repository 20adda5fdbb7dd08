# SPDX-License-Identifier: Apache-2.0
"""Ships a log: sends its batches to Kafka unchanged, while the log is still written.

::

    log directory ── read (log_stream) ── new header ── sink ── Kafka
         ^                                             │ ack
         └── .shipping/positions <── forced to disk ───┘

    shipper      the loop, and the positions
    log_stream   one partition that is shipped
    starts       the offsets at which a log begins that was never shipped
    host         the shipper as its sink sees it, and the rate limit

Retention reads the positions (`log/files/shipping_positions.py`).
"""

from shmaccum.sender.shipping.shipper import Shipper, ShippingProgress

__all__ = ["Shipper", "ShippingProgress"]
