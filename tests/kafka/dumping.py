# SPDX-License-Identifier: Apache-2.0
"""Apache Kafka's own DumpLogSegments, run on the folders of partitions."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.kafka.distribution import TOOL_TIMEOUT_S, java_command

SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
COMPLAINTS = re.compile(r"mismatch|non-consecutive|corrupt|exception|error|invalid|should be|not found", re.IGNORECASE)


def dump(folder: Path, *options: str) -> str:
    """Return its output for every file of a partition, and check that it reports no error."""
    return dump_each([folder], *options)[0]


def dump_each(folders: Sequence[Path], *options: str) -> list[str]:
    """Return its output for the files of each folder, from one JVM."""
    files = [file for folder in folders for suffix in SUFFIXES for file in sorted(folder.glob(f"*{suffix}"))]
    command = java_command("kafka.tools.DumpLogSegments", "--files", ",".join(map(str, files)), *options)
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TOOL_TIMEOUT_S)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert not COMPLAINTS.search(re.sub(r"isvalid: true|headerKeys: \[.*?\]|payload:.*", "", said)), said
    assert len(re.findall(r"isvalid: true", said)) == said.count("baseOffset:")
    parts = re.split(r"^(?=Dumping )", said, flags=re.MULTILINE)
    assert len(parts) == len(files) + 1, "the output has another form than these tests know"
    return ["".join(part for part in parts if part.startswith(f"Dumping {folder}/")) for folder in folders]
