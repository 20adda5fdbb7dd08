# SPDX-License-Identifier: Apache-2.0
"""The options of ``consume`` and ``tail``, and the output of consumed records."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import click

from shmaccum.cli.group import assignments
from shmaccum.cli.log_cat import Piece, RecordFormat
from shmaccum.cli.progress import PROGRESS_INTERVAL_S, ProgressLine
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.common.units import format_count, format_size
from shmaccum.config import ConsumerOptions
from shmaccum.log.consumer import Consumer, ConsumerRecord
from shmaccum.log.files import LogRecord

FORMATS = (
    "FORMAT is as in kcat: %s value, %S value size, %R value size as four bytes, %k key, %K key size, "
    "%T timestamp, %h headers, %t topic, %p partition, %o offset, %% a percent sign, and escapes such as \\n. "
    "Exit codes: 0 done, 2 failed, 130 Ctrl-C."
)
OPTIONS = (
    click.option("-c", "--count", type=click.IntRange(min=1), metavar="N", help="Exit after N records."),
    click.option("-e", "--exit", "is_ending", is_flag=True, help="Exit at the end of the log instead of waiting."),
    click.option("-f", "--format", "format_text", metavar="FORMAT", help="The output format of a record; see below."),
    click.option("-J", "--json", "is_json", is_flag=True, help="Write records as lines of JSON with kcat's keys."),
    click.option("-D", "--delimiter", default=r"\n", show_default=True, metavar="TEXT", help="The end of each record."),
    click.option("-K", "--key-delimiter", metavar="TEXT", help="Write each key, then TEXT, before the value."),
    click.option("-X", "options", multiple=True, metavar="OPTION=VALUE", help="A consumer option; repeatable."),
)
"""The options of both commands. All but -X are passed as one `Output`."""
CONVERTING = ("key_deserializer", "value_deserializer")


def record_output_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `OPTIONS` to a command. The command receives them as `output` and `given`."""

    def command(count: int | None, is_ending: bool, options: tuple[str, ...], **others: Any) -> None:
        record_format = RecordFormat(
            **{name: others.pop(name) for name in ("is_json", "format_text", "delimiter", "key_delimiter")}
        )
        given = consumer_options(options, others.get("group"))
        function(output=Output(record_format.piece(), count, is_ending=is_ending), given=given, **others)

    command.__doc__ = function.__doc__
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def consumer_options(texts: Sequence[str], group: str | None) -> dict[str, str]:
    """Return the options of ``-X`` after checking them.

    Args:
        texts: the options as ``name=value``.
        group: the group of ``--group``, or None.

    Raises:
        InvalidArgumentError: an option is unknown or has a wrong value.
        click.UsageError: the command sets this option itself.
    """
    given = assignments(texts)
    if any(name.replace(".", "_") == "group_id" for name in given):
        raise click.UsageError("set the group with --group of shmaccum consume")
    parsed = ConsumerOptions.parse(given if group is None else {**given, "group_id": group})
    if any(getattr(parsed, name) is not None for name in CONVERTING):
        raise click.UsageError("deserializers do not apply here: choose the output with --format or --json")
    return given


@dataclass
class _Tally:
    """The number and size of the records written."""

    records: int = 0
    size: int = 0

    def __str__(self) -> str:
        return f"{format_count(self.records, 'record')} ({format_size(self.size)})"


@final
class Output:
    """Writes records to standard output. Shows progress if standard error is a terminal and standard output is not.

    Args:
        piece: formats one record.
        count: the most records to write. If None, there is no limit.
        is_ending: whether to stop at the end of the log.
    """

    def __init__(self, piece: Piece, count: int | None, *, is_ending: bool) -> None:
        self._piece = piece
        self._left = count
        self._is_ending = is_ending
        self._tally = _Tally()
        self._progress = ProgressLine(self._sentence, is_shown=sys.stderr.isatty() and not sys.stdout.isatty())

    def _sentence(self, elapsed_s: float) -> str:
        return f"{self._tally}, {self._tally.records / max(elapsed_s, 1e-9):,.0f} records/s"

    @property
    def is_full(self) -> bool:
        """Whether the requested number of records was written."""
        return self._left is not None and self._left <= 0

    def write(self, found: Iterable[tuple[TopicPartition, ConsumerRecord]]) -> None:
        """Writes records until the requested count is reached."""
        plain = [(place, LogRecord(one.offset, one.timestamp, one.key, one.value, one.headers)) for place, one in found]
        texts = [self._piece(place, record) for place, record in plain[: self._left]]
        sys.stdout.buffer.write(b"".join(texts))
        sys.stdout.buffer.flush()
        self._left = None if self._left is None else self._left - len(texts)
        self._tally.records += len(texts)
        self._tally.size += sum(map(len, texts))
        self._progress.show()

    def follow(self, consumer: Consumer, *, is_committing: bool = False) -> None:
        """Writes the records of a consumer. A record is committed only after it was written."""
        try:
            with self._progress:
                while not self.is_full and self._poll(consumer, is_committing=is_committing):
                    pass
        finally:
            if self._progress.is_shown:
                click.echo(f"shmaccum: {self._tally} written", err=True)

    def _poll(self, consumer: Consumer, *, is_committing: bool) -> bool:
        """Polls once. Returns False if the end of the log was reached and the command should exit there."""
        longest_ms = PROGRESS_INTERVAL_S * 1000 if self._progress.is_shown else float("inf")
        limit = consumer.options.max_poll_records
        found = consumer.poll(
            0 if self._is_ending else longest_ms, limit if self._left is None else min(limit, self._left)
        )
        self.write((place, record) for place, records in found.items() for record in records)
        if found and is_committing:
            consumer.commit()
        return bool(found) or not self._is_ending
