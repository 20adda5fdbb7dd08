# SPDX-License-Identifier: Apache-2.0
"""Spark's sink logs in to Kafka with a token of an OpenID Connect server. The source reads no broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from setup import ROOT
from tests.kafka.fake_broker import fake_cluster
from tests.kafka.test_pump import Ledger
from tests.spark.conftest import SETTINGS, reason_to_skip
from tests.support.oidc_server import SECRET, oidc_server

pytestmark = pytest.mark.spark

TOPIC = "flights"
VARIABLE = "SECRET_OF_TESTS"
JOB = """
import json, os, sys, urllib.request
from pyspark.sql import SparkSession
import shmaccum.spark

folder, settings, options = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
builder = SparkSession.builder.master("local[2]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("INFO")
shmaccum.spark.register(spark)

def write(**more):
    rows = spark.range(4, numPartitions=2).selectExpr("cast(id as string) value")
    writer = rows.write.format("shmaccum").mode("append")
    writer.options(**options, **more).save()

write(sasl_oauthbearer_client_secret="env:SECRET_OF_TESTS")
try:
    write(sasl_oauthbearer_client_secret=os.environ["SECRET_OF_TESTS"])
except Exception as error:
    print(error)
address = f"{spark.sparkContext.uiWebUrl}/api/v1/applications/{spark.sparkContext.applicationId}"
ui = f"{spark.sparkContext.uiWebUrl}/SQL/execution/?id="
for page in (f"{address}/sql?details=true&planDescription=true", f"{address}/environment", f"{ui}0", f"{ui}1"):
    print(urllib.request.urlopen(page).read().decode())
spark.stop()
"""


def run_job(folder: Path, options: dict[str, Any]) -> str:
    """Run the job, and return its output, its log, and its events."""
    (folder / "events").mkdir()
    settings = {
        **SETTINGS,
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file:{folder}/events",
    }
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(ROOT),
        VARIABLE: SECRET,
    }
    command = [sys.executable, "-c", JOB, str(folder), json.dumps(settings), json.dumps(options)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    events = [path.read_text() for path in (folder / "events").rglob("*") if path.is_file()]
    assert "SparkListenerSQLExecutionStart" in "".join(events)
    return "\n".join([ended.stdout, ended.stderr, *events])


def test_the_options_for_tokens_are_text_and_no_secret_shows(tmp_path: Path, node_arena: str) -> None:
    if (reason := reason_to_skip()) is not None:
        pytest.skip(reason)
    with oidc_server() as oidc, fake_cluster(topics={TOPIC: 1}) as cluster:
        ledger = Ledger()
        logins: list[bytes] = []
        cluster.on_produce = ledger

        def accept(sent: bytes) -> int:
            logins.append(sent)
            return 0

        cluster.on_login = accept
        options = oidc.options(arena=node_arena, sink=f"kafka:{cluster.bootstrap}", topic=TOPIC)
        del options["sasl_oauthbearer_client_secret"]
        shown = run_job(tmp_path, options)
    assert {*ledger.values[TOPIC, 0]} == {b"0", b"1", b"2", b"3"}
    assert len(ledger.values[TOPIC, 0]) == 4
    assert logins
    assert all(b"auth=Bearer ey" in sent for sent in logins)
    assert "would be sent to every executor and stored there" in shown
    assert '"planDescription"' in shown
    assert SECRET not in shown
