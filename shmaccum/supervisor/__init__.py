# SPDX-License-Identifier: Apache-2.0
"""A supervisor starts a sender in a process of its own. It imports neither the producer's code nor the sender's.

::

    supervisor     the thread that restarts a sender after it died
    start          starts a sender for a process that needs one; `ensure_sender`
    inheritance    the folders and the umask that a sender's process gets
    kept_producer  the public `Producer`; if a sink is given, it has a supervisor, too
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shmaccum.supervisor.start import IDLE_EXIT_DEFAULT, Recipe, ensure_sender
    from shmaccum.supervisor.supervisor import SenderSupervisor

__all__ = ["IDLE_EXIT_DEFAULT", "Recipe", "SenderSupervisor", "ensure_sender"]

_HOMES = {
    "SenderSupervisor": "supervisor",
    "IDLE_EXIT_DEFAULT": "start",
    "Recipe": "start",
    "ensure_sender": "start",
}


def __getattr__(name: str) -> Any:
    """Import a module on the first access to its name: a producer without a sink needs none."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value
