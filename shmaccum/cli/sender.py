# SPDX-License-Identifier: Apache-2.0
"""``shmaccum sender``: run a sender in the foreground, for a terminal, a supervisor or a container."""

from __future__ import annotations

import logging
from typing import Any

import click

from shmaccum.arena import Arena
from shmaccum.cli.group import (
    ArenaRemovedFailure,
    Command,
    arena_argument,
    assignments,
    mode_option,
    owning_group_option,
    sentence_of,
    start_logging,
)
from shmaccum.common.descriptors import raise_limit
from shmaccum.config import Options, SenderOptions, command_line_value, parse_together
from shmaccum.exceptions import ArenaRemovedError, InvalidArgumentError
from shmaccum.sender.service import SenderService, name_process
from shmaccum.sender.sinks import sink_options_type, split_url
from shmaccum.supervisor import ensure_sender

logger = logging.getLogger(__name__)

SINKS = "The sink to deliver to: kafka:HOST:PORT[,HOST:PORT...] or log:DIR; for tests, null: or memory:."


def split_options(
    given: dict[str, Any], url: str, table: type[Options] = SenderOptions
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits options into those of a table and those of the sink. A secret is given only by ``env:`` or ``file:``.

    Args:
        given: the option values by name.
        url: the sink.
        table: the options of the object that uses the sink.

    Raises:
        InvalidArgumentError: an option is unknown or has a wrong value, or the URL names no sink.
    """
    spellings = table.spellings()
    given = {name: command_line_value(name, value) for name, value in given.items()}
    of_table = {name: value for name, value in given.items() if name.replace(".", "_") in spellings}
    of_sink_type = sink_options_type(split_url(url)[0])
    if of_sink_type is None:  # only the sink's constructor knows its options
        table.parse(of_table)
    else:
        parse_together(given, table, of_sink_type)
    return of_table, {name: value for name, value in given.items() if name not in of_table}


def _run(service: SenderService) -> None:
    """Runs the service until it is stopped or exits by itself."""
    try:
        service.run_until_signalled()
    except ArenaRemovedError as error:
        raise ArenaRemovedFailure(sentence_of(error)) from error
    logger.info("stopped cleanly")


def _detach(arena: Arena, url: str, sink_options: dict[str, str], options: dict[str, Any]) -> None:
    idle_exit = options.pop("idle_exit_ms", None)
    with arena:
        is_new = ensure_sender(arena, url, idle_exit=idle_exit, sink_options=sink_options, **options)
    click.echo(f"a sender of {arena.name} was started" if is_new else f"{arena.name} already has a sender")


@click.command(
    "sender",
    cls=Command,
    epilog="After SIGTERM or Ctrl-C, the sender delivers the waiting records and exits with 0. After a second signal, "
    "it exits at once; the remaining records stay in the arena for the next sender. Exit codes: 0 stopped cleanly, 2 "
    "failed to start or to continue, 3 the arena was removed and its records were delivered or exported.",
)
@arena_argument
@click.option("--sink", "url", required=True, metavar="KIND:PLACE", help=SINKS)
@click.option("--standby", is_flag=True, help="Wait while the arena has a sender, and take over when it exits or dies.")
@click.option(
    "--replace-stalled",
    metavar="DURATION",
    help="With --standby: kill a sender that has not renewed its heartbeat for this time, for example 30s.",
)
@click.option("--idle-exit", metavar="DURATION", help="Exit after this time without records or attached processes.")
@click.option("--detach", is_flag=True, help="Start a background sender unless there is one; return when it is ready.")
@click.option(
    "--overflow",
    metavar="log:DIR",
    help="During an outage of the sink, move the oldest batches to this log on disk as the arena fills.",
)
@click.option("--listen", metavar="HOST:PORT", help="With --sink log:DIR, serve the log to Kafka clients.")
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    help="Serve http://HOST:PORT for browsers, /metrics for Prometheus, /healthz and /readyz for probes.",
)
@click.option(
    "-X",
    "options",
    multiple=True,
    metavar="OPTION=VALUE",
    help="Set an option of the sender or its sink (see shmaccum options); repeatable.",
)
@click.option("-v", "--verbose", is_flag=True, help="Also log debug messages.")
@click.option("-q", "--quiet", is_flag=True, help="Log only warnings and errors.")
@mode_option
@owning_group_option
def command(
    arena_name: str,
    url: str,
    standby: bool,
    replace_stalled: str | None,
    idle_exit: str | None,
    detach: bool,
    overflow: str | None,
    listen: str | None,
    metrics: str | None,
    options: tuple[str, ...],
    verbose: bool,
    quiet: bool,
    arena_mode: int,
    arena_group: str | None,
) -> None:
    """Deliver the records that all processes append to an arena.

    An arena has at most one sender. The sender logs to standard error.
    """
    if replace_stalled is not None and not standby:
        raise InvalidArgumentError(
            "--replace-stalled has no effect without --standby: start a second sender with --standby beside the first, "
            "or let producers supervise the sender (Producer(..., sink=..., replace_stalled_ms=...))"
        )
    flags = {
        "idle_exit_ms": idle_exit,
        "listen": listen,
        "metrics_listen": metrics,
        "overflow": overflow,
        "replace_stalled_ms": replace_stalled,
    }
    given = assignments(options) | {name: value for name, value in flags.items() if value}
    of_sender, of_sink = split_options(given, url)
    if detach:
        _detach(Arena.attach(arena_name, mode=arena_mode, group=arena_group), url, of_sink, of_sender)
        return
    name_process()
    raise_limit()
    start_logging(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)
    _run(
        SenderService(
            arena_name, url, sink_options=of_sink, standby=standby, mode=arena_mode, group=arena_group, **of_sender
        )
    )
