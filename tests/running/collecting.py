# SPDX-License-Identifier: Apache-2.0
"""The workers of pytest-xdist share the compiling of test modules.

Pytest rewrites the assertions of a test module, compiles the module, and keeps the result in a file. A new clone has no
such files. All workers collect the same modules in the same order, so each of them would compile every module. With
this plugin each of n workers first imports every n-th module, and finds the files of the others when it collects.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest


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
