# SPDX-License-Identifier: Apache-2.0
"""Apache Kafka's producer in Java: `RecordAccumulator.append`, the model of shmaccum's core, and the whole producer.

Its own ``kafka-producer-perf-test`` measures the whole producer, with the JVM options of its script. The figure runs
from the first send to the last ack. It excludes the JVM's start and includes its warm-up.
"""

from __future__ import annotations

import re
import subprocess

from bench.harness.jvm import contenders
from bench.harness.question import Contender, Guarantees, Measurement
from bench.parts.apache_kafka import BATCH_SIZE, LINGER_MS, cluster, new_topic
from bench.parts.sending import VALUE

APPEND = "AccumulatorAppend.append"
NAMES = {"Java RecordAccumulator.append, 1 thread": 1, "Java RecordAccumulator.append, 2 threads": 2}
GUARANTEES = Guarantees(record="copy", order="partition", checksum="CRC32C", kill="lost")

RECORD_COUNT = 1_000_000
PERFORMANCE_TEST = "org.apache.kafka.tools.ProducerPerformance"
COLLECTOR_OPTIONS = ("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
JVM_OPTIONS = ("-Xmx512M", "-server", *COLLECTOR_OPTIONS)
TOTAL = re.compile(r"^\d+ records sent, ([\d.]+) records/sec .* 99\.9th\.$", re.MULTILINE)


def total_records_per_s(output: str) -> float:
    """Return the total that ``kafka-producer-perf-test`` prints at its end.

    Raises:
        ValueError: the output has no total.
    """
    match = TOTAL.search(output)
    if match is None:
        raise ValueError(f"no total in the output of kafka-producer-perf-test: {output[-500:]}")
    return float(match[1])


def _performance_test() -> Measurement:
    bootstrap, topic = cluster().bootstrap, new_topic()
    properties = [f"bootstrap.servers={bootstrap}", "acks=all", f"linger.ms={LINGER_MS}", f"batch.size={BATCH_SIZE}"]
    counts = ["--num-records", str(RECORD_COUNT), "--record-size", str(len(VALUE)), "--throughput", "-1"]
    command = _java(PERFORMANCE_TEST, "--topic", topic, *counts, "--producer-props", *properties)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {"records_per_s": total_records_per_s(done.stdout)}


def _java(main_class: str, *arguments: str) -> list[str]:
    from tests.kafka.distribution import ensure

    return ["java", *JVM_OPTIONS, "-cp", f"{ensure()}/*", main_class, *arguments]


def _version() -> str:
    from tests.kafka.distribution import version

    return f"Kafka {version()}"


WORKS = {
    "append": contenders("Kafka", APPEND, NAMES, GUARANTEES),
    "kafka": lambda: [
        Contender("Java kafka-producer-perf-test", _performance_test, version=_version, guarantees=GUARANTEES)
    ],
}
