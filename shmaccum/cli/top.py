# SPDX-License-Identifier: Apache-2.0
"""``shmaccum top``: the processes of an arena, the busiest first."""

from __future__ import annotations

import click

from shmaccum.cli.group import Command, arena_argument
from shmaccum.cli.live import Watching, watch, watch_options
from shmaccum.cli.stat_view import top_view


@click.command("top", cls=Command)
@arena_argument
@watch_options
def command(arena_name: str, watching: Watching) -> None:
    """Show the processes of an arena, live, the busiest first, until q or Ctrl-C.

    holds: buffers of its share (max_process_share). private: those of them that have no batch yet. passed: the times
    that others passed it at a lock because it did not go on. Topics at a limit are listed, too, as in stat, because
    they make processes wait.
    """
    watch(arena_name, watching, top_view, has_resources=True)
