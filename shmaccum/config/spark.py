# SPDX-License-Identifier: Apache-2.0
"""Options of the Spark data source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shmaccum.config.option import LONG_MAX, boolean, choice, count, text
from shmaccum.config.table import Options


@dataclass(frozen=True, kw_only=True)
class SparkSinkOptions(Options):
    """What the sink of the Spark data source takes, beside the options of everything it starts."""

    scope = "Spark sink"
    place = 'df.write.format("shmaccum").option'

    arena: str | None = text(
        None,
        "Name or path of the arena on each node; one that is not there is created. None with exactly_once.",
        unset="required",
    )
    topic: str | None = text(None, "The topic of all rows, whatever the column topic says.", unset="column")
    sink: str | None = text(
        None, "Where a sender that is started delivers: kafka:HOST:PORT or log:DIR.", unset="required"
    )
    sender: str = choice(
        "auto",
        ("auto", "external"),
        "auto: a node without a sender gets one when a task begins; external: somebody else runs it.",
    )
    delivery_guarantee: str = choice(
        "at_least_once",
        ("at_least_once", "exactly_once"),
        "at_least_once: what tasks deliver stays, also of those that are tried again; exactly_once (log:DIR only): "
        "tasks stage, and what the job or micro-batch commits comes into the log once.",
    )
    transaction_series: str | None = text(
        None,
        "With exactly_once in foreachBatch: a name of the query's own. Batches of this name and transactionNumber are "
        "written once, however often they come.",
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
    """What the source of the Spark data source takes: names and defaults are those of Spark's Kafka connector."""

    scope = "Spark source"
    place = 'spark.read.format("shmaccum").option'

    path: str | None = text(None, "The log directory, as every node sees it.", unset="none")
    arena: str | None = text(
        None,
        "Instead of a log: name or path of an arena, whose waiting records are looked at (batches only).",
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
        "error", ("error", "latest"), "What a partition does that has no record of the starting time or later."
    )
    max_offsets_per_trigger: int | None = count(
        None, "How many records a micro-batch may have.", maximum=LONG_MAX, unset="none"
    )
    min_partitions: int | None = count(
        None, "Into how many tasks at least a read is cut, as far as its records allow.", unset="none"
    )
    include_headers: bool = boolean(False, "Adds the column headers.")
    include_batches: bool = boolean(
        False, "Of an arena: adds columns that tell of each record's batch, and damaged batches are rows, too."
    )
    fail_on_data_loss: bool = boolean(
        True, "Fail when records were retained away or are damaged, instead of reading what is there."
    )
