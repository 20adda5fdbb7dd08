# SPDX-License-Identifier: Apache-2.0
"""A data source that writes exactly once and is injured; workers and commits import it by name.

Wounds of a task affect the first attempt at partition 0, after its first batch of rows. Wounds of a commit affect a
given system call of the commit of a given micro-batch.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql.types import StructType

from shmaccum.spark.data_source import ShmaccumDataSource
from shmaccum.spark.exactly_once import ExactlyOnceBatchWriter, ExactlyOnceStreamWriter, StagedCommit
from shmaccum.spark.writers import SinkPlan
from tests.support.system_calls import Interruption


def kill_worker() -> None:
    """Kill the worker, as the kernel or Spark itself does."""
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    """Raise an error in the frame itself."""
    raise RuntimeError("a wound")


def hang() -> None:
    """Stop writing without ever ending."""
    while True:
        signal.pause()


WOUNDS: dict[str, Callable[[], None]] = {"none": lambda: None, "kill_worker": kill_worker, "fail": fail, "hang": hang}


def wounded(iterator: Iterator[Any], wound: str, touched: str) -> Iterator[Any]:
    """Yield the rows of a task. For the injured attempt, yield only the first batch, and write the file *touched*."""
    context = TaskContext.get()
    assert context is not None
    is_hurt = context.partitionId() == 0 and context.attemptNumber() == 0 and wound != "none"
    for number, batch in enumerate(iterator):
        if number == 1 and is_hurt:
            with open(touched, "w", encoding="ascii") as file:
                file.write(str(os.getpid()))
            WOUNDS[wound]()
        yield batch


class WoundedBatchWriter(ExactlyOnceBatchWriter):
    """Injures a task."""

    def __init__(self, plan: SinkPlan, wound: str, touched: str) -> None:
        super().__init__(plan)
        self._wound, self._touched = wound, touched

    def write(self, iterator: Iterator[Any]) -> StagedCommit:
        """Write the rows of the task."""
        return super().write(wounded(iterator, self._wound, self._touched))


class WoundedStreamWriter(ExactlyOnceStreamWriter):
    """Injures a task, or the driver in the middle of a commit.

    Args:
        death: ``BATCH:CALL:PID``. At this system call of this micro-batch's commit, kill this process, the driver's
            Java, and the commit.
    """

    def __init__(self, plan: SinkPlan, wound: str, touched: str, death: str) -> None:
        super().__init__(plan)
        self._wound, self._touched, self._death = wound, touched, death

    def write(self, iterator: Iterator[Any]) -> StagedCommit:
        """Write the rows of the task."""
        return super().write(wounded(iterator, self._wound, self._touched))

    def commit(self, messages: Sequence[StagedCommit | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit the micro-batch."""
        if self._death:
            batch, call, pid = map(int, self._death.split(":"))
            if batch == batchId:
                with pytest.MonkeyPatch.context() as patch:
                    Interruption(call, lambda: self._die(pid)).install(patch)
                    super().commit(messages, batchId)
                return
        super().commit(messages, batchId)

    def _die(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


class WoundedStagingSource(ShmaccumDataSource):
    """``format("wounded_staging")``: the data source with exactly_once, and the options wound, touched and death."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format(...)``."""
        return "wounded_staging"

    def _wounds(self) -> tuple[str, str, str]:
        return self.options.pop("wound", "none"), self.options.pop("touched", ""), self.options.pop("death", "")

    def writer(self, schema: StructType, overwrite: bool) -> WoundedBatchWriter:
        """The writer of a batch job."""
        wound, touched, _ = self._wounds()
        whole = super().writer(schema, overwrite)
        return WoundedBatchWriter(whole.plan, wound, touched)

    def streamWriter(self, schema: StructType, overwrite: bool) -> WoundedStreamWriter:  # noqa: N802 - Spark's name
        """The writer of a query."""
        wounds = self._wounds()
        whole = super().streamWriter(schema, overwrite)
        return WoundedStreamWriter(whole.plan, *wounds)
