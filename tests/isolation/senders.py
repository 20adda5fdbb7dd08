# SPDX-License-Identifier: Apache-2.0
"""Senders in separate processes, with the options that this build knows."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from shmaccum.arena import Arena
from shmaccum.config import ArenaOptions, ProducerOptions, SenderOptions
from tests.support.processes import wait_until

ROOT = Path(__file__).resolve().parents[2]
START_S = 120.0


def known(table: type[ArenaOptions | ProducerOptions | SenderOptions], options: Mapping[str, str]) -> dict[str, str]:
    """The options that are in a table of this build. A build without an option runs with its own behaviour."""
    names = {field.name for field in dataclasses.fields(table)}
    return {name: value for name, value in options.items() if name in names}


class Senders:
    """The sender of an arena, and the one that waits to take over.

    Args:
        arena: that they deliver.
        bootstrap: brokers, as a Kafka client is given them.
        output: the file that gets their standard error.
        options: of the sender.

    Attributes:
        kill_count: senders that `replace` has killed.
    """

    def __init__(self, arena: Arena, bootstrap: str, output: Path, **options: str) -> None:
        self._arena = arena
        self._command = [sys.executable, "-m", "shmaccum.sender", arena.name, "--standby"]
        self._command += ["--sink", f"kafka:{bootstrap}"]
        for name, value in known(SenderOptions, options).items():
            self._command += ["--set", f"{name}={value}"]
        self._output = output
        self._processes: list[subprocess.Popen[bytes]] = []
        self.kill_count = 0

    def start(self) -> None:
        """Starts one more process. It waits for the role while another process has it."""
        with open(self._output, "ab") as output:
            process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=output, cwd=ROOT)
        self._processes.append(process)

    def wait_until_open(self) -> None:
        """Returns when a process has the role."""
        wait_until(lambda: self._arena.native.sender_is_alive, f"a sender begins: {self._output}", START_S)

    @property
    def has_standby(self) -> bool:
        """True when a process waits for the role."""
        return any(row["alive"] and row["role"] == "standby" for row in self._arena.native.processes())

    def replace(self) -> None:
        """Kills the process that has the role, and starts another one that waits for it."""
        wait_until(lambda: self.has_standby, f"a standby waits: {self._output}", START_S)
        self._end_first()
        self.kill_count += 1
        self.start()

    def _end_first(self) -> None:
        process = self._processes.pop(0)
        process.kill()
        process.wait()

    def close(self) -> None:
        """Kills all of them."""
        while self._processes:
            self._end_first()
