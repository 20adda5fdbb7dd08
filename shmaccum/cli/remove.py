# SPDX-License-Identifier: Apache-2.0
"""``shmaccum remove``: remove arenas. An arena in use or with waiting records is removed only with --force."""

from __future__ import annotations

import click

from shmaccum.arena import Arena
from shmaccum.cli.group import EXIT_IMPOSSIBLE, Command, Failure, complete_arena, opened_read_only, sentence_of
from shmaccum.common.units import format_count
from shmaccum.exceptions import (
    ArenaError,
    ArenaNotFoundError,
    InvalidArgumentError,
    NotAnArenaError,
    ShmaccumError,
)
from shmaccum.observe.observation import Observer


def reasons_against(arena_name: str) -> list[str]:
    """Returns the reasons not to remove an arena: attached processes, waiting records, or an unreadable arena."""
    try:
        with opened_read_only(arena_name) as arena:
            seen = Observer(arena).observe()
    except (ArenaNotFoundError, NotAnArenaError):
        raise
    except (ArenaError, InvalidArgumentError) as error:
        return [f"it cannot be read ({error})"]
    reasons = []
    if alive := sum(process.is_alive for process in seen.processes):
        reasons.append(format_count(alive, "process is attached", "processes are attached"))
    if seen.queued_record_count:
        waits = "record waits to be delivered", "records wait to be delivered"
        reasons.append(format_count(seen.queued_record_count, *waits))
    if bad := seen.slots["BAD"]:
        reasons.append(
            format_count(bad, "damaged batch can still be exported", "damaged batches can still be exported")
        )
    return reasons


def _remove(arena_name: str, *, is_forced: bool, missing_ok: bool) -> None:
    if not Arena.exists(arena_name):
        if missing_ok:
            return
        raise Failure(f"there is no arena {arena_name}: list arenas with shmaccum ls")
    try:
        if not is_forced and (reasons := reasons_against(arena_name)):
            raise Failure(f"{arena_name} was not removed: {', '.join(reasons)}. To remove it anyway, use --force")
        Arena.remove(arena_name, missing_ok=missing_ok)
    except NotAnArenaError:
        raise Failure(
            f"{arena_name} is not an arena and was not removed: if it is a damaged arena, delete the file"
        ) from None


def _is_removed(arena_name: str, *, is_forced: bool, missing_ok: bool) -> bool:
    """Removes an arena. Prints an error instead of raising it, so that the other arenas are still removed."""
    try:
        _remove(arena_name, is_forced=is_forced, missing_ok=missing_ok)
    except Failure as failure:
        failure.show()
        return False
    except (ShmaccumError, OSError) as error:
        Failure(sentence_of(error)).show()
        return False
    return True


@click.command("remove", cls=Command)
@click.argument("arena_names", metavar="ARENA...", nargs=-1, required=True, shell_complete=complete_arena)
@click.option("-f", "--force", "is_forced", is_flag=True, help="Also remove an arena in use or with waiting records.")
@click.option("--missing-ok", is_flag=True, help="Ignore arenas that do not exist.")
@click.pass_context
def command(ctx: click.Context, arena_names: tuple[str, ...], is_forced: bool, missing_ok: bool) -> None:
    """Remove arenas.

    An arena with attached processes or waiting records is not removed. With --force, the arena accepts no more records,
    and its sender exits after it has delivered the waiting records. Without a sender, they are lost.
    """
    removed = [_is_removed(name, is_forced=is_forced, missing_ok=missing_ok) for name in arena_names]
    ctx.exit(0 if all(removed) else EXIT_IMPOSSIBLE)
