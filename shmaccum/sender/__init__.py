# SPDX-License-Identifier: Apache-2.0
"""The sender: drains what all processes of a host append, and has a sink deliver it. Begin with `rounds`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shmaccum.sender.sender import Sender

__all__ = ["Sender"]


def __getattr__(name: str) -> Any:
    """The sender, imported when it is asked for: a program that starts one in another process does without."""
    if name != "Sender":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shmaccum.sender.sender import Sender

    return Sender
