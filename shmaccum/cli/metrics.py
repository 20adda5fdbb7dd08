# SPDX-License-Identifier: Apache-2.0
"""``shmaccum metrics``: an arena's facts for Prometheus."""

from __future__ import annotations

import time

import click

from shmaccum.arena.removal import LOOK_S, has_lost_its_name
from shmaccum.cli.group import ArenaRemovedFailure, Command, arena_argument, looking_at
from shmaccum.observe.prometheus import ArenaCollector, exposition
from shmaccum.observe.server import MetricsServer


@click.command(
    "metrics",
    cls=Command,
    epilog="Kafka's producer metrics are known to the sender alone: shmaccum sender ARENA --metrics HOST:PORT serves "
    "both. Needs the package prometheus_client (extra metrics).",
)
@arena_argument
@click.option("--listen", "address", metavar="HOST:PORT", help="Serve http://HOST:PORT until Ctrl-C.")
def command(arena_name: str, address: str | None) -> None:
    """Print the facts of an arena in Prometheus' text format, or serve them.

    A browser finds the arena as a picture at http://HOST:PORT, Prometheus /metrics, and probes /healthz and /readyz.

    Reads the arena only and asks no process. Ends with 3 when the arena is removed.
    """
    with looking_at(arena_name) as arena:
        collector = ArenaCollector(arena)
        if address is None:
            click.echo(exposition(collector), nl=False)
            return
        server = MetricsServer(address, collector)
        click.echo(f"serving http://{address} for browsers, and http://{address}/metrics", err=True)
        try:
            while not has_lost_its_name(arena):
                time.sleep(LOOK_S)
        finally:
            server.close()
        raise ArenaRemovedFailure(f"{arena_name} was removed: start this again to serve the arena of that name")
