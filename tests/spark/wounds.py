# SPDX-License-Identifier: Apache-2.0
"""A data source whose tasks are injured in the middle of a write; workers import it by name."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from pyspark import TaskContext
from pyspark.sql.types import StructType

from shmaccum.spark.data_source import ShmaccumDataSource
from shmaccum.spark.node import node_producer
from shmaccum.spark.writers import BatchWriter, TaskCommit
from tests.support.arenas import sender_pid
from tests.support.processes import wait_until


def kill_worker(_writer: WoundedWriter) -> None:
    """Kill the worker, as the kernel or Spark itself does."""
    os.kill(os.getpid(), signal.SIGKILL)


def signal_sender(writer: WoundedWriter, number: signal.Signals) -> None:
    """Signal the process that currently has the role."""
    settings = writer.plan.settings
    pid = sender_pid(node_producer(settings.arena, settings.producer_options).arena)
    assert pid is not None
    os.kill(pid, number)


def kill_sender(writer: WoundedWriter) -> None:
    """Kill the sender, so that another one takes over."""
    signal_sender(writer, signal.SIGKILL)


def stop_sender(writer: WoundedWriter) -> None:
    """Stop the sender. It does not give up its role, as with a sink that blocks, so the arena becomes full."""
    signal_sender(writer, signal.SIGSTOP)


def continue_sender(writer: WoundedWriter) -> None:
    """Continue the stopped sender."""
    signal_sender(writer, signal.SIGCONT)


def fail(_writer: WoundedWriter) -> None:
    """Raise an error in the frame itself."""
    raise RuntimeError("a wound")


def kill_executor(_writer: WoundedWriter) -> None:
    """Kill the Java process whose daemon has forked this worker."""
    executor = next(parent for parent in psutil.Process().parents() if parent.name() == "java")
    os.kill(executor.pid, signal.SIGKILL)


def stall(writer: WoundedWriter) -> None:
    """Signal the middle of a write by a file. Stay there until the other attempt is done, or this process is killed."""
    Path(writer.sign).touch()
    wait_until(Path(writer.sign + ".done").exists, "another attempt has done it", 240)


WOUNDS = {
    "kill_worker": kill_worker,
    "kill_sender": kill_sender,
    "kill_executor": kill_executor,
    "stop_sender": stop_sender,
    "stop_sender_for_good": stop_sender,
    "fail": fail,
    "stall": stall,
}
CURES = {"stop_sender": continue_sender}
"""The action with which the next attempt at partition 0 begins."""


class WoundedWriter(BatchWriter):
    """Injures the first attempt at partition 0, after its first batch.

    Attributes:
        sign: a file that some wounds create. It contains the error that ended the first attempt. Later attempts at
            partition 0 create the file with the suffix ``.done``.
    """

    def __init__(self, whole: BatchWriter, wound: str, sign: str) -> None:
        super().__init__(whole.plan)
        self._wound = wound
        self.sign = sign

    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        """Write the rows of the task."""
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() != 0 or not self._wound:
            return super().write(iterator)
        if context.attemptNumber() == 0:
            return self._write_first(iterator)
        CURES.get(self._wound, lambda _: None)(self)
        done = super().write(iterator)
        if self.sign:
            Path(self.sign + ".done").touch()
        return done

    def _write_first(self, iterator: Iterator[Any]) -> TaskCommit:
        try:
            return super().write(self._hurt(iterator))
        except Exception as error:
            if self.sign:
                Path(self.sign).write_text(str(error), encoding="utf-8")
            raise

    def _hurt(self, iterator: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(iterator):
            if number == 1:
                WOUNDS[self._wound](self)
            yield batch


class WoundedSource(ShmaccumDataSource):
    """``format("wounded")``: the data source with one additional option."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format(...)``."""
        return "wounded"

    def writer(self, schema: StructType, overwrite: bool) -> WoundedWriter:
        """The writer of a batch job."""
        wound, sign = self.options.pop("wound"), self.options.pop("sign", "")
        return WoundedWriter(super().writer(schema, overwrite), wound, sign)
