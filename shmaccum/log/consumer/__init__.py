# SPDX-License-Identifier: Apache-2.0
"""Consumers of a log on the same host: no server, no socket.

::

    with Consumer("log:/data/log", "flights", auto_offset_reset="earliest") as consumer:
        for record in consumer:
            print(record.topic, record.partition, record.offset, record.value)

    consumer          records: poll, iterate, many at once        ─ record, deserializers, arrow
    subscription      topics, and the partitions that a group assigns to this consumer
    positions         assigned partitions: positions, pauses
    group             its checks of the plan of its group, and its commits             ─ shmaccum/log/groups
    partition_flow    one partition: its position, and records decoded ahead
    change_waiter     waits for appends   ─ shared_watch   one watch for all consumers of a process, with a timer
                                          ─ plan_checks    one consumer checks the plan of their group for all
"""

from shmaccum.log.consumer.consumer import Consumer
from shmaccum.log.consumer.group import OffsetAndMetadata
from shmaccum.log.consumer.record import ConsumerRecord

__all__ = ["Consumer", "ConsumerRecord", "OffsetAndMetadata"]
