# SPDX-License-Identifier: Apache-2.0
"""``shmaccum serve``: serve a log directory to Kafka clients."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from shmaccum.cli.group import Command, assignments, start_logging
from shmaccum.common.descriptors import raise_limit

if TYPE_CHECKING:
    from shmaccum.log.server import LogServer

logger = logging.getLogger(__name__)

SWITCH_S = 0.001
"""The longest time that a computing thread holds the GIL while the event loop has requests to answer."""


@click.command(
    "serve", cls=Command, epilog="SIGTERM and Ctrl-C stop it. Exit codes: 0 stopped cleanly, 2 failed to start."
)
@click.argument("directory", type=click.Path(file_okay=False))
@click.option("--listen", default="127.0.0.1:9092", show_default=True, metavar="HOST:PORT", help="The listen address.")
@click.option("--advertised-listener", metavar="HOST:PORT", help="The address for clients if it differs from --listen.")
@click.option("--writable", is_flag=True, help="Let clients produce and manage topics. The log must have no sender.")
@click.option("--insecure", is_flag=True, help="Accept unencrypted connections from other hosts.")
@click.option("--metrics", metavar="HOST:PORT", help="Serve metrics for Prometheus at http://HOST:PORT/metrics.")
@click.option(
    "-X",
    "options",
    multiple=True,
    metavar="OPTION=VALUE",
    help="An option (shmaccum options server); repeatable.",
)
@click.option("-q", "--quiet", is_flag=True, help="Log only warnings and errors.")
def command(
    directory: str,
    listen: str,
    advertised_listener: str | None,
    writable: bool,
    insecure: bool,
    metrics: str | None,
    options: tuple[str, ...],
    quiet: bool,
) -> None:
    """Serve a log directory to Kafka clients.

    Consumers in any language, consumer groups and Kafka's tools can read the log. It is the log of one host, without
    replication.
    """
    start_logging(logging.WARNING if quiet else logging.INFO)
    raise_limit()
    sys.setswitchinterval(SWITCH_S)
    given: dict[str, Any] = assignments(options) | ({"insecure": "true"} if insecure else {})
    if advertised_listener is not None:
        given["advertised_listener"] = advertised_listener
    from shmaccum.log.server import LogServer  # needs kafka-python

    with LogServer(directory, listen, is_writable=writable, **given) as server:
        _stop_on_signals(server)
        host, port = server.address
        logger.info(
            "serving %s at %s:%d, %s",
            server.directory,
            host,
            port,
            "readable and writable" if writable else "read-only",
        )
        with _metrics_server(server, metrics):
            server.run()
            logger.info("stopping: closing connections and the log")
    logger.info("stopped cleanly")


def _metrics_server(server: LogServer, address: str | None) -> contextlib.AbstractContextManager[object]:
    """Returns a metrics server as a context manager, or a null context if there is no address."""
    if address is None:
        return contextlib.nullcontext()
    from shmaccum.observe.prometheus import ServerCollector  # needs prometheus_client, an extra
    from shmaccum.observe.server import MetricsServer

    return contextlib.closing(MetricsServer(address, ServerCollector(server.families)))


def _stop_on_signals(server: LogServer) -> None:
    def stop(_number: int, _frame: FrameType | None) -> None:
        server.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
