# SPDX-License-Identifier: Apache-2.0
"""Blocks that end in a `close`: of ``with``, and of ``async with``."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class ClosedOnExit(abc.ABC):
    """An object that the end of its ``with`` block closes, whatever ends the block."""

    @abc.abstractmethod
    def close(self) -> object:
        """Lets go of everything."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class StoppedOnExit(abc.ABC):
    """An object of asyncio that the begin of its ``async with`` block starts, and whose end stops it."""

    @abc.abstractmethod
    async def start(self) -> None:
        """Begins the work."""

    @abc.abstractmethod
    async def stop(self) -> None:
        """Lets go of everything."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()
