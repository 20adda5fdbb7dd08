# SPDX-License-Identifier: Apache-2.0
"""A transactional producer of librdkafka as a process: ``python -m tests.support.transactional_producer ADDRESS``.

It commits transactions with offsets, one after another, and prints the number of each one.
"""

from __future__ import annotations

import sys

import confluent_kafka

from tests.support.log_server import DEADLINE_S, transactional
from tests.support.segment_log import TOPIC


def main(address: str) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "readers"})
    with transactional(address) as producer:
        for number in range(1000):
            producer.begin_transaction()
            for partition in range(3):
                producer.produce(TOPIC, b"%d" % number, partition=partition)
            offsets = [confluent_kafka.TopicPartition(TOPIC, 0, number + 1)]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), DEADLINE_S)
            producer.commit_transaction(DEADLINE_S)
            print(number, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
