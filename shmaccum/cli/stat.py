# SPDX-License-Identifier: Apache-2.0
"""``shmaccum stat``: one look at everything, again and again."""

from __future__ import annotations

from functools import partial

import click

from shmaccum.cli.group import Command, arena_argument
from shmaccum.cli.live import Watching, watch, watch_options
from shmaccum.cli.stat_view import stat_view


@click.command(
    "stat",
    cls=Command,
    epilog="in: records that processes append. out: records that the sender completes. oldest: the batch that waits "
    "longest. topics at a limit: nothing can be delivered to a partition (stuck), or the topic holds its share of the "
    "buffers (topic_share_factor) and threads wait; it gets the next buffer when as many are free as it needs. "
    "holds: buffers of a topic, or of a process, of those it may have (max_process_share). A stopped process (SIGSTOP) "
    "is named, because it keeps the buffers that it is writing into.",
)
@arena_argument
@click.option("--processes", "has_resources", is_flag=True, help="Show the CPU and resident memory of each process.")
@watch_options
def command(arena_name: str, watching: Watching, has_resources: bool) -> None:
    """Show the work of an arena, live: rates, fill, waiters, sender, processes.

    Only reads the arena, and asks no process. On a terminal it paints the view anew each second until q or Ctrl-C.
    """
    watch(arena_name, watching, partial(stat_view, has_resources=has_resources), has_resources=has_resources)
