# SPDX-License-Identifier: Apache-2.0
"""Spark's own Kafka connector writes to a served log and reads it, in batches and as a stream."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from setup import ROOT
from tests.spark import connector_jars
from tests.spark.conftest import reason_to_skip
from tests.support.log_server import PARTITION_COUNT, served

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RECORD_COUNT = 400
LIMIT_S = 500


def test_sparks_connector_writes_reads_and_streams(tmp_path: Path) -> None:
    if (reason := reason_to_skip()) is not None:
        pytest.skip(reason)
    jars = connector_jars.require()
    with served(tmp_path / "log") as address:
        arguments = [address, str(jars), str(tmp_path / "checkpoint"), str(RECORD_COUNT)]
        command = [sys.executable, "-m", "tests.spark.connector_job", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["read"] == list(range(RECORD_COUNT))
    assert told["headers"] == [str(number) for number in range(RECORD_COUNT)]
    assert len(told["from 10 on"]) == RECORD_COUNT - 10 * PARTITION_COUNT
    assert sum(told["steps"]) == sum(told["steps after a restart"]) == RECORD_COUNT
    assert len(told["steps"]) > 1, "the stream has small steps"
    assert told["copies"] == list(range(2 * RECORD_COUNT))
