# SPDX-License-Identifier: Apache-2.0
"""The files that are generated from tables of options or from imports are up to date."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from setup import ROOT
from shmaccum.config.dicts_source import dicts_source
from shmaccum.config.page import options_page
from tests.architecture.homes import homes_source


@pytest.mark.parametrize(
    ("module", "path", "write"),
    [
        ("shmaccum.config.dicts_source", "shmaccum/config/dicts.py", dicts_source),
        ("tests.architecture.homes", "shmaccum/common/homes.py", homes_source),
        ("shmaccum.config.page", "docs/reference/options.rst", options_page),
    ],
)
def test_a_generated_file_is_what_its_source_says(module: str, path: str, write: Callable[[], str]) -> None:
    is_right = (ROOT / path).read_text(encoding="utf-8") == write()
    assert is_right, f"write {path} anew: .venv/bin/python -m {module} > {path}"
