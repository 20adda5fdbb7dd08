# SPDX-License-Identifier: Apache-2.0
"""A producing process of the journeys: ``python -m tests.kafka.journey_producer ARENA LEDGER NUMBER COUNT TOPIC...``.

Sends COUNT records to the topics in turn. The key is the producer's and the value is the record's number. When a send
returns, the count of sent records is stored in the ledger, a file of one word. So many records must arrive. One store
replaces the word. (struct.pack_into clears the bytes first, so one kill in 300 would leave a ledger of 0.)
"""

from __future__ import annotations

import mmap
import sys
from typing import Final

from shmaccum import Producer

KEY_COUNT = 16
WORD: Final = "Q"
WORD_SIZE = 8


def main(arena: str, ledger: str, number: int, count: int, topics: list[str]) -> None:
    with open(ledger, "r+b") as file:
        sent_count = memoryview(mmap.mmap(file.fileno(), WORD_SIZE)).cast(WORD)
        producer = Producer(arena)
        for sent in range(count):
            key = b"%d-%d" % (number, sent // len(topics) % KEY_COUNT)
            producer.send(topics[sent % len(topics)], b"%d" % sent, key)
            sent_count[0] = sent + 1


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
