# SPDX-License-Identifier: Apache-2.0
"""The modules of shmaccum on macOS and Windows, where an arena cannot exist.

A program that runs on Linux can be imported and tested there. Each module that is imported after `install` has a
substitute:

::

    shmaccum.compat.confluent      the names of the library, so its own producers, which ignore the options of
                                   shmaccum. The first import warns.
    any other module               each name is a class. A call of it, and each of its attributes, raises
                                   UnsupportedPlatformError.

On Linux, the environment variable ``SHMACCUM_COMPAT=library`` substitutes the drop-in modules and no others.
"""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections.abc import Container, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, NoReturn

from shmaccum.common.packages import needed
from shmaccum.exceptions import UnsupportedPlatformError

PLATFORM = {"darwin": "macOS", "win32": "Windows"}.get(sys.platform, sys.platform)
LIBRARIES = {
    "shmaccum.compat.aiokafka": ("aiokafka", "aiokafka", ("aiokafka",)),
    "shmaccum.compat.confluent": ("confluent-kafka", "confluent", ("confluent_kafka", "confluent_kafka.aio")),
    "shmaccum.compat.kafka_python": ("kafka-python", "kafka", ("kafka",)),
}
"""The library of each drop-in module: its package, the extra that installs it, and the modules that have its names."""
PRODUCERS = {"AIOKafkaProducer", "AIOProducer", "KafkaProducer", "Producer", "SerializingProducer"}
OPTION_PREFIX = "shmaccum_"
"""The options of shmaccum in a drop-in module (compat/settings.py)."""
REAL = ("shmaccum.__main__", "shmaccum.compat")
NATIVE = "shmaccum._native"
COMMAND = "shmaccum.cli"
SWITCH = "SHMACCUM_COMPAT=library"


def _refusal(name: str) -> UnsupportedPlatformError:
    return UnsupportedPlatformError(
        f"{name} needs Linux, and this is {PLATFORM}: run the program on Linux, in a container or in WSL 2, "
        "or use a producer of shmaccum.compat, which is the library's own here"
    )


class Substitute(type):
    """The class of the classes that take the place of classes and functions."""

    def __call__(cls, *_arguments: Any, **_options: Any) -> NoReturn:
        raise _refusal(cls.__qualname__)

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("__"):  # typing, inspect and pickle look for optional attributes
            raise AttributeError(name)
        raise _refusal(f"{cls.__qualname__}.{name}")


def _substitute(module: ModuleType, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
    full_name = f"{module.__name__}.{name}"
    made = Substitute(name, (), {"__module__": module.__name__, "__qualname__": full_name})
    return module.__dict__.setdefault(name, made)


def _exit(**_options: Any) -> NoReturn:
    sys.exit(str(_refusal("the command shmaccum")))


def _library_name(modules: tuple[str, ...], name: str) -> Any:
    for module in map(importlib.import_module, modules):
        if hasattr(module, name):
            found = getattr(module, name)
            return _without_our_options(found) if name in PRODUCERS else found
    raise AttributeError(f"{modules[0]} has no {name!r}")


@functools.cache
def _without_our_options(producer: type) -> type:
    """Returns the library's producer as a class that ignores the options of shmaccum."""

    def __init__(self: Any, *arguments: Any, **options: Any) -> None:  # noqa: N807
        given = {name: _others(value) for name, value in _others(options).items()}
        producer.__init__(self, *map(_others, arguments), **given)  # type: ignore[misc]

    return type(producer.__name__, (producer,), {"__init__": __init__, "__doc__": producer.__doc__})


def _others(options: Any) -> Any:
    """Returns a dict of options without those of shmaccum. Any other object is returned unchanged."""
    if not isinstance(options, dict):
        return options
    return {name: value for name, value in options.items() if not _is_ours(name)}


def _is_ours(name: object) -> bool:
    return isinstance(name, str) and name.replace(".", "_").startswith(OPTION_PREFIX)


@functools.cache
def _warn() -> None:
    reason = f"shmaccum needs Linux, and this is {PLATFORM}" if sys.platform != "linux" else SWITCH
    sentence = f"{reason}: shmaccum.compat has the libraries' own producers here"
    warnings.warn(sentence, RuntimeWarning, stacklevel=3)


class Substitutes:
    """A finder and loader of `sys.meta_path`, which comes before all others.

    Args:
        only: the modules to substitute, or None for all.
    """

    def __init__(self, only: Container[str] | None = None) -> None:
        self._only = only

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec of a module of shmaccum that exists on Linux. None for any other name."""
        if not fullname.startswith("shmaccum.") or fullname in REAL:
            return None
        if self._only is not None and fullname not in self._only:
            return None
        found = PathFinder.find_spec(fullname, path, target)
        if found is None and fullname != NATIVE:
            return None
        spec = ModuleSpec(fullname, self)  # type: ignore[arg-type]
        spec.submodule_search_locations = None if found is None else found.submodule_search_locations
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """Returns None, which makes an ordinary module."""
        del spec

    def exec_module(self, module: ModuleType) -> None:
        """Gives the module its names.

        Raises:
            PackageMissingError: the library of a drop-in module is not installed.
        """
        find = functools.partial(_substitute, module)
        if module.__name__ in LIBRARIES:
            package, extra, modules = LIBRARIES[module.__name__]
            with needed(package, extra, f"{module.__name__} needs"):
                importlib.import_module(modules[0])
            find = functools.partial(_library_name, modules)
            _warn()
        elif module.__name__ == COMMAND:
            module.__dict__["main"] = _exit
        module.__dict__["__getattr__"] = find


def install() -> None:
    """Substitutes all modules of shmaccum that this process has not imported yet."""
    _put_first(Substitutes())


def install_libraries() -> None:
    """Substitutes the drop-in modules that this process has not imported yet."""
    _put_first(Substitutes(LIBRARIES))


def _put_first(substitutes: Substitutes) -> None:
    if not any(type(finder).__name__ == Substitutes.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, substitutes)
