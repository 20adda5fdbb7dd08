# SPDX-License-Identifier: Apache-2.0
"""The option tables in the docs match the code."""

from __future__ import annotations

import re

import aiokafka
import pytest

from setup import ROOT
from shmaccum.compat.page import LIBRARIES, file_name, table_of


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_page_shows_the_table_of_the_code(library: str) -> None:
    written = (ROOT / "docs" / "reference" / file_name(library)).read_text(encoding="utf-8")
    if library == "aiokafka" and aiokafka.__version__.startswith("0.13."):
        written = re.sub(r"^``api_version``,.*\n", "", written, flags=re.MULTILINE)  # an option of 0.14
    assert written == table_of(library), "run python -m shmaccum.compat.page docs/reference"
