# SPDX-License-Identifier: Apache-2.0
"""``format("shmaccum")``: Spark asks this class for schemas, readers and writers, on the driver's host."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from shmaccum.exceptions import InvalidArgumentError
from shmaccum.spark.arena_batches import ArenaReader
from shmaccum.spark.columns import source_schema
from shmaccum.spark.exactly_once import ExactlyOnceBatchWriter, ExactlyOnceStreamWriter
from shmaccum.spark.readers import BatchReader, StreamReader
from shmaccum.spark.settings import sink_settings, source_options
from shmaccum.spark.writers import BatchWriter, SinkPlan, StreamWriter


class ShmaccumDataSource(DataSource):
    """Sink into the arena of each node, and source over segment logs."""

    @classmethod
    def name(cls) -> str:
        """The name that a user gives to ``format(...)``."""
        return "shmaccum"

    # --- source

    def schema(self) -> StructType:
        """The schema of the source; headers are a column only when they are asked for.

        Raises:
            InvalidArgumentError: options are wrong.
        """
        options = source_options(dict(self.options))
        return source_schema(has_headers=options.include_headers, has_batches=options.include_batches)

    def reader(self, schema: StructType) -> BatchReader | ArenaReader:
        """The reader of a batch query, over a log or an arena.

        Raises:
            InvalidArgumentError: options are wrong, or the user gave a schema.
        """
        self._check_schema(schema)
        options = source_options(dict(self.options))
        return BatchReader(options) if options.arena is None else ArenaReader(options)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """The reader of a streaming query.

        Raises:
            InvalidArgumentError: as `reader`.
        """
        self._check_schema(schema)
        options = source_options(dict(self.options))
        if options.arena is not None:
            raise InvalidArgumentError(
                "an arena cannot be streamed: read it once with spark.read, or stream from the log that its sink writes"
            )
        return StreamReader(options)

    def _check_schema(self, schema: StructType) -> None:
        own = self.schema()
        if schema != own:
            raise InvalidArgumentError(f"the source has a schema of its own, {own.simpleString()}: leave .schema() out")

    # --- sink

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter | ExactlyOnceBatchWriter:
        """The writer of a batch job.

        Raises:
            InvalidArgumentError: options or columns are wrong, or the mode is "overwrite".
        """
        if overwrite:
            raise InvalidArgumentError(
                'records that were sent cannot be overwritten: say .mode("append"), or send to another topic'
            )
        plan = SinkPlan.of(sink_settings(dict(self.options)), schema)
        return ExactlyOnceBatchWriter(plan) if plan.settings.is_exactly_once else BatchWriter(plan)

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002
    ) -> StreamWriter | ExactlyOnceStreamWriter:
        """The writer of one micro-batch. In the output mode "complete" each appends the whole result, as in Spark.

        Raises:
            InvalidArgumentError: options or columns are wrong.
        """
        plan = SinkPlan.of(sink_settings(dict(self.options)), schema)
        return ExactlyOnceStreamWriter(plan) if plan.settings.is_exactly_once else StreamWriter(plan)
