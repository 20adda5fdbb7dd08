# SPDX-License-Identifier: Apache-2.0
"""``shmaccum ship``: send a log directory to Kafka."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Mapping
from types import FrameType
from typing import Any

import click

from shmaccum.cli.group import EXIT_BAD, Command, assignments, json_option, print_json, start_logging
from shmaccum.cli.log_place import directory_argument
from shmaccum.cli.sender import split_options
from shmaccum.common import clock
from shmaccum.common.background import log_exception, started_thread
from shmaccum.common.clock import NS_PER_S
from shmaccum.common.units import format_count, format_duration_ns, format_size, parse_duration_ns
from shmaccum.config import ShipperOptions
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.log.files.start import OFFSET_FORMS
from shmaccum.sender.shipping import Shipper, ShippingProgress
from shmaccum.sender.shipping.shipper import forget

logger = logging.getLogger(__name__)


def _sentence(progress: ShippingProgress, elapsed_s: float) -> str:
    """Returns the progress as text: records shipped, the rate, and the records left."""
    rate = progress.byte_count / elapsed_s if elapsed_s > 0 else 0.0
    text = (
        f"shipped {format_count(progress.record_count, 'record')} ({format_size(progress.byte_count)}, "
        f"{format_size(int(rate))}/s); {format_count(progress.left_record_count, 'record')} "
        f"({format_size(progress.left_byte_count)}) left"
    )
    if progress.left_byte_count and rate >= 1:
        text += f", about {format_duration_ns(int(progress.left_byte_count / rate) * NS_PER_S)}"
    return text if progress.outage is None else f"{text}; {progress.outage}"


REPORTER_JOIN_S = 1.0


class _Foreground:
    """Runs a shipper in the foreground, and reports its progress."""

    def __init__(self, shipper: Shipper, interval_ns: int, *, is_json: bool) -> None:
        self._shipper = shipper
        self._interval_s = interval_ns / NS_PER_S
        self._is_json = is_json
        self._begun_s = clock.monotonic()
        self._is_over = threading.Event()

    def run(self, *, follow: bool) -> ShippingProgress:
        """Ships, and reports the progress at intervals."""
        self._stop_on_signals()
        reporter = started_thread(self._report_regularly, "shmaccum-progress", logger)
        try:
            progress = self._shipper.run(follow=follow)
        finally:
            self._is_over.set()
            if reporter is not None:
                reporter.join(REPORTER_JOIN_S)
        self._report(progress)
        return progress

    def _report_regularly(self) -> None:
        while not self._is_over.wait(self._interval_s):
            try:
                self._report(self._shipper.progress())
            except BaseException:  # noqa: BLE001, PERF203 - if standard output is closed, keep logging
                log_exception(logger, "the progress could not be reported")

    def _report(self, progress: ShippingProgress) -> None:
        if self._is_json:
            refusals = {str(place): sentence for place, sentence in progress.refusals.items()}
            print_json({**progress._asdict(), "refusals": refusals})
        else:
            logger.info("%s", _sentence(progress, clock.monotonic() - self._begun_s))

    def _stop_on_signals(self) -> None:
        def stop(_number: int, _frame: FrameType | None) -> None:
            self._shipper.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)


def _renames(texts: tuple[str, ...]) -> Mapping[str, str]:
    """Returns the new topic names by old names.

    Raises:
        InvalidArgumentError: a text is not OLD=NEW.
    """
    pairs = [text.partition("=") for text in texts]
    if wrong := [text for text, (old, _, new) in zip(texts, pairs, strict=True) if not old or not new]:
        raise InvalidArgumentError(f"{wrong[0]!r} is not OLD=NEW: write it like --rename flights=site-a.flights")
    return {old: new for old, _, new in pairs}


def _starts(texts: tuple[str, ...]) -> Mapping[str, str]:
    """Returns starts by topic or topic and partition. The empty name applies to all others."""
    return {name: start for name, _, start in (text.rpartition("=") for text in texts)}


@click.command(
    "ship",
    cls=Command,
    epilog="After SIGTERM or Ctrl-C, the shipper waits for the batches in flight and exits. The next run continues "
    "from there, also after a kill, and sends nothing twice. Exit codes: 0 stopped cleanly, 1 a part of the log is "
    "damaged or was rejected by the sink and is not shipped, 2 failed.",
)
@directory_argument
@click.option("--to", "url", metavar="KIND:PLACE", help="The sink: kafka:HOST:PORT[,HOST:PORT...], or log:DIR.")
@click.option("-t", "--topics", metavar="NAME[,NAME...]", help="Only these topics.")
@click.option("--rename", "renames", multiple=True, metavar="OLD=NEW", help="Ship topic OLD as topic NEW; repeatable.")
@click.option(
    "--from",
    "starts",
    multiple=True,
    metavar="[TOPIC[:PARTITION]=]OFFSET",
    help=f"The start of the first run: {OFFSET_FORMS}; repeatable.  [default: beginning]",
)
@click.option("--once", is_flag=True, help="Exit when the present contents of the log are shipped.")
@click.option("--rate-limit", metavar="SIZE", help="The most bytes per second, for example 10MiB.")
@click.option(
    "--progress",
    "interval",
    default="10s",
    show_default=True,
    metavar="DURATION",
    help="The time between two progress reports.",
)
@click.option(
    "--forget",
    "is_forgetting",
    is_flag=True,
    help="Forget the shipping positions, so that retention no longer waits for shipping.",
)
@click.option(
    "-X",
    "options",
    multiple=True,
    metavar="OPTION=VALUE",
    help="Set an option of the shipper or its sink (see shmaccum options); repeatable.",
)
@click.option("-q", "--quiet", is_flag=True, help="Log only warnings and errors.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    *,
    directory: str,
    url: str | None,
    topics: str | None,
    renames: tuple[str, ...],
    starts: tuple[str, ...],
    once: bool,
    rate_limit: str | None,
    interval: str,
    is_forgetting: bool,
    options: tuple[str, ...],
    quiet: bool,
    is_json: bool,
) -> None:
    """Send a log directory to Kafka, once or continuously.

    Batches are sent unchanged, in order within each partition. The log directory stores the positions, so a later run
    continues where this one ended. Retention does not delete what is not shipped yet.
    """
    if is_forgetting:
        path = os.path.abspath(directory)
        click.echo(f"the shipping positions of {path} were forgotten" if forget(path) else f"{path} has no positions")
        return
    if url is None:
        raise InvalidArgumentError("ship needs a sink: name it with --to, as in --to kafka:localhost:9092")
    given = assignments(options) | ({} if rate_limit is None else {"rate_limit": rate_limit})
    of_shipper, of_sink = split_options(given, url, ShipperOptions)
    start_logging(logging.WARNING if quiet else logging.INFO)
    names = None if topics is None else [name for name in topics.split(",") if name]
    routes: dict[str, Any] = {"topics": names, "rename": _renames(renames), "start": _starts(starts)}
    shipper = Shipper(directory, url, sink_options=of_sink, **routes, **of_shipper)
    progress = _Foreground(shipper, parse_duration_ns(interval), is_json=is_json).run(follow=not once)
    if progress.damage_count or progress.refusals:
        ctx.exit(EXIT_BAD)
