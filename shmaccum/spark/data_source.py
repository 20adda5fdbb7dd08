# SPDX-License-Identifier: Apache-2.0
"""``format("shmaccum")``: the class that gives Spark schemas, readers and writers, on the driver."""

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
    """A sink into the arena of each node, and a source over segment logs."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format(...)``."""
        return "shmaccum"

    # --- source

    def schema(self) -> StructType:
        """Returns the schema of the source. Headers are included only on request.

        Raises:
            InvalidArgumentError: an option is wrong.
        """
        options = source_options(dict(self.options))
        return source_schema(has_headers=options.include_headers, has_batches=options.include_batches)

    def reader(self, schema: StructType) -> BatchReader | ArenaReader:
        """Returns the reader of a batch query, over a log or an arena.

        Raises:
            InvalidArgumentError: an option is wrong, or the user set a schema.
        """
        self._check_schema(schema)
        options = source_options(dict(self.options))
        return BatchReader(options) if options.arena is None else ArenaReader(options)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """Returns the reader of a streaming query.

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
            raise InvalidArgumentError(f"the source has a fixed schema, {own.simpleString()}: omit .schema()")

    # --- sink

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter | ExactlyOnceBatchWriter:
        """Returns the writer of a batch job.

        Raises:
            InvalidArgumentError: an option or column is wrong, or the mode is "overwrite".
        """
        if overwrite:
            raise InvalidArgumentError(
                'sent records cannot be overwritten: use .mode("append"), or send to another topic'
            )
        plan = SinkPlan.of(sink_settings(dict(self.options)), schema)
        return ExactlyOnceBatchWriter(plan) if plan.settings.is_exactly_once else BatchWriter(plan)

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002
    ) -> StreamWriter | ExactlyOnceStreamWriter:
        """Returns the writer of a micro-batch. As in Spark, each one appends the whole result in output mode
        "complete".

        Raises:
            InvalidArgumentError: an option or column is wrong.
        """
        plan = SinkPlan.of(sink_settings(dict(self.options)), schema)
        return ExactlyOnceStreamWriter(plan) if plan.settings.is_exactly_once else StreamWriter(plan)
