# SPDX-License-Identifier: Apache-2.0
"""``shmaccum inspect``: the contents of an arena, from the superblock to the bytes of a record."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click

from shmaccum.arena import Arena
from shmaccum.arena.slot_word import SLOT_STATES
from shmaccum.cli.drawing import QUIET, Column, Stack, Table, Text, View, format_time, readable_line
from shmaccum.cli.group import Command, arena_argument, json_option, opened_read_only, print_json
from shmaccum.cli.terminal import show
from shmaccum.common.units import format_count, format_duration_ns, format_size
from shmaccum.exceptions import CorruptArenaError
from shmaccum.observe.inspection import FILLED_STATES, CompletionFacts, Inspector, SlotFacts
from shmaccum.observe.observation import Observer

HEX_WIDTH = 16
HEX_SIZE_MAX = 512
BYTES_SHOWN = 40
ROW_COUNT_MAX = 100
"""The most rows of one table in the overview, because a damaged count may claim thousands."""
QUANTITY = re.compile(r"-|[\d,.]+( [a-zA-Zµ]+)?")
"""Cells that are aligned right: numbers, with or without a unit, and the mark of a missing number."""

# --- small views


def shown(value: bytes | None) -> str:
    """Return bytes as one line of readable text."""
    if value is None:
        return "-"
    text = value[:BYTES_SHOWN].decode("utf-8", "backslashreplace")
    readable = readable_line(text)
    return readable if len(value) <= BYTES_SHOWN else f"{readable}… ({len(value):,} bytes)"


def hex_lines(data: bytes, size_max: int = HEX_SIZE_MAX) -> Iterator[str]:
    """Yield lines of position, bytes and characters."""
    for start in range(0, min(len(data), size_max), HEX_WIDTH):
        row = data[start : start + HEX_WIDTH]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{start:06x}  {row.hex(' '):<{HEX_WIDTH * 3}} {letters}"
    if len(data) > size_max:
        yield f"… {len(data) - size_max:,} more bytes (--hex all)"


def _titled(title: str, table: Table, left_count: int) -> View:
    """Return a table with the title on its own line, because a table wraps its title to its width.

    Args:
        left_count: the number of rows that the table omits.
    """
    head = [Text(title, "bold")] if title else []
    left = [f"… and {format_count(left_count, 'row')} more (--json shows all)"] if left_count > 0 else []
    return Stack(*head, table, *left)


def _pairs(title: str, pairs: Iterable[tuple[str, Any]]) -> View:
    table = Table(Column(style=QUIET), Column(is_folded=True), header_style=None)
    known = list(pairs)
    for name, value in known[:ROW_COUNT_MAX]:
        table.add_row(name, str(value))
    return _titled(title, table, len(known) - ROW_COUNT_MAX)


def _rows(
    title: str, names: Sequence[str], rows: Iterable[Sequence[Any]], row_count_max: int | None = ROW_COUNT_MAX
) -> View:
    """Return a table with a header.

    Args:
        row_count_max: the most rows to show. If None, show all.
    """
    known = list(rows)
    texts = [["-" if cell is None else str(cell) for cell in row] for row in known[:row_count_max]]
    columns = [
        Column(name, is_right=all(QUANTITY.fullmatch(row[index]) for row in texts)) for index, name in enumerate(names)
    ]
    table = Table(*columns)
    for row in texts:
        table.add_row(*row)
    return _titled(title, table, len(known) - len(texts))


# --- facts

FEATURE_KINDS = ("compatible", "read_only", "incompatible")


def _options(arena: Arena) -> Any:
    """Return the creator's options. If they are damaged, return the error, so that the rest can still be shown."""
    try:
        return arena.options
    except CorruptArenaError as error:
        return str(error)


def superblock(arena: Arena) -> dict[str, Any]:
    """Return the values that the creator fixed, and the state of the arena."""
    native = arena.native
    layout, features = native.layout, native.features
    return {
        "name": arena.name,
        "made_by": features["build"],
        "uuid": arena.uuid.hex(),
        "created_ms": native.created_ms,
        "layout_version": layout["version"],
        "layout_fingerprint": layout["fingerprint"],
        **{f"features_{kind}": features[kind] for kind in FEATURE_KINDS},
        "size": native.size,
        "arena_epoch": native.arena_epoch,
        "is_clean": native.is_clean,
        "poisoned": native.poisoned,
        "options": _options(arena),
    }


def regions(arena: Arena) -> dict[str, int]:
    """Return the ref of each region, in the order of their positions."""
    refs = {name: ref for name, ref in arena.native.layout.items() if name not in {"version", "fingerprint"}}
    return dict(sorted(refs.items(), key=lambda region: region[1]))


def overview(arena: Arena) -> dict[str, Any]:
    """Return everything except slots and results."""
    from shmaccum.observe.resources import Resources  # imports psutil, which no other view needs

    seen = Observer(arena, Resources()).observe()
    document = seen.as_json()
    return {
        "superblock": superblock(arena),
        "geometry": arena.geometry,
        "regions": regions(arena),
        "extension_regions": arena.native.features["regions"],
        "slots": document["slots"],
        "sender": document["sender"],
        "transaction": document["transaction"],
        "processes": document["processes"],
        "topics": document["topics"],
        "partitions": document["partitions"],
        "errors": document["errors"],
    }


# --- views


def _superblock_pairs(facts: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in facts.items():
        if name == "created_ms":
            yield "created", format_time(value)
        elif name == "size":
            yield name, f"{format_size(value)} ({value:,} bytes)"
        elif name == "layout_fingerprint":
            yield name, f"{value:016x}"
        elif name.startswith("features_"):
            yield name, f"{value:#x}" if value else "none"
        else:
            yield name, "no" if value is None else value


def _transaction_pairs(facts: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from ((name, facts[name]) for name in ("number", "state", "why"))
    if facts["age_ns"] is not None:
        yield "begun", f"{format_duration_ns(facts['age_ns'])} ago"


def _overview_tables(facts: dict[str, Any]) -> Iterator[View]:
    yield _pairs("superblock", _superblock_pairs(facts["superblock"]))
    yield _pairs("geometry", facts["geometry"].items())
    yield _pairs("regions (refs)", ((name, f"{ref:,}") for name, ref in facts["regions"].items()))
    if facts["extension_regions"]:
        yield _rows(
            "extension regions",
            ("kind", "ref", "stride", "elements", "state"),
            (
                (
                    *(region[key] for key in ("kind", "ref", "stride", "count")),
                    "valid" if region["is_valid"] else "invalid, rebuilt by its users",
                )
                for region in facts["extension_regions"]
            ),
        )
    yield _pairs("slots", facts["slots"].items())
    yield _pairs("sender", (("delivers to", facts["sender"]["sink"]),) if facts["sender"]["sink"] else ())
    if facts["transaction"] is not None:
        yield _pairs("transaction", _transaction_pairs(facts["transaction"]))
    yield _rows(
        "processes",
        ("entry", "pid", "name", "role", "state", "attached for", "records"),
        (
            (
                *(process[key] for key in ("entry", "pid", "name", "role", "state")),
                format_duration_ns(process["attached_age_ns"]),
                f"{process['record_count']:,}",
            )
            for process in facts["processes"]
        ),
    )
    yield _pairs("topics (partitions; 0 if not yet known from the sink)", facts["topics"].items())
    yield _rows(
        "partitions",
        ("topic", "partition", "batches", "records", "bytes"),
        (
            (
                *(queue[key] for key in ("topic", "partition", "batch_count")),
                f"{queue['record_count']:,}",
                format_size(queue["size"]),
            )
            for queue in sorted(facts["partitions"], key=lambda queue: (queue["topic"], queue["partition"]))
        ),
    )
    if facts["errors"]:
        yield _pairs(
            "errors",
            ((format_count(error["count"], "time"), error["text"] or error["status"]) for error in facts["errors"]),
        )


def _slot_row(slot: SlotFacts) -> Sequence[Any]:
    if slot.state not in FILLED_STATES:
        return (
            slot.slot_index,
            slot.state,
            slot.generation,
            "" if slot.holder is None else f"of {slot.holder}",
            *[None] * 5,
        )
    return (
        slot.slot_index,
        slot.state,
        slot.generation,
        f"{slot.topic}-{slot.partition}",
        slot.seq,
        f"{slot.record_count:,}",
        format_size(slot.size or 0),
        format_duration_ns(slot.age_ns or 0),
        "right" if slot.is_checksum_right else "WRONG",
    )


SLOT_COLUMNS = ("slot", "state", "generation", "partition", "seq", "records", "bytes", "age", "checksum")
COMPLETION_COLUMNS = ("number", "partition", "seq", "records", "result", "base offset", "error")


def _completion_row(completion: CompletionFacts) -> Sequence[Any]:
    return (
        completion.number,
        f"{completion.topic}-{completion.partition}",
        completion.seq,
        f"{completion.first_record} to {completion.first_record + completion.record_count - 1}",
        completion.result,
        completion.base_offset,
        completion.error_code,
    )


def record_document(
    record: tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]],
) -> dict[str, Any]:
    """Return a decoded record as a dictionary."""
    offset_delta, timestamp_ms, key, value, headers = record
    return {"index": offset_delta, "timestamp_ms": timestamp_ms, "key": key, "value": value, "headers": headers}


def _slot_pairs(document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields that have a value, as text."""
    for name, value in document.items():
        if value is None or value == ():
            continue
        if name == "age_ns":
            yield "age", format_duration_ns(value)
        elif name == "left_ns":
            yield "delivery timeout left", format_duration_ns(value)
        elif name.endswith("timestamp_ms"):
            yield name.removesuffix("_ms"), format_time(value)
        else:
            yield name, value


def _show_slot(inspector: Inspector, slot_index: int, hex_size: int) -> None:
    facts = inspector.slot(slot_index)
    show(_pairs(f"slot {slot_index}", _slot_pairs(facts.as_json())))
    if facts.state not in FILLED_STATES:
        return
    records = inspector.records(facts)
    if records is None:
        click.echo("\nits bytes are not records")
    else:
        rows = (
            (index, format_time(time_ms), shown(key), shown(value), len(headers))
            for index, time_ms, key, value, headers in records
        )
        show(Stack("", _rows("records", ("record", "timestamp", "key", "value", "headers"), rows, None)))
    click.echo()
    for line in hex_lines(facts.data, hex_size):
        click.echo(line)


# --- the command


def _parse_states(_ctx: click.Context, _parameter: click.Parameter, value: tuple[str, ...]) -> frozenset[str] | None:
    states = frozenset(name.upper() for text in value for name in text.split(","))
    if unknown := states - set(SLOT_STATES):
        raise click.BadParameter(
            f"{', '.join(sorted(unknown))}: unknown state; the states are {', '.join(SLOT_STATES)}"
        )
    return states or None


def _parse_hex(_ctx: click.Context, _parameter: click.Parameter, value: str) -> int:
    if value == "all":
        return 2**31
    if not value.isdecimal():
        raise click.BadParameter("write a number of bytes, or all")
    return int(value)


@click.command("inspect", cls=Command)
@arena_argument
@click.option("--slot", "slot_index", type=int, metavar="N", help="Show one slot: its words, records and bytes.")
@click.option("--slots", "is_listing", is_flag=True, help="List all slots that are not FREE.")
@click.option(
    "--state",
    "states",
    multiple=True,
    metavar="STATE",
    callback=_parse_states,
    help="List these slots; repeatable.",
)
@click.option("--topic", metavar="NAME", help="List slots with a batch of this topic.")
@click.option("--completions", type=int, metavar="N", help="Show the last N results.")
@click.option(
    "--hex",
    "hex_size",
    default=str(HEX_SIZE_MAX),
    metavar="BYTES|all",
    callback=_parse_hex,
    show_default=True,
    help="The most bytes of a slot to show.",
)
@json_option
def command(
    arena_name: str,
    slot_index: int | None,
    is_listing: bool,
    states: frozenset[str] | None,
    topic: str | None,
    completions: int | None,
    hex_size: int,
    is_json: bool,
) -> None:
    """Show the contents of an arena: superblock, processes, partitions, slots and results.

    The arena may be in use or damaged, and is not changed. The output contains keys and values of records.
    """
    with opened_read_only(arena_name) as arena:
        inspector = Inspector(arena)
        if slot_index is not None:
            if is_json:
                facts = inspector.slot(slot_index)
                records = inspector.records(facts) if facts.state in FILLED_STATES else []
                slot_document = facts.as_json() | {
                    "records": None if records is None else [record_document(record) for record in records]
                }
                print_json(slot_document)
            else:
                _show_slot(inspector, slot_index, hex_size)
        elif completions is not None:
            _show_completions(inspector.completions(completions), is_json=is_json)
        elif is_listing or states or topic:
            not_free = frozenset(SLOT_STATES) - {"FREE"}
            _show_slots(inspector.slots(states or not_free, topic), is_json=is_json)
        else:
            _show_overview(overview(arena), is_json=is_json)


def _show_slots(slots: Iterable[SlotFacts], *, is_json: bool) -> None:
    if is_json:
        print_json([slot.as_json() for slot in slots])
    else:
        show(_rows("", SLOT_COLUMNS, (_slot_row(slot) for slot in slots), None))


def _show_completions(results: Iterable[CompletionFacts], *, is_json: bool) -> None:
    if is_json:
        print_json([result.as_json() for result in results])
    else:
        show(_rows("", COMPLETION_COLUMNS, (_completion_row(result) for result in results), None))


def _show_overview(facts: dict[str, Any], *, is_json: bool) -> None:
    if is_json:
        print_json(facts)
        return
    for table in _overview_tables(facts):
        show(Stack(table, ""))
