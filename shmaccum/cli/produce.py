# SPDX-License-Identifier: Apache-2.0
"""``shmaccum produce``: send lines as records, like ``kcat -P``.

Lines are sent block by block as they are read. At the end, the command waits for the results, prints how many records
were delivered, and exits with 0 only if all were. A record that was sent is in the arena: if it is not delivered yet, a
sender can still deliver it later.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from shmaccum.arena import Arena
from shmaccum.arena.removal import has_lost_its_name
from shmaccum.cli.group import (
    EXIT_BAD,
    EXIT_INTERRUPTED,
    Command,
    arena_argument,
    assignments,
    mode_option,
    owning_group_option,
    sentence_of,
)
from shmaccum.cli.lines import LineFormat, LineReader, parse_delimiter
from shmaccum.cli.progress import PROGRESS_INTERVAL_S, ProgressLine
from shmaccum.common import clock
from shmaccum.common.units import format_count, format_size, parse_duration_ms
from shmaccum.config import ProducerOptions
from shmaccum.exceptions import ArenaRemovedError, FlushTimeoutError, InvalidArgumentError, ShmaccumError
from shmaccum.producer import Producer
from shmaccum.producer.deliveries import Deliveries

Header = tuple[str, bytes | None]


# --- records and their results


@dataclass
class Tally:
    """The number of records that were sent, delivered and failed."""

    sent: int = 0
    size: int = 0
    delivered: int = 0
    failed: int = 0
    unknown: int = 0
    reason: str | None = None
    """The error of the first record that failed."""
    location: str = "still in the arena"
    """A phrase for the records without a result: where they are, and whether they will be delivered."""
    _open: deque[Deliveries] = field(default_factory=deque)

    def add(self, deliveries: Deliveries, size: int) -> None:
        self.sent += len(deliveries)
        self.size += size
        self._open.append(deliveries)
        self.settle()

    def settle(self) -> None:
        """Counts available results, oldest first. The arena keeps results only for a limited time."""
        while self._open and self._open[0].is_done:
            self._count_results(self._open.popleft())

    def _count_results(self, deliveries: Deliveries) -> None:
        counts = deliveries.counts
        self.delivered += counts.succeeded
        self.failed += counts.failed
        self.unknown += counts.lost
        if self.reason is None and (error := deliveries.exception) is not None:
            self.reason = sentence_of(error)

    @property
    def pending(self) -> int:
        """The number of records that were sent and have no result yet."""
        return self.sent - self.delivered - self.failed - self.unknown

    @property
    def is_well(self) -> bool:
        """Whether every record that was sent was delivered."""
        return self.delivered == self.sent

    def progress(self, elapsed_s: float) -> str:
        """Returns the text of the progress line."""
        rate = self.sent / max(elapsed_s, 1e-9)
        return f"{self.sent:,} sent, {self.delivered:,} delivered, {rate:,.0f} records/s"

    def __str__(self) -> str:
        parts = [
            f"{format_count(self.sent, 'record')} sent ({format_size(self.size)})",
            f"{self.delivered:,} delivered",
        ]
        for count, what in (
            (self.failed, "failed"),
            (self.unknown, "with an unknown result, because it was overwritten before it was read"),
            (self.pending, self.location),
        ):
            if count:
                parts.append(f"{count:,} {what}")
        text = ", ".join(parts)
        return f"{text} ({self.reason})" if self.reason else text


@dataclass
class Job:
    """One run of the command: the target and the form of its records."""

    producer: Producer
    topic: str
    partition: int | None
    headers: list[Header] | None
    line_format: LineFormat
    count_max: int | None
    has_tee: bool
    tally: Tally
    progress: ProgressLine

    @property
    def is_complete(self) -> bool:
        """Whether the requested number of records was sent."""
        return self.count_max is not None and self.tally.sent >= self.count_max

    def idle(self) -> None:
        self.tally.settle()
        self.progress.show()

    def send(self, lines: Sequence[bytes]) -> None:
        """Sends lines as records, until the requested number was sent."""
        if self.count_max is not None:
            lines = lines[: self.count_max - self.tally.sent]
        values, keys = self.line_format.parse(lines)
        headers = None if self.headers is None else [self.headers] * len(lines)
        size = sum(map(len, lines))
        try:
            deliveries = self.producer.send_many(
                self.topic, values, keys=keys, headers=headers, partition=self.partition
            )
        except BaseException as error:  # also Ctrl-C: count the records that were already appended
            if appended := getattr(error, "appended", None):
                self.tally.add(appended, size * len(appended) // len(lines))
            raise
        self.tally.add(deliveries, size)
        if self.has_tee:
            sys.stdout.buffer.write(b"".join(line + self.line_format.delimiter for line in lines))
            sys.stdout.buffer.flush()
        self.progress.show()


# --- input


@contextlib.contextmanager
def _opened(path: Path | None) -> Iterator[tuple[int, str]]:
    """Yields the descriptor and name of a file, or of standard input if the path is None or ``-``."""
    if path is None or str(path) == "-":
        yield sys.stdin.fileno(), "stdin"
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor, str(path)
    finally:
        os.close(descriptor)


def _send_file(job: Job, path: Path | None, size_max: int) -> None:
    with _opened(path) as (descriptor, name):
        reader = LineReader(descriptor, name, job.line_format.delimiter, size_max, job.idle)
        for lines in reader.blocks():
            job.send(lines)
            if job.is_complete:
                return


def parse_header(text: str) -> Header:
    """Parses ``NAME=VALUE``. ``NAME`` alone is a header with a null value, as in kcat."""
    name, found, value = text.partition("=")
    if not name:
        raise InvalidArgumentError(f"{text!r} is not NAME=VALUE: write it like source=web")
    return name, os.fsencode(value) if found else None


# --- the end


def _wait(job: Job, timeout_s: float) -> None:
    """Waits for the results in short steps, and updates the progress line."""
    deadline = clock.monotonic() + timeout_s
    while (left_s := deadline - clock.monotonic()) > 0:
        with contextlib.suppress(FlushTimeoutError):
            with contextlib.suppress(ArenaRemovedError):  # no sender will deliver the remaining records
                job.producer.flush(min(left_s, PROGRESS_INTERVAL_S))
            break
        job.idle()
    job.tally.settle()
    job.tally.location = location(job.producer.arena)


def location(arena: Arena) -> str:
    """Returns a phrase that locates the records without a result and names their next step."""
    if arena.native.closing != "not" or has_lost_its_name(arena):
        return "in an arena that was removed: see the log of its sender"
    if arena.native.sender_is_alive:
        return "still in the arena: its sender will deliver them"
    return f"still in the arena, which has no sender: start one (shmaccum sender {arena.name} --sink ...)"


def _read(job: Job, files: Sequence[Path], size_max: int, timeout_s: float) -> int:
    """Sends the lines of the files and returns the exit code so far. An error before the first record is raised."""
    try:
        for path in files or (None,):
            if not job.is_complete:
                _send_file(job, path, size_max)
    except KeyboardInterrupt:
        click.echo(
            f"shmaccum: interrupted; waiting at most {timeout_s:g} s for the results of sent records (press Ctrl-C "
            "again to exit now)",
            err=True,
        )
        return EXIT_INTERRUPTED
    except (ShmaccumError, OSError) as error:
        if not job.tally.sent or isinstance(error, BrokenPipeError):
            raise
        click.echo(f"shmaccum: {sentence_of(error)}", err=True)
        return EXIT_BAD
    return 0


def _run(job: Job, files: Sequence[Path], size_max: int, timeout_s: float) -> int:
    with job.progress:
        code = _read(job, files, size_max, timeout_s)
        _wait(job, timeout_s)
    if not job.tally.is_well or sys.stderr.isatty():
        click.echo(f"shmaccum: {job.tally}", err=True)
    return code or (0 if job.tally.is_well else EXIT_BAD)


# --- the command


@click.command(
    "produce",
    cls=Command,
    epilog="Exit codes: 0 all records were delivered, 1 some records failed or are not delivered yet, 2 no record was "
    "sent. A sender delivers the records that are still in the arena. Delimiters may have escapes: \\n, \\t, \\0, "
    "\\x1e.",
)
@arena_argument
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("-t", "--topic", required=True, metavar="NAME", help="The topic of all records.")
@click.option(
    "-p",
    "--partition",
    type=click.IntRange(min=0),
    metavar="N",
    help="The partition of all records. If it does not exist yet, wait for it up to max_block_ms.",
)
@click.option("-D", "--delimiter", default=r"\n", show_default=True, metavar="TEXT", help="The end of each record.")
@click.option("-K", "--key-delimiter", metavar="TEXT", help="The text between key and value.")
@click.option("-k", "--key", metavar="TEXT", help="The key of records without one.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header of records; repeatable.")
@click.option("-Z", "--null", "is_empty_null", is_flag=True, help="Send empty keys and values as null.")
@click.option("-c", "--count", "count_max", type=click.IntRange(min=1), metavar="N", help="The most records to send.")
@click.option("-T", "--tee", "has_tee", is_flag=True, help="Also write the input to standard output.")
@click.option(
    "--timeout",
    default="60s",
    show_default=True,
    metavar="DURATION",
    help="The longest wait for results after the last record.",
)
@click.option("-X", "options", multiple=True, metavar="OPTION=VALUE", help="Set an option of the producer; repeatable.")
@mode_option
@owning_group_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    arena_name: str,
    files: tuple[Path, ...],
    arena_mode: int,
    arena_group: str | None,
    options: tuple[str, ...],
    timeout: str,
    delimiter: str,
    key_delimiter: str | None,
    key: str | None,
    is_empty_null: bool,
    headers: tuple[str, ...],
    **where: Any,
) -> None:
    """Send the lines of files, or of standard input, as records.

    Each line is a record. With -K, each line is a key and a value.
    """
    line_format = LineFormat(
        delimiter=parse_delimiter(delimiter),
        key_delimiter=None if key_delimiter is None else parse_delimiter(key_delimiter),
        key=None if key is None else os.fsencode(key),
        is_empty_null=is_empty_null,
    )
    timeout_s = parse_duration_ms(timeout) / 1000
    record_headers = [parse_header(header) for header in headers] or None
    tally = Tally()
    is_shown = sys.stderr.isatty() and not (sys.stdin.isatty() and not files)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="shmaccum: %(message)s")
    with Arena.attach(arena_name, mode=arena_mode, group=arena_group) as arena:
        given: dict[str, Any] = dict(assignments(options))
        ProducerOptions.parse(given)
        producer = Producer(arena, **given)
        job = Job(
            producer=producer,
            headers=record_headers,
            line_format=line_format,
            tally=tally,
            progress=ProgressLine(tally.progress, is_shown=is_shown),
            **where,
        )
        try:
            code = _run(job, files, arena.geometry["record_size_max"], timeout_s)
        finally:
            with contextlib.suppress(ArenaRemovedError):  # already logged
                producer.close(0)
    ctx.exit(code)
