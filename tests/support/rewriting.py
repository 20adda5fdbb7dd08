# SPDX-License-Identifier: Apache-2.0
"""The bytecode of test files, which the workers of pytest-xdist compile together.

Each worker imports every test file. In a new clone, no file has bytecode, and pytest rewrites the assertions of a file
for 16 ms. Without this module, all workers rewrite the same file at the same time. Here, a worker first rewrites files
in a random order, and leaves out those that another worker has written meanwhile. Then it finds nearly all of them.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import PYC_TAIL, _rewrite_test, _write_pyc, assertstate_key, get_cache_dir, try_makedirs


def bytecode_of(source: Path) -> Path:
    """Return the path at which pytest looks for the rewritten bytecode of a test file."""
    return get_cache_dir(source) / f"{source.stem}{PYC_TAIL}"


def _is_rewritten(source: Path) -> bool:
    """Compare only the times. Pytest also compares the sizes, and rewrites the file if they differ."""
    bytecode = bytecode_of(source)
    return bytecode.exists() and bytecode.stat().st_mtime >= source.stat().st_mtime


def _sources(arguments: Iterable[str]) -> Iterator[Path]:
    """The test files of the arguments of a run, which are folders, files or tests of files."""
    for argument in arguments:
        path = Path(argument.partition("::")[0])
        yield from path.rglob("test_*.py") if path.is_dir() else [path] * path.is_file()


def rewrite_missing(config: pytest.Config, arguments: Iterable[str]) -> None:
    """Rewrite the test files that have no bytecode, in a random order."""
    if sys.dont_write_bytecode or config.getoption("assertmode") != "rewrite":
        return
    sources = sorted({source.resolve() for source in _sources(arguments)})
    for source in random.SystemRandom().sample(sources, len(sources)):
        if not _is_rewritten(source) and try_makedirs(bytecode_of(source).parent):
            status, code = _rewrite_test(source, config)
            _write_pyc(config.stash[assertstate_key], code, status, bytecode_of(source))
