# SPDX-License-Identifier: Apache-2.0
"""Small text files of a log directory."""

from __future__ import annotations

from pathlib import Path

from shmaccum.log.files.small_files import properties, read_properties


def test_comments_and_lines_without_a_value_are_no_properties(tmp_path: Path) -> None:
    path = tmp_path / "meta.properties"
    path.write_bytes(b"#Thu=1\n\nword\n" + properties({"version": "1", "text": "a=b"}))
    assert read_properties(str(path)) == {"version": "1", "text": "a=b"}
