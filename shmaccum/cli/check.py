# SPDX-License-Identifier: Apache-2.0
"""``shmaccum check``: `Arena.verify` for the command line."""

from __future__ import annotations

import click

from shmaccum.arena import VerifyDepth
from shmaccum.cli.drawing import readable
from shmaccum.cli.group import EXIT_BAD, Command, arena_argument, json_option, looking_at, print_json

DEPTHS = [depth.name.lower() for depth in VerifyDepth]


@click.command("check", cls=Command, epilog="Exit codes: 0 sound, 1 it has faults, 2 it could not be checked.")
@arena_argument
@click.option(
    "--depth",
    type=click.Choice(DEPTHS),
    default="deep",
    show_default=True,
    help="quick: superblock and counts. normal: every word against its neighbours. deep: also every byte, so that it "
    "finds batches that a process scribbled on.",
)
@click.option("--idle", "is_idle", is_flag=True, help="Check the caches, too; only for an arena that nobody uses.")
@json_option
@click.pass_context
def command(ctx: click.Context, arena_name: str, depth: str, is_idle: bool, is_json: bool) -> None:
    """Check an arena's invariants, in use or not, without changing it.

    On an arena in use a finding counts only if it is still there at a second look.
    """
    with looking_at(arena_name) as arena:
        findings = arena.verify(VerifyDepth[depth.upper()], is_idle=is_idle)
        name = arena.name
    if is_json:
        found = [finding._asdict() for finding in findings]
        print_json({"name": name, "depth": depth, "is_sound": not findings, "findings": found})
    else:
        for slot_index, text in findings:
            click.echo(readable(text if slot_index is None else f"slot {slot_index}: {text}"))
        click.echo(f"{name} is sound ({depth})" if not findings else f"{name}: {len(findings)} found ({depth})")
    ctx.exit(EXIT_BAD if findings else 0)
