# SPDX-License-Identifier: Apache-2.0
"""``shmaccum top``: a live view of the processes of an arena."""

from __future__ import annotations

import click

from shmaccum.cli.group import Command, arena_argument
from shmaccum.cli.live import ViewOptions, repeated_view_options, watch
from shmaccum.cli.stat_view import top_view


@click.command("top", cls=Command)
@arena_argument
@repeated_view_options
def command(arena_name: str, view_options: ViewOptions) -> None:
    """Show the processes of an arena, live, the busiest first, until q or Ctrl-C.

    holds: the buffers of a process, and the most it may hold (max_process_share). private: those without a batch yet.
    passed: how often other processes passed a lock that this process held too long. Topics at a limit are also listed,
    because they make processes wait.
    """
    watch(arena_name, view_options, top_view, has_resources=True)
