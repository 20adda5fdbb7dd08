# SPDX-License-Identifier: Apache-2.0
"""Consumers of a log on the same host: no server, no socket.

::

    with Consumer("log:/data/log", "flights", auto_offset_reset="earliest") as consumer:
        for record in consumer:
            print(record.topic, record.partition, record.offset, record.value)

    consumer          records: poll, iterate, many at once        ─ record, deserializers, arrow
    sharing           topics, and the part that a group gives to this consumer
    positions         assigned partitions: positions, pauses
    group             its looks at the plan of its group, and its commits              ─ shmaccum/log/groups
    partition_flow    one partition: its position, and records decoded ahead
    news              waiting for appends   ─ shared_watch   one watch for all consumers of a process, with a timer
                                            ─ bell           one of them looks at the plan of their group for all
"""

from shmaccum.log.consumer.consumer import Consumer
from shmaccum.log.consumer.group import OffsetAndMetadata
from shmaccum.log.consumer.record import ConsumerRecord

__all__ = ["Consumer", "ConsumerRecord", "OffsetAndMetadata"]
