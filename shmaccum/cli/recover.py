# SPDX-License-Identifier: Apache-2.0
"""``shmaccum recover``: the recovery of the first process that attaches, done or shown, or a copy of the records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from shmaccum.arena import Arena
from shmaccum.cli.drawing import readable
from shmaccum.cli.group import (
    EXIT_BAD,
    Command,
    Failure,
    arena_argument,
    json_option,
    looking_at,
    mode_option,
    owning_group_option,
    print_json,
)
from shmaccum.common.units import format_count
from shmaccum.exceptions import ArenaBusyError
from shmaccum.observe.inspection import export
from shmaccum.observe.observation import TransactionFacts
from shmaccum.sender import giving_up


def _sentences(plan: dict[str, Any]) -> list[str]:
    """A plan as a list of what is to be done."""
    boot = "this boot: its words are believed" if plan["is_same_boot"] else "another boot: only checksums are believed"
    records = format_count(plan["record_count"], "record")
    return [
        f"last used in {boot}",
        f"{format_count(plan['freed_count'], 'buffer')} to take back from the dead",
        f"{format_count(plan['sealed_count'], 'open batch', 'open batches')} to seal at the last committed record",
        f"{format_count(plan['cut_count'], 'batch', 'batches')} to cut back to what had been forced to disk",
        f"{format_count(plan['ready_count'], 'batch', 'batches')} with {records} to be delivered by the next sender",
        f"{format_count(plan['quarantined_count'], 'damaged batch', 'damaged batches')} to be kept for inspection",
    ]


def _plan(arena_name: str) -> dict[str, Any]:
    """The work of a recovery now, and the processes that are in its way."""
    with looking_at(arena_name) as arena:
        plan: dict[str, Any] = arena.native.recovery_plan()
        attached = [process["pid"] for process in arena.native.processes() if process["alive"]]
    return plan | {
        "name": arena_name,
        "is_same_boot": bool(plan["is_same_boot"]),
        "attached_pids": attached,
    }


def _show(plan: dict[str, Any]) -> None:
    click.echo("\n".join(_sentences(plan)))
    if plan["attached_pids"]:
        pids = ", ".join(map(str, plan["attached_pids"]))
        click.echo(f"nothing of this happens while processes are attached: {pids}")


def _export(arena_name: str, folder: Path, *, is_json: bool) -> int:
    with looking_at(arena_name) as arena:
        transaction = TransactionFacts.of(arena)
        try:
            batches = export(arena, folder)
        except FileExistsError:
            raise Failure(f"{folder} exists already: name a folder that does not, it is made") from None
    damaged = sum(batch.base_offset < 0 for batch in batches)
    records = sum(batch.record_count for batch in batches if batch.base_offset >= 0)
    if is_json:
        print_json(
            {
                "folder": str(folder),
                "batch_count": len(batches),
                "damaged_count": damaged,
                "record_count": records,
                "transaction": None if transaction is None else transaction._asdict(),
            }
        )
    else:
        click.echo(
            f"{format_count(len(batches) - damaged, 'batch', 'batches')} with {format_count(records, 'record')} and "
            f"{format_count(damaged, 'damaged batch', 'damaged batches')} copied to {folder}; the arena was not changed"
        )
        if transaction is not None and batches:
            click.echo(
                f"they belong to transaction {transaction.number}, which is {transaction.state}: readers with "
                "isolation_level=read_committed see none of them, and others see all"
            )
    return EXIT_BAD if damaged else 0


def _recover(arena_name: str, mode: int, group: str | None, *, is_json: bool) -> int:
    plan = _plan(arena_name)
    if plan["attached_pids"]:
        pids = ", ".join(map(str, plan["attached_pids"]))
        raise Failure(
            f"{arena_name} is in use by process {pids}: they repair the leftovers of dead processes as they go"
        )
    with Arena.attach(arena_name, mode=mode, group=group) as arena:
        plan["was_recovered"] = arena.native.was_recovered
        plan["findings"] = [finding._asdict() for finding in arena.verify(is_idle=True)]
    if is_json:
        print_json(plan)
    else:
        _show(plan)
        click.echo("recovered" if plan["was_recovered"] else "it was left in order: nothing was to be done")
        for finding in plan["findings"]:
            click.echo(readable(f"still wrong: {finding['text']}"))
    return EXIT_BAD if plan["findings"] or plan["quarantined_count"] else 0


def _give_up_overflow(arena_name: str, mode: int, *, is_json: bool) -> int:
    with Arena.attach(arena_name, mode=mode) as arena:
        try:
            sentence = giving_up.give_up_overflow(arena)
        except ArenaBusyError:
            raise Failure(f"a sender of {arena_name} lives and may have the records: stop it first") from None
    if is_json:
        print_json({"given_up": sentence or None})
    else:
        click.echo(sentence or f"{arena_name} counts no record in an overflow: nothing was to be given up")
    return 0


@click.command(
    "recover", cls=Command, epilog="Exit codes: 0 done, 1 done, with damaged batches, 2 it could not be done."
)
@arena_argument
@click.option("--dry-run", is_flag=True, help="Print the work of a recovery, without changing the arena.")
@click.option(
    "--export",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Copy every waiting batch to a new folder, as segments that log readers and Kafka's tools read, with "
    "index.msgpack; damaged ones as raw bytes. Readers of committed records see no batch of a transaction. The arena "
    "is not changed.",
)
@click.option(
    "--give-up-overflow",
    is_flag=True,
    help="Give up the records in an overflow that is lost. Their futures fail, the errors of the arena tell of it, and "
    "the next sender goes on without them.",
)
@mode_option
@owning_group_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    arena_name: str,
    dry_run: bool,
    folder: Path | None,
    give_up_overflow: bool,
    arena_mode: int,
    arena_group: str | None,
    is_json: bool,
) -> None:
    """Recover an arena after a crash.

    The first process that attaches does this by itself. The command does it by hand, or shows it first.
    """
    if give_up_overflow:
        if folder is not None or dry_run:
            raise click.UsageError("--give-up-overflow changes the arena: say it alone")
        ctx.exit(_give_up_overflow(arena_name, arena_mode, is_json=is_json))
    if folder is not None and dry_run:
        raise click.UsageError("--export writes and --dry-run does not: say one of them, neither changes the arena")
    if folder is not None:
        ctx.exit(_export(arena_name, folder, is_json=is_json))
    if not dry_run:
        ctx.exit(_recover(arena_name, arena_mode, arena_group, is_json=is_json))
    plan = _plan(arena_name)
    print_json(plan) if is_json else _show(plan)
    ctx.exit(EXIT_BAD if plan["quarantined_count"] else 0)
