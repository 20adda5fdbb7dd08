# SPDX-License-Identifier: Apache-2.0
"""``python -m shmaccum.compat.page FOLDER`` writes a table of options for each library, for the documentation."""

from __future__ import annotations

import csv
import importlib
import io
import sys
from pathlib import Path

LIBRARIES = ("kafka_python", "confluent", "aiokafka")
"""The modules that have a table of options."""


def table_of(library: str) -> str:
    """Returns the options of a library and the effect of each, as CSV."""
    rows = importlib.import_module(f"shmaccum.compat.{library}").ROWS
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows((f"``{name}``", row.sentence) for name, row in rows.items())
    return text.getvalue()


def file_name(library: str) -> str:
    """Returns the name of the file with a library's table."""
    return f"compat-{library.replace('_', '-')}.csv"


if __name__ == "__main__":
    for name in LIBRARIES:
        Path(sys.argv[1], file_name(name)).write_text(table_of(name), encoding="utf-8")
