# SPDX-License-Identifier: Apache-2.0
"""``shmaccum metrics``: print or serve the metrics of an arena for Prometheus."""

from __future__ import annotations

import time

import click

from shmaccum.arena.removal import CHECK_S, has_lost_its_name
from shmaccum.cli.group import ArenaRemovedFailure, Command, arena_argument, opened_read_only
from shmaccum.observe.prometheus import ArenaCollector, exposition
from shmaccum.observe.server import MetricsServer


@click.command(
    "metrics",
    cls=Command,
    epilog="Only the sender has Kafka's producer metrics: to serve both, use shmaccum sender ARENA --metrics "
    "HOST:PORT. Needs the package prometheus_client (extra metrics).",
)
@arena_argument
@click.option("--listen", "address", metavar="HOST:PORT", help="Serve http://HOST:PORT until Ctrl-C.")
def command(arena_name: str, address: str | None) -> None:
    """Print the metrics of an arena in Prometheus' text format, or serve them.

    With --listen, http://HOST:PORT shows the arena in a browser; /metrics is for Prometheus, /healthz and /readyz for
    probes.

    Only reads the arena; no process is contacted. Exits with 3 if the arena is removed.
    """
    with opened_read_only(arena_name) as arena:
        collector = ArenaCollector(arena)
        if address is None:
            click.echo(exposition(collector), nl=False)
            return
        server = MetricsServer(address, collector)
        click.echo(f"serving http://{address} (for browsers) and http://{address}/metrics", err=True)
        try:
            while not has_lost_its_name(arena):
                time.sleep(CHECK_S)
        finally:
            server.close()
        raise ArenaRemovedFailure(
            f"{arena_name} was removed: to serve a new arena of that name, start the command again"
        )
