# SPDX-License-Identifier: Apache-2.0
"""``shmaccum stat``: a live view of an arena."""

from __future__ import annotations

from functools import partial

import click

from shmaccum.cli.group import Command, arena_argument
from shmaccum.cli.live import ViewOptions, repeated_view_options, watch
from shmaccum.cli.stat_view import stat_view


@click.command(
    "stat",
    cls=Command,
    epilog="in: records that processes append. out: records that the sender completes. oldest: the batch that has "
    "waited longest. topics at a limit: no record of a partition can be delivered (stuck), or the topic holds its "
    "share of the buffers (topic_share_factor) and threads wait. Such a topic gets its next buffer when enough "
    "buffers are free. holds: the buffers of a topic or process, and the most it may hold (max_process_share). A "
    "stopped process (SIGSTOP) is listed because it keeps the buffers that it writes to.",
)
@arena_argument
@click.option("--processes", "has_resources", is_flag=True, help="Show the CPU and resident memory of each process.")
@repeated_view_options
def command(arena_name: str, view_options: ViewOptions, has_resources: bool) -> None:
    """Show the activity of an arena, live: rates, fill, waiters, sender, processes.

    Only reads the arena; no process is contacted. On a terminal, the view is repainted each second until q or Ctrl-C.
    """
    watch(arena_name, view_options, partial(stat_view, has_resources=has_resources), has_resources=has_resources)
