# SPDX-License-Identifier: Apache-2.0
"""Test files are rewritten once, and their bytecode is what pytest looks for."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import _read_pyc

from tests.support.rewriting import bytecode_of, rewrite_missing


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    source = tmp_path / "folder" / "test_sum.py"
    source.parent.mkdir()
    source.write_text("def test_sum():\n    assert 1 + 1 == 2\n", encoding="utf-8")
    return source


def test_pytest_finds_the_bytecode_of_each_test_file(source: Path, request: pytest.FixtureRequest) -> None:
    other = source.with_name("helper.py")
    other.touch()
    rewrite_missing(request.config, [str(source.parent)])
    code = _read_pyc(source, bytecode_of(source))
    assert code is not None
    assert "@pytest_ar" in code.co_names
    assert not bytecode_of(other).exists()


def test_a_file_is_rewritten_again_only_after_a_change(source: Path, request: pytest.FixtureRequest) -> None:
    def rewritten() -> int:
        rewrite_missing(request.config, [f"{source}::test_sum", str(source.with_name("absent.py"))])
        return bytecode_of(source).stat().st_ino

    before = bytecode_of(source)
    first = rewritten()
    kept = before.open("rb")
    with kept:  # so that its number is not given to the next file
        assert rewritten() == first
        now_s = before.stat().st_mtime
        os.utime(source, (now_s + 10, now_s + 10))
        assert rewritten() != first


def test_nothing_is_written_where_python_writes_no_bytecode(
    source: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    rewrite_missing(request.config, [str(source)])
    assert not bytecode_of(source).exists()
