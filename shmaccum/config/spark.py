# SPDX-License-Identifier: Apache-2.0
"""Options of the Spark data source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shmaccum.config.option import INT_MAX, LONG_MAX, boolean, choice, count, duration_ms, text
from shmaccum.config.table import Options


@dataclass(frozen=True, kw_only=True)
class SparkSinkOptions(Options):
    """Options of the sink of the Spark data source. It also takes those of the senders and sinks that it starts."""

    scope = "Spark sink"
    place = 'df.write.format("shmaccum").option'

    arena: str | None = text(
        None,
        "Name or path of the arena on each node. A missing arena is created. exactly_once needs none.",
        unset="required",
    )
    topic: str | None = text(None, "The topic of all rows, whatever the column topic says.", unset="column")
    sink: str | None = text(None, "The sink of a sender that is started: kafka:HOST:PORT or log:DIR.", unset="required")
    sender: str = choice(
        "auto",
        ("auto", "external"),
        "auto: a task starts a sender on a node that has none; external: another program runs the sender.",
    )
    delivery_guarantee: str = choice(
        "at_least_once",
        ("at_least_once", "exactly_once"),
        "at_least_once: records of a task that is tried again are delivered again. exactly_once: tasks stage their "
        "records, and the commit of the job or micro-batch puts them into the log, or into Kafka, once.",
    )
    staging_path: str | None = text(
        None,
        "With exactly_once to Kafka: a directory that the driver and all executors see, in which tasks stage.",
        unset="beside the checkpoint",
    )
    commit_timeout_ms: int = duration_ms(
        "15min",
        "With exactly_once to Kafka: the broker aborts a transaction that takes longer. Kafka allows 15 minutes, "
        "unless its transaction.max.timeout.ms says otherwise.",
        minimum=1000,
        maximum=INT_MAX,
    )
    transaction_series: str | None = text(
        None,
        "With exactly_once in foreachBatch: a name that only this query uses. A batch of this name and "
        "transactionNumber is written once, also when it comes again.",
        unset="none",
    )
    transaction_number: int | None = count(
        None, "The id of the batch that foreachBatch was called with.", minimum=0, maximum=LONG_MAX, unset="none"
    )

    def contradictions(self) -> Iterator[str]:
        if (self.transaction_series is None) != (self.transaction_number is None):
            yield "transaction_series and transaction_number belong together: give both, or neither"
        if self.transaction_series is not None and self.delivery_guarantee != "exactly_once":
            yield "transaction_series has no effect with delivery_guarantee=at_least_once: say exactly_once"


@dataclass(frozen=True, kw_only=True)
class SparkSourceOptions(Options):
    """Options of the source of the Spark data source, with the names and defaults of Spark's Kafka connector."""

    scope = "Spark source"
    place = 'spark.read.format("shmaccum").option'

    path: str | None = text(None, "The log directory, as every node sees it.", unset="none")
    arena: str | None = text(
        None,
        "Name or path of an arena, to read its waiting records instead of a log (batches only).",
        unset="none",
    )
    assign: str | None = text(None, 'Partitions, as JSON: {"flights": [0, 1]}.', unset="none")
    subscribe: str | None = text(None, "Topics, separated by commas.", unset="none")
    subscribe_pattern: str | None = text(None, "A regular expression that matches whole topics.", unset="none")
    starting_timestamp: int | None = count(
        None, "Start at the first record of this time or later, in milliseconds.", maximum=LONG_MAX, unset="none"
    )
    starting_offsets_by_timestamp: str | None = text(
        None, 'The same for each partition, as JSON: {"flights": {"0": 1700000000000}}.', unset="none"
    )
    starting_offsets: str | None = text(
        None,
        'earliest, latest (streams only), or JSON: {"flights": {"0": 4711, "1": -2}}, -2 for earliest, -1 for latest. '
        "auto: earliest for a batch, latest for a stream.",
        unset="auto",
    )
    ending_timestamp: int | None = count(
        None, "End before the first record of this time or later (batches only).", maximum=LONG_MAX, unset="none"
    )
    ending_offsets_by_timestamp: str | None = text(
        None, "The same for each partition, as JSON (batches only).", unset="none"
    )
    ending_offsets: str | None = text(None, "latest, or JSON as above (batches only).", unset="latest")
    starting_offsets_by_timestamp_strategy: str = choice(
        "error",
        ("error", "latest"),
        "error: a partition without a record of the starting time or later is an error; latest: it starts at its end.",
    )
    max_offsets_per_trigger: int | None = count(
        None, "The most records of a micro-batch.", maximum=LONG_MAX, unset="none"
    )
    group_id: str | None = text(
        None,
        "A consumer group of the log (streams only). A query without a checkpoint starts at its committed offsets, and "
        "each micro-batch is committed for it when the next one begins. A partition without a commit starts as "
        "startingOffsets says.",
        unset="none",
    )
    min_partitions: int | None = count(
        None, "A read is cut into at least this many tasks, as far as its records allow.", unset="none"
    )
    include_headers: bool = boolean(False, "Adds the column headers.")
    include_batches: bool = boolean(
        False, "For an arena: adds columns about each record's batch, and a row for each damaged batch."
    )
    fail_on_data_loss: bool = boolean(
        True, "The read fails when records were deleted by retention or are damaged. false: it reads the others."
    )
