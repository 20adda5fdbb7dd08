# SPDX-License-Identifier: Apache-2.0
"""``shmaccum serve``: a log directory for any Kafka client."""

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
"""How long a thread that computes may keep Python's lock while the loop has clients to answer."""


@click.command(
    "serve", cls=Command, epilog="SIGTERM or Ctrl-C ends it. Exit codes: 0 it ended in order, 2 it could not begin."
)
@click.argument("directory", type=click.Path(file_okay=False))
@click.option(
    "--listen",
    default="127.0.0.1:9092",
    show_default=True,
    metavar="HOST:PORT",
    help="The address at which the server listens.",
)
@click.option(
    "--advertised-listener",
    metavar="HOST:PORT",
    help="The address at which clients find the server, where that is another one than --listen.",
)
@click.option(
    "--writable",
    is_flag=True,
    help="Let clients produce, create topics and delete topics; the log must have no sender.",
)
@click.option("--insecure", is_flag=True, help="Listen for other hosts, too, though connections are not encrypted.")
@click.option("--metrics", metavar="HOST:PORT", help="Serve Prometheus at http://HOST:PORT/metrics.")
@click.option(
    "-X", "options", multiple=True, metavar="OPTION=VALUE", help="An option (see shmaccum options server); repeatable."
)
@click.option("-q", "--quiet", is_flag=True, help="Log warnings and errors only.")
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

    Consumers of any language, their groups, and Kafka's own tools read what senders append. It is the log of one host:
    there is no replication.
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
            "serving %s at %s:%d, %s", server.directory, host, port, "to read and write" if writable else "to read"
        )
        with _metrics_server(server, metrics):
            server.run()
            logger.info("asked to stop: the server closes its connections and the log")
    logger.info("ended in order")


def _metrics_server(server: LogServer, address: str | None) -> contextlib.AbstractContextManager[object]:
    """Answers scrapes until it is closed, where an address is given."""
    if address is None:
        return contextlib.nullcontext()
    from shmaccum.observe.prometheus import ServerCollector  # an extra of the package
    from shmaccum.observe.server import MetricsServer

    return contextlib.closing(MetricsServer(address, ServerCollector(server.families)))


def _stop_on_signals(server: LogServer) -> None:
    def stop(_number: int, _frame: FrameType | None) -> None:
        server.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
