# SPDX-License-Identifier: Apache-2.0
"""``format("shmaccum")``: what Spark asks for schemas, readers and writers. Runs on the driver's host."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from shmaccum.exceptions import InvalidArgumentError
from shmaccum.spark.columns import source_schema
from shmaccum.spark.readers import BatchReader, StreamReader
from shmaccum.spark.settings import sink_settings, source_options
from shmaccum.spark.writers import BatchWriter, SinkPlan, StreamWriter


class ShmaccumDataSource(DataSource):
    """Sink into the arena of each node, and source over segment logs."""

    @classmethod
    def name(cls) -> str:
        """What stands in ``format(...)``."""
        return "shmaccum"

    # --- source

    def schema(self) -> StructType:
        """Of the source; headers are a column only when they are asked for.

        Raises:
            InvalidArgumentError: options are wrong.
        """
        return source_schema(has_headers=source_options(dict(self.options)).include_headers)

    def reader(self, schema: StructType) -> BatchReader:
        """Of a batch.

        Raises:
            InvalidArgumentError: options are wrong, or the user gave a schema.
        """
        self._check_schema(schema)
        return BatchReader(source_options(dict(self.options)))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """Of a query.

        Raises:
            InvalidArgumentError: as `reader`.
        """
        self._check_schema(schema)
        return StreamReader(source_options(dict(self.options)))

    def _check_schema(self, schema: StructType) -> None:
        own = self.schema()
        if schema != own:
            raise InvalidArgumentError(f"the source has a schema of its own, {own.simpleString()}: leave .schema() out")

    # --- sink

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Of a batch job.

        Raises:
            InvalidArgumentError: options or columns are wrong, or the mode is "overwrite".
        """
        if overwrite:
            raise InvalidArgumentError(
                'records that were sent cannot be overwritten: say .mode("append"), or send to another topic'
            )
        return BatchWriter(SinkPlan.of(sink_settings(dict(self.options)), schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802, ARG002 - Spark's name
        """Of one micro-batch. In the output mode "complete" each appends the whole result, as Spark's sink for Kafka.

        Raises:
            InvalidArgumentError: options or columns are wrong.
        """
        return StreamWriter(SinkPlan.of(sink_settings(dict(self.options)), schema))
