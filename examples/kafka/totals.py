# SPDX-License-Identifier: Apache-2.0
"""Consume, transform, produce: the total of each order is counted once, even if a process is killed.

usage: python totals.py ARENA SERVERS
"""

import sys

from confluent_kafka import Consumer, KafkaException, Message

import shmaccum

BATCH = 500
"""The maximum number of orders in a transaction."""


def total(order: Message) -> bytes:
    """The computation: the sum of the numbers of an order."""
    if order.error() is not None:
        raise KafkaException(order.error())
    return b"%d" % sum(map(int, (order.value() or b"").split()))


def main(arena: str, servers: str) -> None:
    """Continues after the last committed transaction. An error ends it; start it again."""
    with shmaccum.Producer(arena, sink=f"kafka:{servers}") as producer:
        with producer.transaction():
            pass  # now the last transaction of the arena is over, and its offsets are committed
        consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "totals",
                "group.instance.id": arena,  # a program that starts again gets its partitions at once
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe(["orders"])
        while True:
            orders = consumer.consume(BATCH, timeout=1)
            if not orders:
                continue
            with producer.transaction() as transaction:
                for order in orders:
                    producer.send("totals", total(order), key=order.key())
                transaction.send_offsets(consumer.position(consumer.assignment()), consumer.consumer_group_metadata())


if __name__ == "__main__":
    main(*sys.argv[1:])
