# SPDX-License-Identifier: Apache-2.0
"""``shmaccum check``: run `Arena.verify` from the command line."""

from __future__ import annotations

import click

from shmaccum.arena import VerifyDepth
from shmaccum.cli.drawing import readable
from shmaccum.cli.group import EXIT_BAD, Command, arena_argument, json_option, opened_read_only, print_json

DEPTHS = [depth.name.lower() for depth in VerifyDepth]


@click.command("check", cls=Command, epilog="Exit codes: 0 sound, 1 faults found, 2 the check could not run.")
@arena_argument
@click.option(
    "--depth",
    type=click.Choice(DEPTHS),
    default="deep",
    show_default=True,
    help="quick: superblock and counts. normal: also every word against related words. deep: also every byte, which "
    "finds batches that a process overwrote by mistake.",
)
@click.option("--idle", "is_idle", is_flag=True, help="Also check the caches. Only for an arena that no process uses.")
@json_option
@click.pass_context
def command(ctx: click.Context, arena_name: str, depth: str, is_idle: bool, is_json: bool) -> None:
    """Check the invariants of an arena without changing it. The arena may be in use.

    If the arena is in use, a fault is reported only if a second check finds it again.
    """
    with opened_read_only(arena_name) as arena:
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
