# SPDX-License-Identifier: Apache-2.0
"""``shmaccum ls``: list the arenas on this host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import click

from shmaccum.cli.drawing import PROBLEM, Column, Stack, Table, Text, numbers, readable_line, words
from shmaccum.cli.group import Command, json_option, opened_read_only, print_json, sentence_of
from shmaccum.cli.terminal import show
from shmaccum.common.units import format_size
from shmaccum.exceptions import ShmaccumError
from shmaccum.observe.health import Trouble, troubles
from shmaccum.observe.host import arena_names
from shmaccum.observe.observation import Observation, Observer


@dataclass(frozen=True)
class ArenaRow:
    """An arena with its facts and troubles, or the error if it cannot be read."""

    name: str
    seen: Observation | None
    troubles: tuple[Trouble, ...]
    error: str | None = None

    @classmethod
    def of(cls, name: str) -> ArenaRow:
        """Return the row of an arena, from one observation."""
        try:
            with opened_read_only(name) as arena:
                seen = Observer(arena).observe()
        except (ShmaccumError, OSError) as error:
            return cls(name, None, (), sentence_of(error))
        return cls(name, seen, tuple(troubles(seen)))

    def as_json(self) -> dict[str, Any]:
        """Return a JSON document with stable keys. If the arena cannot be read, numbers are null."""
        seen = self.seen
        return {
            "name": self.name,
            "buffer_memory": seen and seen.buffer_memory,
            "fill": None if seen is None else seen.fill,
            "queued_record_count": None if seen is None else seen.queued_record_count,
            "process_count": None if seen is None else _process_count(seen),
            "sender": seen and seen.sender._asdict(),
            "troubles": [trouble.as_json() for trouble in self.troubles],
            "error": self.error,
        }


def _process_count(seen: Observation) -> int:
    return sum(process.is_alive for process in seen.processes)


def _sender(seen: Observation) -> Text:
    if not seen.sender.is_alive:
        return Text("none") if seen.is_idle else Text("none", style=PROBLEM)
    return Text("alive" if seen.sender.pid is None else str(seen.sender.pid))


def _cells(row: ArenaRow) -> list[str | Text]:
    if row.seen is None:
        return [readable_line(row.name), *["-"] * 4, Text("unread", style=PROBLEM), "-"]
    seen = row.seen
    return [
        readable_line(row.name),
        format_size(seen.buffer_memory),
        f"{seen.fill:.1%}",
        f"{seen.queued_record_count:,}",
        str(_process_count(seen)),
        _sender(seen),
        readable_line(seen.sender.sink or "-"),
    ]


def _sentences(rows: Iterable[ArenaRow]) -> Iterator[Text]:
    """Yield a line for each trouble, with the name of its arena."""
    for row in rows:
        for sentence in [row.error] if row.error else [trouble.sentence for trouble in row.troubles]:
            line = sentence if sentence.startswith(f"{row.name}: ") else f"{row.name}: {sentence}"
            yield Text(readable_line(line))


def _table(rows: Iterable[ArenaRow]) -> Table:
    sink = Column("sink", is_folded=True)
    table = Table(*words("arena"), *numbers("size", "fill", "records", "processes"), *words("sender"), sink)
    for row in rows:
        table.add_row(*_cells(row))
    return table


@click.command(
    "ls",
    cls=Command,
    epilog="size: buffer_memory. records: records that wait for delivery. sender: its process id. The lines below "
    "the table are the troubles that shmaccum health reports.",
)
@json_option
def command(is_json: bool) -> None:
    """List the arenas on this host: those in shared memory, and files that a process has mapped.

    Only reads the arenas; no process is contacted. An arena of another user is listed if this user can read it.
    """
    rows = [ArenaRow.of(name) for name in arena_names()]
    if is_json:
        print_json([row.as_json() for row in rows])
    elif rows:
        sentences = list(_sentences(rows))
        show(Stack(_table(rows), *([""] if sentences else []), *sentences))
    else:
        click.echo("no arena on this host: create one with shmaccum create", err=True)
