# SPDX-License-Identifier: Apache-2.0
"""``python -m shmaccum run``: the demonstration of ``make run``."""

from __future__ import annotations

import argparse
import sys

from shmaccum import demonstration


def main() -> int:
    """The command line; answers the exit code."""
    parser = argparse.ArgumentParser(prog="python -m shmaccum", description="One Kafka producer per host.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("run", help="four workers, one arena, one of them killed: what is lost?")
    parser.parse_args()
    return demonstration.run()


if __name__ == "__main__":
    sys.exit(main())
