# SPDX-License-Identifier: Apache-2.0
"""``python -m shmaccum.sender ARENA --sink URL``: the program of the process that `shmaccum.ensure_sender` starts.

`shmaccum.sender.daemon` runs it there. People use ``shmaccum sender``. The protocol with the starting process: nothing
is written to standard output, which is closed after the role is taken and the sink is open, or when the process ends.
The reason of a failed start is written to standard error. The exit code is then 1, or 3 if the arena was removed.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterable, Mapping

from shmaccum.arena import DEFAULT_MODE
from shmaccum.arena.removal import EXIT_CODE
from shmaccum.config import command_line_value
from shmaccum.exceptions import ArenaRemovedError, ShmaccumError
from shmaccum.sender.service import SenderService, name_process

logger = logging.getLogger("shmaccum.sender")

FORMAT = "%(asctime)s %(levelname)s %(message)s"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m shmaccum.sender", description="Delivers the batches of an arena.")
    parser.add_argument("arena", help="name or path")
    parser.add_argument("--sink", required=True, help="kind:place, for example log:/var/lib/events")
    parser.add_argument("--standby", action="store_true", help="wait until the arena has no sender")
    parser.add_argument("--mode", type=lambda text: int(text, 8), default=DEFAULT_MODE, help="permissions of the arena")
    parser.add_argument("--group", help="the group that the arena has to belong to")
    parser.add_argument("--no-log", action="store_true", help="also close standard error after the start")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an option of the sender")
    parser.add_argument("--sink-set", action="append", default=[], metavar="NAME=VALUE", help="an option of the sink")
    return parser


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs = dict(text.split("=", 1) for text in texts)
    return {name: command_line_value(name, value) for name, value in pairs.items()}


def report_start(*, has_log: bool) -> None:
    """Close standard output, which reports the start to the process that waits on the other end."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    if not has_log:
        os.dup2(null, sys.stderr.fileno())
    os.close(null)


def main(
    arguments: list[str] | None = None, *, refusals: Iterable[str] = (), secrets: Mapping[str, str] | None = None
) -> int:
    """Run a sender, and return the exit code.

    Args:
        arguments: the command line by default.
        refusals: settings that a daemon could not reset, to be logged.
        secrets: further options of the sink, which must not be on a command line.
    """
    given = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format=FORMAT)
    for sentence in refusals:
        logger.warning("%s", sentence)
    try:
        service = SenderService(
            given.arena,
            given.sink,
            sink_options={**_pairs(given.sink_set), **(secrets or {})},
            standby=given.standby,
            mode=given.mode,
            group=given.group,
            on_open=lambda _: report_start(has_log=not given.no_log),
            **_pairs(given.set),
        )
        service.run_until_signalled()
    except (ShmaccumError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_CODE if isinstance(error, ArenaRemovedError) else 1
    return 0


if __name__ == "__main__":
    name_process()
    sys.exit(main())
