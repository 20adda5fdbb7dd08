# SPDX-License-Identifier: Apache-2.0
"""Consumers of a log on the same host: no server, no socket.

::

    with Consumer("log:/data/log", "flights", auto_offset_reset="earliest") as consumer:
        for record in consumer:
            print(record.topic, record.partition, record.offset, record.value)

    consumer          records: poll, iterate, many at once        ─ record, deserializers, arrow
    sharing           topics, and the part that a group gives to this consumer
    positions         assigned partitions: positions, pauses
    group             when it looks at the plan of its group, and when it commits      ─ shmaccum/groups
    partition_flow    one partition: its position, and records decoded ahead
    news              waiting for appends
"""

from shmaccum.consumer.consumer import Consumer
from shmaccum.consumer.group import OffsetAndMetadata
from shmaccum.consumer.record import ConsumerRecord

__all__ = ["Consumer", "ConsumerRecord", "OffsetAndMetadata"]
