# SPDX-License-Identifier: Apache-2.0
"""The API reference is generated from the docstrings, with all members that a user needs."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

import shmaccum
from setup import ROOT

pytest.importorskip("sphinx", reason="make docs installs it")
pytest.importorskip("sphinx_click")
pytest.importorskip("furo")

# Sphinx's own extensions use APIs that a later Sphinx will remove.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::PendingDeprecationWarning"),
]

CONF = f"""
import sys
sys.path.insert(0, {str(ROOT / "docs" / "extensions")!r})
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "public_names"]
default_role = "code"
"""
KINDS = ("objects", "functions", "options", "exceptions")


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names that a site with only the API page describes."""
    from sphinx.application import Sphinx

    folder: Path = tmp_path_factory.mktemp("site")
    (folder / "conf.py").write_text(CONF)
    page = "\n\n".join(f".. public-names:: {kind}" for kind in KINDS)
    (folder / "index.rst").write_text(f"API\n===\n\n{page}\n")
    site = Sphinx(folder, folder, folder / "out", folder / "trees", "dummy", status=None, warning=None)
    site.build()
    return {name for name, *_ in site.env.get_domain("py").get_objects()}


def test_every_public_name_is_described(described: set[str]) -> None:
    public = set(shmaccum.__all__) - {"__version__"} - reference().former_names().keys()
    assert {f"shmaccum.{name}" for name in public} - described == set()


def test_a_class_shows_the_methods_that_it_inherits(described: set[str]) -> None:
    assert {"send", "send_many", "append_arrow", "flush", "close"} <= members(described, "Producer")
    assert {"get", "add_callback", "timestamp_ms"} <= members(described, "DeliveryFuture")


def test_a_class_hides_the_members_that_other_modules_use(described: set[str]) -> None:
    assert not {"tracker", "send_serialized", "refuse_sends"} & members(described, "Producer")
    assert not {"tracker", "slot_index"} & members(described, "DeliveryFuture")
    assert "count" not in members(described, "RecordMetadata")


def test_the_tree_has_every_public_exception_once() -> None:
    foreign = type("ProducerFencedError", (shmaccum.ProducerFencedError,), {})  # as shmaccum.compat creates them
    assert foreign in shmaccum.ProducerFencedError.__subclasses__()
    entries = [line.strip() for line in reference().exception_tree(shmaccum.ShmaccumError) if line]
    public = [name for name in shmaccum.__all__ if reference().kind_of(name) == "exceptions"]
    assert sorted(entries) == sorted(f"- :class:`shmaccum.{name}`" for name in public)


def test_a_former_name_of_an_exception_is_listed_with_the_name_of_today() -> None:
    assert reference().former_names()["SenderBusyError"] == "ArenaBusyError"
    assert "ArenaBusyError" not in reference().former_names()


def reference() -> ModuleType:
    """The extension that generates the API page."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs" / "extensions"))
        return importlib.import_module("public_names")


def members(described: set[str], name: str) -> set[str]:
    prefix = f"shmaccum.{name}."
    return {each.removeprefix(prefix) for each in described if each.startswith(prefix)}
