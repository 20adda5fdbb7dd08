# SPDX-License-Identifier: Apache-2.0
"""Imports the package ``kafka`` without its clients, which neither a sender nor a server needs.

So a sender imports 105 modules less, and delivers sooner after a death. A program can still import a client from the
package, as in ``from kafka import KafkaConsumer``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

MADE_ALONE = {
    "kafka.protocol.admin": {"ListGroupsRequest", "ListGroupsResponse"},
    "kafka.protocol.consumer": {"OffsetFetchRequest", "OffsetFetchResponse"},
    "kafka.protocol.producer": {"InitProducerIdRequest", "InitProducerIdResponse"},
}
"""The messages of each package that are created without the others.

A connection of kafka-python needs the first two pairs to detect the version of an old broker, and a sender requests its
producer id with the third. The packages create a hundred messages, each in 1 ms.
"""


class _WithoutClients(ModuleType):
    """The package before its code has run."""

    def __getattr__(self, name: str) -> Any:
        """Returns a message or a module of the package. For any other name, the package's code runs first."""
        if name in MADE_ALONE.get(self.__name__, ()):
            from kafka.protocol.api_message import ApiMessage

            # kafka-python makes its messages in the same way: it finds the schema by the name.
            for message in MADE_ALONE[self.__name__]:
                self.__dict__[message] = type(ApiMessage)(message, (ApiMessage,), {})
            return self.__dict__[name]
        if not name.startswith("__") and importlib.util.find_spec(f"{self.__name__}.{name}") is not None:
            return importlib.import_module(f"{self.__name__}.{name}")
        self.__class__ = ModuleType  # type: ignore[assignment] # from now on it is an ordinary package
        assert self.__spec__ is not None
        assert self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def import_without_clients(name: str) -> None:
    """Makes a package importable without running its code. A package that is already imported is not changed.

    If the package is inside another package, the code of the other one runs.
    """
    if name in sys.modules or (spec := importlib.util.find_spec(name)) is None:
        return
    package = importlib.util.module_from_spec(spec)
    package.__class__ = _WithoutClients
    sys.modules[name] = package
    outer, _, inner = name.rpartition(".")
    if outer:
        setattr(sys.modules[outer], inner, package)
