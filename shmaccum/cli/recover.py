# SPDX-License-Identifier: Apache-2.0
"""``shmaccum recover``: recover an arena, show the recovery plan, or export the records."""

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
    mode_option,
    opened_read_only,
    owning_group_option,
    print_json,
)
from shmaccum.common.units import format_count
from shmaccum.exceptions import ArenaBusyError
from shmaccum.observe.inspection import export
from shmaccum.observe.observation import TransactionFacts
from shmaccum.sender import giving_up


def _sentences(plan: dict[str, Any]) -> list[str]:
    """Returns a recovery plan as a list of steps."""
    boot = "this boot: its state is trusted" if plan["is_same_boot"] else "another boot: only checksums are trusted"
    records = format_count(plan["record_count"], "record")
    return [
        f"last used in {boot}",
        f"{format_count(plan['freed_count'], 'buffer')} to free from dead processes",
        f"{format_count(plan['sealed_count'], 'open batch', 'open batches')} to seal at the last committed record",
        f"{format_count(plan['cut_count'], 'batch', 'batches')} to cut back to the records forced to disk",
        f"{format_count(plan['ready_count'], 'batch', 'batches')} with {records} for the next sender to deliver",
        f"{format_count(plan['quarantined_count'], 'damaged batch', 'damaged batches')} to keep for inspection",
    ]


def _plan(arena_name: str) -> dict[str, Any]:
    """Returns the steps that a recovery would do now, and the processes that prevent it."""
    with opened_read_only(arena_name) as arena:
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
        click.echo(f"no recovery runs while processes are attached: {pids}")


def _export(arena_name: str, folder: Path, *, is_json: bool) -> int:
    with opened_read_only(arena_name) as arena:
        transaction = TransactionFacts.of(arena)
        try:
            batches = export(arena, folder)
        except FileExistsError:
            raise Failure(f"{folder} already exists: name a new folder") from None
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
            f"{format_count(damaged, 'damaged batch', 'damaged batches')} exported to {folder}; the arena was not "
            "changed"
        )
        if transaction is not None and batches:
            click.echo(
                f"they belong to transaction {transaction.number}, which is {transaction.state}: readers with "
                "isolation_level=read_committed see none of them, and other readers see all"
            )
    return EXIT_BAD if damaged else 0


def _recover(arena_name: str, mode: int, group: str | None, *, is_json: bool) -> int:
    plan = _plan(arena_name)
    if plan["attached_pids"]:
        pids = ", ".join(map(str, plan["attached_pids"]))
        raise Failure(
            f"{arena_name} is in use by process {pids}: attached processes repair the state left by dead ones"
        )
    with Arena.attach(arena_name, mode=mode, group=group) as arena:
        plan["was_recovered"] = arena.native.was_recovered
        plan["findings"] = [finding._asdict() for finding in arena.verify(is_idle=True)]
    if is_json:
        print_json(plan)
    else:
        _show(plan)
        click.echo("recovered" if plan["was_recovered"] else "it was closed cleanly: no recovery was needed")
        for finding in plan["findings"]:
            click.echo(readable(f"still wrong: {finding['text']}"))
    return EXIT_BAD if plan["findings"] or plan["quarantined_count"] else 0


def _give_up_overflow(arena_name: str, mode: int, *, is_json: bool) -> int:
    with Arena.attach(arena_name, mode=mode) as arena:
        try:
            sentence = giving_up.give_up_overflow(arena)
        except ArenaBusyError:
            raise Failure(f"a sender of {arena_name} is running and may have the records: stop it first") from None
    if is_json:
        print_json({"given_up": sentence or None})
    else:
        click.echo(sentence or f"{arena_name} has no record in an overflow: nothing was given up")
    return 0


@click.command("recover", cls=Command, epilog="Exit codes: 0 done, 1 done with damaged batches, 2 failed.")
@arena_argument
@click.option("--dry-run", is_flag=True, help="Print the recovery plan without changing the arena.")
@click.option(
    "--export",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Copy every waiting batch to a new folder, as segments for log readers and Kafka's tools, with index.msgpack. "
    "Damaged batches are copied as raw bytes. Readers of committed records see no batch of a transaction. The arena is "
    "not changed.",
)
@click.option(
    "--give-up-overflow",
    is_flag=True,
    help="Give up the records in a lost overflow. Their futures fail, the error log of the arena records it, and the "
    "next sender continues without them.",
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

    The first process that attaches recovers the arena automatically. This command does so explicitly, or previews it.
    """
    if give_up_overflow:
        if folder is not None or dry_run:
            raise click.UsageError("--give-up-overflow cannot be combined with --export or --dry-run: use it alone")
        ctx.exit(_give_up_overflow(arena_name, arena_mode, is_json=is_json))
    if folder is not None and dry_run:
        raise click.UsageError("--export and --dry-run cannot be combined: use one of them; neither changes the arena")
    if folder is not None:
        ctx.exit(_export(arena_name, folder, is_json=is_json))
    if not dry_run:
        ctx.exit(_recover(arena_name, arena_mode, arena_group, is_json=is_json))
    plan = _plan(arena_name)
    print_json(plan) if is_json else _show(plan)
    ctx.exit(EXIT_BAD if plan["quarantined_count"] else 0)
