# SPDX-License-Identifier: Apache-2.0
"""The package ``kafka`` without its clients: its code imports them all, and neither a sender nor a server needs one.

A sender imports 105 modules fewer by this, so the one that starts after a death delivers sooner, and a server answers
sooner. A program that asks the package for a client, as in ``from kafka import KafkaConsumer``, finds it as ever.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

HOMES = {
    "kafka.protocol.admin": {"ListGroupsRequest": "groups"},
    "kafka.protocol.consumer": {"OffsetFetchRequest": "group"},
}
"""Names that a connection of kafka-python takes from a package, and the module of that package which has each.

A connection wants these two messages to tell the version of an old broker. The packages make a hundred messages, 1 ms
for each.
"""


class _WithoutClients(ModuleType):
    """The package before its code has run."""

    def __getattr__(self, name: str) -> Any:
        """A module of the package, or a name with a known module; for any other name the package's code runs first."""
        if (home := HOMES.get(self.__name__, {}).get(name)) is not None:
            return getattr(importlib.import_module(f"{self.__name__}.{home}"), name)
        if not name.startswith("__") and importlib.util.find_spec(f"{self.__name__}.{name}") is not None:
            return importlib.import_module(f"{self.__name__}.{name}")
        self.__class__ = ModuleType  # type: ignore[assignment] # from here on it is as any other package
        assert self.__spec__ is not None
        assert self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def import_without_clients(name: str) -> None:
    """Makes a package importable without running its code; one that is imported already stays as it is.

    The package may lie in another one, whose code runs.
    """
    if name in sys.modules or (spec := importlib.util.find_spec(name)) is None:
        return
    package = importlib.util.module_from_spec(spec)
    package.__class__ = _WithoutClients
    sys.modules[name] = package
    outer, _, inner = name.rpartition(".")
    if outer:
        setattr(sys.modules[outer], inner, package)
