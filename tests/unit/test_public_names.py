# SPDX-License-Identifier: Apache-2.0
"""The public names of the package exist, including exceptions and option tables, and each is imported lazily."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from typing import Any

import pytest

import shmaccum
from shmaccum import exceptions
from shmaccum.config import Options

WATCHDOG_S = 60


@pytest.mark.parametrize("name", shmaccum.__all__)
def test_a_public_name_is_what_its_module_defines(name: str) -> None:
    value = getattr(shmaccum, name)
    assert name in dir(shmaccum)
    if inspect.isclass(value) or inspect.isfunction(value):
        home = importlib.import_module(value.__module__)
        assert getattr(home, name) is value


def test_every_exception_is_a_public_name_and_nothing_else_of_their_module() -> None:
    raised = {name for name, value in vars(exceptions).items() if inspect.isclass(value)}
    assert raised == {name for name in shmaccum.__all__ if name.endswith("Error")}
    assert raised <= {*vars(shmaccum)}
    assert not {"_ESTALE", "ESTALE", "errno"} & {*vars(shmaccum)}


def test_a_star_import_brings_every_public_name() -> None:
    found: dict[str, object] = {}
    exec("from shmaccum import *", found)
    assert set(shmaccum.__all__) - found.keys() == set()
    assert len(set(shmaccum.__all__)) == len(shmaccum.__all__)


def test_every_table_of_options_is_a_public_name() -> None:
    assert {table.__name__ for table in Options.find_tables()} - set(shmaccum.__all__) == set()


@pytest.mark.parametrize("package", ["", ".config", ".log.server", ".sender", ".supervisor"])
def test_a_package_that_imports_its_names_lazily_has_no_other_name(package: str) -> None:
    module = importlib.import_module(f"shmaccum{package}")
    find: Any = vars(module)["__getattr__"]
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'Producers'"):
        find("Producers")
    lazy = sum(inspect.getmodule(getattr(module, name)) is not module for name in module.__all__)
    assert lazy


def loaded_by(statement: str) -> set[str]:
    """The modules of shmaccum that a fresh process has loaded after a statement."""
    program = f"{statement}; import sys; print(*(name for name in sys.modules if name.startswith('shmaccum')))"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=WATCHDOG_S
    )
    return set(run.stdout.split())


def test_importing_the_package_loads_its_exceptions_alone() -> None:
    assert loaded_by("import shmaccum") == {
        "shmaccum",
        "shmaccum.common",
        "shmaccum.common.former_names",
        "shmaccum.common.homes",
        "shmaccum.exceptions",
    }


def test_a_process_that_produces_does_not_load_the_sender() -> None:
    loaded = loaded_by("from shmaccum import Producer")
    assert "shmaccum.producer.producer" in loaded
    others = (
        "shmaccum.sender",
        "shmaccum.sender.sinks",
        "shmaccum.supervisor.start",
        "shmaccum.supervisor.supervisor",
    )
    assert [name for name in loaded if name.startswith(others)] == []


def test_a_process_makes_no_table_of_options_that_it_does_not_use() -> None:
    loaded = loaded_by("from shmaccum import Producer")
    assert "shmaccum.config.producer" in loaded
    assert loaded & {f"shmaccum.config.{name}" for name in ("server", "kafka", "sinks", "shipper", "spark")} == set()
