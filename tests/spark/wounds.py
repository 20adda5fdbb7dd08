# SPDX-License-Identifier: Apache-2.0
"""A data source whose tasks are hurt in the middle of a write; workers import it by name."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext
from pyspark.sql.types import StructType

from shmaccum.spark.data_source import ShmaccumDataSource
from shmaccum.spark.node import node_producer
from shmaccum.spark.writers import BatchWriter, TaskCommit


def kill_worker(_writer: WoundedWriter) -> None:
    """As the kernel, or Spark itself, does."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_sender(writer: WoundedWriter) -> None:
    """The one that has the role at this moment."""
    settings = writer.plan.settings
    native = node_producer(settings.arena, settings.producer_options).arena.native
    entry = native.sender()["entry"]
    pids = [row["pid"] for row in native.processes() if row["entry"] == entry]
    os.kill(pids[0], signal.SIGKILL)


def fail(_writer: WoundedWriter) -> None:
    """An error in the frame itself."""
    raise RuntimeError("a wound")


WOUNDS = {"kill_worker": kill_worker, "kill_sender": kill_sender, "fail": fail}


class WoundedWriter(BatchWriter):
    """Hurts the first attempt at partition 0, after its first batch."""

    def __init__(self, whole: BatchWriter, wound: str) -> None:
        super().__init__(whole.plan)
        self._wound = wound

    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        """The task."""
        context = TaskContext.get()
        assert context is not None
        is_hurt = context.partitionId() == 0 and context.attemptNumber() == 0
        return super().write(self._hurt(iterator) if is_hurt else iterator)

    def _hurt(self, iterator: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(iterator):
            if number == 1:
                WOUNDS[self._wound](self)
            yield batch


class WoundedSource(ShmaccumDataSource):
    """``format("wounded")``: as ours, with one option more."""

    @classmethod
    def name(cls) -> str:
        """What stands in ``format(...)``."""
        return "wounded"

    def writer(self, schema: StructType, overwrite: bool) -> WoundedWriter:
        """Of a batch job."""
        wound = self.options.pop("wound")
        return WoundedWriter(super().writer(schema, overwrite), wound)
