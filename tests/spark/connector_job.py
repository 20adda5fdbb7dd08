# SPDX-License-Identifier: Apache-2.0
"""A Spark program without shmaccum: Spark's own Kafka connector writes to a served log and reads it.

Run as ``python -m tests.spark.connector_job ADDRESS JARS FOLDER COUNT``. JARS is a folder. The program prints the
records that it read as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.spark.conftest import SETTINGS

TOPIC, COPIES = "flights", "copies"


class Connector:
    """Spark's connector at one address."""

    def __init__(self, spark: Any, address: str, folder: Path) -> None:
        self._spark = spark
        self._address = {"kafka.bootstrap.servers": address}
        self._folder = folder

    def write(self, first: int, count: int) -> None:
        """Write a batch of numbers as records with keys and headers."""
        header = "array(named_struct('key', 'number', 'value', cast(string(id) as binary))) headers"
        rows = self._spark.range(first, first + count).selectExpr("string(id) key", "string(id) value", header)
        rows.write.format("kafka").options(**self._address, topic=TOPIC, includeHeaders="true").save()

    def read(self, topic: str, **options: str) -> list[int]:
        """Return the numbers of a topic, read as a batch."""
        frame = self._spark.read.format("kafka").options(**self._address, subscribe=topic, **options).load()
        return sorted(int(row.value) for row in frame.select("value").collect())

    def headers(self) -> list[str]:
        """Return the header of each record."""
        options = {**self._address, "subscribe": TOPIC, "includeHeaders": "true"}
        frame = self._spark.read.format("kafka").options(**options).load().selectExpr("headers[0].value header")
        return sorted({str(int(row.header)) for row in frame.collect()}, key=int)

    def copy(self) -> list[int]:
        """Copy all records to another topic with a stream, in small steps. Return the rows of each step."""
        options = {**self._address, "subscribe": TOPIC, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "150"}
        stream = self._spark.readStream.format("kafka").options(**options).load().select("key", "value")
        writer = stream.writeStream.format("kafka").options(**self._address, topic=COPIES)
        query = writer.option("checkpointLocation", str(self._folder)).trigger(availableNow=True).start()
        query.awaitTermination()
        return [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]


def main() -> None:
    address, jars, folder, count = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    builder = SparkSession.builder.master("local[2]").appName("connector")
    for name, value in {**SETTINGS, "spark.jars": ",".join(map(str, sorted(jars.glob("*.jar"))))}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    connector = Connector(spark, address, folder)
    connector.write(0, count)
    told: dict[str, Any] = {"read": connector.read(TOPIC), "headers": connector.headers(), "steps": connector.copy()}
    told["from 10 on"] = connector.read(TOPIC, startingOffsets=json.dumps({TOPIC: {"0": 10, "1": 10, "2": 10}}))
    connector.write(count, count)
    told["steps after a restart"] = connector.copy()
    told["copies"] = connector.read(COPIES)
    print(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main()
