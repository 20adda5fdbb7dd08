# SPDX-License-Identifier: Apache-2.0
"""A producing process of the journeys: ``python -m tests.kafka.journey_producer ARENA LEDGER NUMBER COUNT TOPIC...``.

Sends COUNT records round the topics, each with a key of its own producer and its number as value. After each send that
came back the ledger, a file of one word, has their number: so many records must arrive, whoever is killed. The word is
replaced by one store. (struct.pack_into clears the bytes first: one of 300 killed between leaves a ledger of 0.)
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
