# SPDX-License-Identifier: Apache-2.0
"""A data source whose tasks are hurt in the middle of a write; workers import it by name."""

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
    """As the kernel, or Spark itself, does."""
    os.kill(os.getpid(), signal.SIGKILL)


def signal_sender(writer: WoundedWriter, number: signal.Signals) -> None:
    """Signals the process that has the role at this moment."""
    settings = writer.plan.settings
    pid = sender_pid(node_producer(settings.arena, settings.producer_options).arena)
    assert pid is not None
    os.kill(pid, number)


def kill_sender(writer: WoundedWriter) -> None:
    """Another one takes over."""
    signal_sender(writer, signal.SIGKILL)


def stop_sender(writer: WoundedWriter) -> None:
    """It keeps its role and does nothing, as with a sink that hangs: the arena becomes full."""
    signal_sender(writer, signal.SIGSTOP)


def continue_sender(writer: WoundedWriter) -> None:
    """The stopped sender goes on."""
    signal_sender(writer, signal.SIGCONT)


def fail(_writer: WoundedWriter) -> None:
    """An error in the frame itself."""
    raise RuntimeError("a wound")


def kill_executor(_writer: WoundedWriter) -> None:
    """The Java process whose daemon has forked this worker."""
    executor = next(parent for parent in psutil.Process().parents() if parent.name() == "java")
    os.kill(executor.pid, signal.SIGKILL)


def stall(writer: WoundedWriter) -> None:
    """Says that it is in the middle of a write, and stays there until the other attempt is done, or it is killed."""
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
"""The wound with which the next attempt at partition 0 begins."""


class WoundedWriter(BatchWriter):
    """Hurts the first attempt at partition 0, after its first batch.

    Attributes:
        sign: a file that some wounds make, and in which an error is that ended the first attempt; with ``.done`` behind
            it the one that the attempts at partition 0 make that came later.
    """

    def __init__(self, whole: BatchWriter, wound: str, sign: str) -> None:
        super().__init__(whole.plan)
        self._wound = wound
        self.sign = sign

    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        """The task."""
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
    """``format("wounded")``: as ours, with one option more."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format(...)``."""
        return "wounded"

    def writer(self, schema: StructType, overwrite: bool) -> WoundedWriter:
        """The writer of a batch job."""
        wound, sign = self.options.pop("wound"), self.options.pop("sign", "")
        return WoundedWriter(super().writer(schema, overwrite), wound, sign)
