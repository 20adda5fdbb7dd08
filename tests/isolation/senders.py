# SPDX-License-Identifier: Apache-2.0
"""Run senders in separate processes, with the options that their build has."""

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
    """Return the options that a table of this build has. The others are omitted."""
    names = {field.name for field in dataclasses.fields(table)}
    return {name: value for name, value in options.items() if name in names}


class Senders:
    """The sender of an arena, and the one that waits to take over.

    Args:
        arena: the arena whose records they deliver.
        bootstrap: the addresses of brokers, as for a Kafka client.
        output: the file for their standard error.
        options: the options of the sender.

    Attributes:
        kill_count: the number of senders that `replace` has killed.
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
        """Start one more process. It waits for the role while another process has it."""
        with open(self._output, "ab") as output:
            process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=output, cwd=ROOT)
        self._processes.append(process)

    def wait_until_open(self) -> None:
        """Wait until a process has the role."""
        wait_until(lambda: self._arena.native.sender_is_alive, f"a sender begins: {self._output}", START_S)

    @property
    def has_standby(self) -> bool:
        """Return True if a process waits for the role."""
        return any(row["alive"] and row["role"] == "standby" for row in self._arena.native.processes())

    def replace(self) -> None:
        """Kill the process that has the role, and start another one that waits for it."""
        wait_until(lambda: self.has_standby, f"a standby waits: {self._output}", START_S)
        self._end_first()
        self.kill_count += 1
        self.start()

    def _end_first(self) -> None:
        process = self._processes.pop(0)
        process.kill()
        process.wait()

    def close(self) -> None:
        """Kill all senders."""
        while self._processes:
            self._end_first()
