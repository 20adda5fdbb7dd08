# SPDX-License-Identifier: Apache-2.0
"""``shmaccum tail``: the last records of a topic, then new records, like ``tail -f``."""

from __future__ import annotations

import heapq

import click

from shmaccum.cli.group import Command
from shmaccum.cli.log_place import directory_argument, partitions
from shmaccum.cli.record_output import FORMATS, Output, record_output_options
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.consumer import Consumer, ConsumerRecord
from shmaccum.log.files import LogReader, PartitionReader

Found = dict[TopicPartition, list[ConsumerRecord]]


def _read_to(consumer: Consumer, ends: dict[TopicPartition, int]) -> Found:
    """Returns all records up to these ends, and any later records that the same polls returned."""
    found: Found = {place: [] for place in ends}
    while any(consumer.position(place) < end for place, end in ends.items()):
        polled = consumer.poll()
        if not polled:
            break
        for place, records in polled.items():
            found[place] += records
    return found


def _write_last(consumer: Consumer, chosen: list[PartitionReader], count: int, output: Output) -> None:
    """Writes the last existing records, sorted by timestamp, and leaves the consumer after them."""
    ends = {partition.place: partition.log_end_offset for partition in chosen}
    consumer.assign(ends)
    for partition in chosen:
        consumer.seek(partition.place, max(ends[partition.place] - count, partition.log_start_offset))
    found = _read_to(consumer, ends)
    older = [[record for record in records if record.offset < ends[place]] for place, records in found.items()]
    newer = [record for place, records in found.items() for record in records if record.offset >= ends[place]]
    by_time = list(heapq.merge(*older, key=lambda record: record.timestamp))
    last = by_time[len(by_time) - min(count, len(by_time)) :]
    output.write((TopicPartition(record.topic, record.partition), record) for record in [*last, *newer])


@click.command("tail", cls=Command, epilog=FORMATS)
@directory_argument
@click.option("-t", "--topic", required=True, metavar="NAME", help="The topic.")
@click.option("-p", "--partition", type=click.IntRange(min=0), metavar="N", help="Only this partition.")
@click.option(
    "-n",
    "--lines",
    "last_count",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="N",
    help="Start with the last N records of all partitions, by timestamp.",
)
@record_output_options
def command(
    directory: str, topic: str, partition: int | None, last_count: int, output: Output, given: dict[str, str]
) -> None:
    """Write the last records of a topic to standard output, then new records as they arrive, until Ctrl-C."""
    chosen = partitions(LogReader(directory), topic, partition)
    with Consumer(directory, **given) as consumer:
        _write_last(consumer, chosen, last_count, output)
        output.follow(consumer)
