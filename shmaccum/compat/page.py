# SPDX-License-Identifier: Apache-2.0
"""``python -m shmaccum.compat.page FOLDER`` writes a table of options for each library, which the docs show."""

from __future__ import annotations

import csv
import importlib
import io
import sys
from pathlib import Path

LIBRARIES = ("kafka_python", "confluent", "aiokafka")
"""The modules that have a table of options."""


def table_of(library: str) -> str:
    """The options of a library and what becomes of each, as CSV."""
    rows = importlib.import_module(f"shmaccum.compat.{library}").ROWS
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows((f"``{name}``", row.sentence) for name, row in rows.items())
    return text.getvalue()


def file_name(library: str) -> str:
    """The file of a library's table."""
    return f"compat-{library.replace('_', '-')}.csv"


if __name__ == "__main__":
    for name in LIBRARIES:
        Path(sys.argv[1], file_name(name)).write_text(table_of(name), encoding="utf-8")
