# SPDX-License-Identifier: Apache-2.0
"""The comparison of two revisions names each line that differs."""

from __future__ import annotations

from pathlib import Path

from tests.architecture.api_diff import Difference, differences, page_lines

SAME = "metric of the sender: record-send-total"


def test_a_line_that_differs_is_missing_new_or_changed() -> None:
    before = [SAME, "function shmaccum.f'(a: int)'", "json stat --once .topics[].name: str"]
    after = [SAME, 'function shmaccum.f"(a: str)"', "class shmaccum.New(...): object"]
    assert differences(before, after) == [
        Difference("class shmaccum.New", [], [after[2]]),
        Difference("function shmaccum.f", [before[1]], [after[1]]),
        Difference("json stat --once .topics[].name", [before[2]], []),
    ]
    assert differences(before, before) == []


def test_the_names_of_pages_are_compared(tmp_path: Path) -> None:
    (tmp_path / "a.rst").write_text("``linger_ms`` and ``a b``, then ``linger_ms``\n")
    assert list(page_lines(tmp_path)) == ["page linger_ms"]
