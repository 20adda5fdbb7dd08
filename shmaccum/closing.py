# SPDX-License-Identifier: Apache-2.0
"""A ``with`` block that ends in `close`."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class ClosedOnExit(abc.ABC):
    """An object that the end of its ``with`` block closes, whatever ends the block."""

    @abc.abstractmethod
    def close(self) -> None:
        """Lets go of everything."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
