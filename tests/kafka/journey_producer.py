# SPDX-License-Identifier: Apache-2.0
"""A producing process of the journeys: ``python -m tests.kafka.journey_producer ARENA LEDGER NUMBER COUNT TOPIC...``.

Sends COUNT records round the topics, each with a key of its own producer and its number as value. After each send came
back the ledger, a file of eight bytes, says how many there are: what it counts must arrive, whoever is killed.
"""

from __future__ import annotations

import mmap
import struct
import sys

from shmaccum import Producer

KEY_COUNT = 16
COUNTER = struct.Struct("<Q")


def main(arena: str, ledger: str, number: int, count: int, topics: list[str]) -> None:
    with open(ledger, "r+b") as file, mmap.mmap(file.fileno(), COUNTER.size) as counter:
        producer = Producer(arena)
        for sent in range(count):
            key = b"%d-%d" % (number, sent // len(topics) % KEY_COUNT)
            producer.send(topics[sent % len(topics)], b"%d" % sent, key)
            COUNTER.pack_into(counter, 0, sent + 1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
