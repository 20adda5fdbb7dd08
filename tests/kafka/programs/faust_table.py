# SPDX-License-Identifier: Apache-2.0
"""Counts the records of each key in a table of faust.

::

    python faust_table.py ADDRESS FOLDER NAME PARTITION_COUNT
"""

from __future__ import annotations

import sys

import faust


def main(address: str, folder: str, name: str, partition_count: str) -> None:
    """Runs until SIGTERM."""
    app = faust.App(
        name,
        broker=f"kafka://{address}",
        datadir=folder,
        store="memory://",
        topic_partitions=int(partition_count),
        web_enabled=False,
    )
    raw = {"key_type": bytes, "value_type": bytes, "key_serializer": "raw", "value_serializer": "raw"}
    source = app.topic(f"{name}-words", **raw)
    target = app.topic(f"{name}-counts", **raw)
    table = app.Table("table", default=int)

    async def count(stream: faust.StreamT[bytes]) -> None:
        async for event in stream.events():
            word = event.key.decode()
            table[word] += 1
            await target.send(key=event.key, value=b"%d" % table[word])

    app.agent(source)(count)
    faust.Worker(app, loglevel="info").execute_from_commandline()


if __name__ == "__main__":
    main(*sys.argv[1:])
