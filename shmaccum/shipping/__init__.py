# SPDX-License-Identifier: Apache-2.0
"""Shipping a log: its batches go to Kafka as they are, while the log is still written.

::

    log directory ── read (lane) ── new header ── sink ── Kafka
         ^                                         │ ack
         └── .shipping/positions <── forced to disk┘

`shipper` is the loop, `lane` one partition on its way, `starts` tells where a log begins that was never shipped.
Retention reads the positions (`segment_log/shipped.py`).
"""

from shmaccum.shipping.shipper import Shipper, ShippingProgress

__all__ = ["Shipper", "ShippingProgress"]
