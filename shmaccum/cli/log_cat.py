# SPDX-License-Identifier: Apache-2.0
"""``shmaccum log cat``: print records as text, like ``kcat -C``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import click

from shmaccum.cli.group import EXIT_BAD, Command, sentence_of
from shmaccum.cli.lines import parse_delimiter
from shmaccum.cli.log_place import directory_argument, offset_option, partitions, place_options
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.config.consumer import READ_COMMITTED, READ_UNCOMMITTED
from shmaccum.exceptions import CorruptLogError, InvalidArgumentError
from shmaccum.log.files import Cursor, LogReader, LogRecord, PartitionReader
from shmaccum.log.files.reader import IsolationLevel, OnCorrupt
from shmaccum.log.files.start import Start

FOLLOW_INTERVAL_S = 0.05
Piece = Callable[[TopicPartition, LogRecord], bytes]
Found = Iterator[tuple[TopicPartition, list[LogRecord]]]

# --- formats


def _size(part: bytes | None) -> int:
    return -1 if part is None else len(part)


def _headers(record: LogRecord) -> bytes:
    return b",".join(name.encode() + b"=" + (b"NULL" if value is None else value) for name, value in record.headers)


PIECES: dict[str, Piece] = {
    "s": lambda _place, record: record.value or b"",
    "S": lambda _place, record: b"%d" % _size(record.value),
    "R": lambda _place, record: _size(record.value).to_bytes(4, "big", signed=True),
    "k": lambda _place, record: record.key or b"",
    "K": lambda _place, record: b"%d" % _size(record.key),
    "T": lambda _place, record: b"%d" % record.timestamp_ms,
    "h": lambda _place, record: _headers(record),
    "t": lambda place, _record: place.topic.encode(),
    "p": lambda place, _record: b"%d" % place.partition,
    "o": lambda _place, record: b"%d" % record.offset,
    "%": lambda _place, _record: b"%",
}
"""The format characters after a %, as in kcat."""


def _literal(text: str) -> list[Piece]:
    written = parse_delimiter(text) if text else b""
    return [lambda _place, _record: written] if text else []


def compile_format(text: str) -> Piece:
    r"""Return a function that formats a record by a format such as ``%k: %s\n``.

    Raises:
        InvalidArgumentError: a character after a % is unknown.
    """
    pieces: list[Piece] = []
    while text:
        literal, _, text = text.partition("%")
        pieces += _literal(literal)
        if not _:
            break
        letter, text = text[:1], text[1:]
        if letter not in PIECES:
            known = " ".join(f"%{each}" for each in PIECES)
            raise InvalidArgumentError(f"%{letter} is unknown in a format: use one of {known}")
        pieces.append(PIECES[letter])
    return lambda place, record: b"".join([piece(place, record) for piece in pieces])


def _text(part: bytes | None) -> str | None:
    return None if part is None else part.decode("utf-8", "backslashreplace")


def as_json(place: TopicPartition, record: LogRecord) -> bytes:
    """Return a line of JSON with kcat's keys. Headers are a flat list of names and values."""
    document = {
        "topic": place.topic,
        "partition": place.partition,
        "offset": record.offset,
        "tstype": "create",
        "ts": record.timestamp_ms,
        "headers": [part for name, value in record.headers for part in (name, _text(value))],
        "key": _text(record.key),
        "payload": _text(record.value),
    }
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


@dataclass(frozen=True)
class RecordFormat:
    """The output form of records: JSON, a format, or value and delimiter, with the key first if requested."""

    is_json: bool
    format_text: str | None
    delimiter: str
    key_delimiter: str | None

    def piece(self) -> Piece:
        """Return the function that formats one record."""
        if self.is_json:
            return as_json
        if self.format_text is not None:
            return compile_format(self.format_text)
        key = "" if self.key_delimiter is None else f"%k{self.key_delimiter.replace('%', '%%')}"
        return compile_format(f"{key}%s{self.delimiter.replace('%', '%%')}")


# --- reading


def _records(place: TopicPartition, cursor: Cursor) -> Found:
    """Yield the records from the cursor's offset on, batch by batch."""
    start = cursor.offset
    for batch in cursor.poll():
        if not batch.is_control:
            yield place, [record for record in batch.records() if record.offset >= start]


def _follow(cursors: Sequence[tuple[TopicPartition, Cursor]]) -> Found:
    """Yield new records of all partitions in turn, forever."""
    while True:
        has_new = False
        for place, cursor in cursors:
            for found in _records(place, cursor):
                has_new = True
                yield found
        if not has_new:
            time.sleep(FOLLOW_INTERVAL_S)


def read(chosen: Sequence[PartitionReader], start: Start, *, is_following: bool) -> Found:
    """Yield the records of one partition after another. If `is_following`, then poll all in turn for new records."""
    with ExitStack() as stack:
        cursors = []
        for partition in chosen:
            cursor = stack.enter_context(closing(partition.cursor(start.of(partition))))
            cursors.append((partition.place, cursor))
        if is_following:
            yield from _follow(cursors)
        for place, cursor in cursors:
            yield from _records(place, cursor)


def _write(found: Found, piece: Piece, count: int | None) -> None:
    """Write at most `count` records."""
    output = sys.stdout.buffer
    left = count
    for place, records in found:
        shown = records if left is None else records[:left]
        output.write(b"".join([piece(place, record) for record in shown]))
        output.flush()
        if left is not None:
            left -= len(shown)
            if left <= 0:
                return


def _warn_of_damage(chosen: Sequence[PartitionReader]) -> bool:
    damages = [damage for partition in chosen for damage in partition.skipped]
    for damage in damages:
        click.echo(f"shmaccum: skipped: {sentence_of(damage)}", err=True)
    return bool(damages)


@click.command(
    "cat",
    cls=Command,
    epilog="FORMAT is as in kcat: %s value, %S value size, %R value size as four bytes, %k key, %K key "
    "size, %T timestamp, %h headers, %t topic, %p partition, %o offset, %% a percent sign, and escapes such as \\n. "
    "Exit codes: 0 all was read, 1 damage was found (the message names segment and position), 2 the log could not be "
    "read.",
)
@directory_argument
@place_options
@offset_option("start_text")
@click.option("-c", "--count", type=click.IntRange(min=1), metavar="N", help="The most records to write.")
@click.option("-f", "--format", "format_text", metavar="FORMAT", help="The output format of a record; see below.")
@click.option("-J", "--json", "is_json", is_flag=True, help="Write records as lines of JSON with kcat's keys.")
@click.option("-D", "--delimiter", default=r"\n", show_default=True, metavar="TEXT", help="The end of each record.")
@click.option("-K", "--key-delimiter", metavar="TEXT", help="Write each key, then TEXT, before the value.")
@click.option("-F", "--follow", "is_following", is_flag=True, help="Wait for new records, until Ctrl-C.")
@click.option(
    "--isolation-level",
    type=click.Choice([READ_UNCOMMITTED, READ_COMMITTED]),
    default=READ_UNCOMMITTED,
    show_default=True,
    help="read_committed omits records of aborted and open transactions.",
)
@click.option("--skip-corrupt", is_flag=True, help="Skip damaged batches, and list them at the end.")
@click.pass_context
def cat(
    ctx: click.Context,
    /,
    directory: str,
    topic: str | None,
    partition: int | None,
    start_text: str,
    count: int | None,
    is_following: bool,
    isolation_level: IsolationLevel,
    skip_corrupt: bool,
    **record_format: Any,
) -> None:
    """Write records to standard output, partition by partition, in offset order."""
    piece = RecordFormat(**record_format).piece()
    start = Start.parse(start_text)
    on_corrupt: OnCorrupt = "skip" if skip_corrupt else "raise"
    reader = LogReader(directory, on_corrupt=on_corrupt, isolation_level=isolation_level)
    chosen = partitions(reader, topic, partition)
    try:
        _write(read(chosen, start, is_following=is_following), piece, count)
    except CorruptLogError as error:
        sentence = sentence_of(error).replace('on_corrupt="skip"', "--skip-corrupt")
        click.echo(f"shmaccum: {sentence}", err=True)
        ctx.exit(EXIT_BAD)
    ctx.exit(EXIT_BAD if _warn_of_damage(chosen) else 0)
