# SPDX-License-Identifier: Apache-2.0
"""Base classes of objects that the end of a ``with`` or ``async with`` block closes."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class ClosedOnExit(abc.ABC):
    """An object that is closed on exit from its ``with`` block, whatever ends the block."""

    @abc.abstractmethod
    def close(self) -> object:
        """Releases all resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class StoppedOnExit(abc.ABC):
    """An asyncio object that starts on entry to its ``async with`` block and stops on exit."""

    @abc.abstractmethod
    async def start(self) -> None:
        """Starts the work."""

    @abc.abstractmethod
    async def stop(self) -> None:
        """Releases all resources."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()
