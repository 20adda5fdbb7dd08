# SPDX-License-Identifier: Apache-2.0
"""Counts the records of each key in a table of quixstreams.

::

    python quixstreams_table.py ADDRESS FOLDER NAME
"""

from __future__ import annotations

import sys

from quixstreams import Application, State


def count(_value: str, state: State) -> str:
    """Return the new count of the record's key."""
    total: int = state.get("count", default=0) + 1
    state.set("count", total)
    return str(total)


def main(address: str, folder: str, name: str) -> None:
    """Runs until SIGTERM."""
    app = Application(broker_address=address, consumer_group=name, auto_offset_reset="earliest", state_dir=folder)
    source = app.topic(f"{name}-words", key_deserializer="string", value_deserializer="string")
    target = app.topic(f"{name}-counts", key_serializer="string", value_serializer="string")
    app.dataframe(source).apply(count, stateful=True).to_topic(target)
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
