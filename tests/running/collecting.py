# SPDX-License-Identifier: Apache-2.0
"""The workers of pytest-xdist share the compiling of test modules.

Pytest rewrites the assertions of a test module, compiles the module, and keeps the result in a file. A new clone has no
such files. All workers collect the same modules in the same order, so each of them would compile every module. With
this plugin each of n workers first imports every n-th module, and finds the files of the others when it collects.

The id of a test is the same in each process: workers that find different ids run no test at all. So an id holds no
address of an object, and nothing random. The plugin refuses the run otherwise, and names the test.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ADDRESS = " at 0x"
ADVICE = "give its parameters ids that are the same in each process (ids=, pytest.param(..., id=))"


def module_names(config: pytest.Config) -> Iterator[str]:
    """The test modules below the folders that this run collects, by the names that pytest gives them."""
    for folder in (Path(config.rootpath, argument) for argument in config.args):
        for path in sorted(folder.rglob("test_*.py")):
            yield ".".join(path.relative_to(config.rootpath).with_suffix("").parts)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Imports this worker's share. The collector reports a module that skips itself or cannot be imported."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    for name in list(module_names(session.config))[number % count :: count]:
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)


def check_ids(ids: Sequence[str], others: Sequence[str]) -> None:
    """Refuses ids of tests that differ between processes.

    Args:
        ids: of the tests that one process has collected.
        others: those of another process.

    Raises:
        pytest.UsageError: an id holds an address, or is not the same in both; the message names it.
    """
    for name in ids:
        if ADDRESS in name:
            raise pytest.UsageError(f"the id of the test {name} holds the address of an object: {ADVICE}")
    if list(ids) != list(others):
        strange = {*ids} ^ {*others}
        where = f"the test {min(strange)}" if strange else "their order differs"
        raise pytest.UsageError(f"two workers do not collect the same tests, for example {where}: {ADVICE}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Looks at the ids of a run without workers."""
    if not hasattr(config, "workerinput"):
        ids = [item.nodeid for item in items]
        check_ids(ids, ids)


class CollectedIds:
    """The plugin of the controller: looks at the ids of all workers, of which the first is the measure."""

    def __init__(self) -> None:
        self._first: list[str] | None = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """A worker has collected."""
        if self._first is None:
            self._first = ids
        check_ids(ids, self._first)


def pytest_configure(config: pytest.Config) -> None:
    """A run with workers has the other plugin."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(CollectedIds())
