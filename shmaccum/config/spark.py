# SPDX-License-Identifier: Apache-2.0
"""Options of the Spark data source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shmaccum.config.option import INT_MAX, LONG_MAX, boolean, choice, count, duration_ms, text
from shmaccum.config.table import Options


@dataclass(frozen=True, kw_only=True)
class SparkSinkOptions(Options):
    """Options of the sink of the Spark data source. It also accepts the options of its senders and their sinks."""

    scope = "Spark sink"
    place = 'df.write.format("shmaccum").option'

    arena: str | None = text(
        None,
        "Name or path of the arena on each node. A missing arena is created. exactly_once needs no arena.",
        unset="required",
    )
    topic: str | None = text(None, "The topic of all rows. It overrides the column topic.", unset="column")
    sink: str | None = text(None, "The sink of the senders: kafka:HOST:PORT or log:DIR.", unset="required")
    sender: str = choice(
        "auto",
        ("auto", "external"),
        "auto: a task starts a sender on a node that has none. external: another program runs the sender.",
    )
    delivery_guarantee: str = choice(
        "at_least_once",
        ("at_least_once", "exactly_once"),
        "at_least_once: records of a retried task are delivered again. exactly_once: tasks stage their "
        "records, and the commit of the job or micro-batch puts them into the log, or into Kafka, once.",
    )
    staging_path: str | None = text(
        None,
        "With exactly_once to Kafka, the directory where tasks stage, accessible to the driver and all executors.",
        unset="beside the checkpoint",
    )
    commit_timeout_ms: int = duration_ms(
        "15min",
        "With exactly_once to Kafka, the broker aborts a transaction that takes longer. Kafka's limit is its "
        "transaction.max.timeout.ms, 15 minutes by default.",
        minimum=1000,
        maximum=INT_MAX,
    )
    transaction_series: str | None = text(
        None,
        "With exactly_once in foreachBatch, a name that only this query uses. A batch with this name and "
        "transactionNumber is written once, even if it is repeated.",
        unset="none",
    )
    transaction_number: int | None = count(
        None, "The batch id that foreachBatch was called with.", minimum=0, maximum=LONG_MAX, unset="none"
    )

    def contradictions(self) -> Iterator[str]:
        if (self.transaction_series is None) != (self.transaction_number is None):
            yield "transaction_series and transaction_number belong together: give both, or neither"
        if self.transaction_series is not None and self.delivery_guarantee != "exactly_once":
            yield "transaction_series has no effect with delivery_guarantee=at_least_once: set exactly_once"


@dataclass(frozen=True, kw_only=True)
class SparkSourceOptions(Options):
    """Options of the source of the Spark data source, with the names and defaults of Spark's Kafka connector."""

    scope = "Spark source"
    place = 'spark.read.format("shmaccum").option'

    path: str | None = text(None, "The path of the log directory on every node.", unset="none")
    arena: str | None = text(
        None,
        "Name or path of an arena whose waiting records are read instead of a log (batches only).",
        unset="none",
    )
    assign: str | None = text(None, 'Partitions, as JSON: {"flights": [0, 1]}.', unset="none")
    subscribe: str | None = text(None, "Topics, separated by commas.", unset="none")
    subscribe_pattern: str | None = text(None, "A regular expression that matches whole topics.", unset="none")
    starting_timestamp: int | None = count(
        None, "Start at the first record at or after this time, in milliseconds.", maximum=LONG_MAX, unset="none"
    )
    starting_offsets_by_timestamp: str | None = text(
        None, 'The same for each partition, as JSON: {"flights": {"0": 1700000000000}}.', unset="none"
    )
    starting_offsets: str | None = text(
        None,
        'earliest, latest (streams only), or JSON: {"flights": {"0": 4711, "1": -2}} (-2 is earliest, -1 is latest). '
        "auto: earliest for a batch, latest for a stream.",
        unset="auto",
    )
    ending_timestamp: int | None = count(
        None, "End before the first record at or after this time (batches only).", maximum=LONG_MAX, unset="none"
    )
    ending_offsets_by_timestamp: str | None = text(
        None, "The same for each partition, as JSON (batches only).", unset="none"
    )
    ending_offsets: str | None = text(None, "latest, or JSON as above (batches only).", unset="latest")
    starting_offsets_by_timestamp_strategy: str = choice(
        "error",
        ("error", "latest"),
        "For a partition without a record at or after the starting time: error fails, latest starts at its end.",
    )
    max_offsets_per_trigger: int | None = count(
        None, "The maximum number of records of a micro-batch.", maximum=LONG_MAX, unset="none"
    )
    group_id: str | None = text(
        None,
        "A consumer group of the log (streams only). A query without a checkpoint starts at the group's committed "
        "offsets. Each micro-batch is committed when the next one begins. A partition without a committed offset "
        "starts according to startingOffsets.",
        unset="none",
    )
    min_partitions: int | None = count(
        None, "The minimum number of tasks of a read, if it has that many records.", unset="none"
    )
    include_headers: bool = boolean(False, "Adds the column headers.")
    include_batches: bool = boolean(
        False, "With an arena, adds columns about each record's batch, and a row for each damaged batch."
    )
    fail_on_data_loss: bool = boolean(
        True,
        "If true, a read fails if records were deleted by retention or are damaged. If false, it reads the rest.",
    )
