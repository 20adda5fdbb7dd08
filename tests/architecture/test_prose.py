# SPDX-License-Identifier: Apache-2.0
"""Plain words: in no folder more than a few sentences of a thousand have to be read twice."""

from __future__ import annotations

from collections import defaultdict
from pathlib import PurePosixPath

import pytest

from setup import ROOT
from tests.architecture.prose import Hard, hard_sentences, sentence_count, sentences, why_hard

# Hard sentences of a thousand that a folder may have, its own subfolders' ceilings aside. The aim is 5 everywhere.
CEILINGS = {
    "README.rst": 5,
    "SECURITY.rst": 5,
    "CHANGELOG.rst": 5,
    "CONTRIBUTING.rst": 5,
    "bench": 5,
    "docs": 5,
    "docs/decisions": 5,
    "docs/how-to": 5,
    "native": 100,
    "shmaccum": 105,
    "tests": 95,
}
AIM = 5
SUFFIXES = {".py", ".pyi", ".c", ".h", ".rst"}


def folder_of(path: PurePosixPath) -> str | None:
    """The folder, or file, of the table that a path counts for: the nearest above it."""
    names = [str(path), *map(str, path.parents)]
    return next((name for name in names if name in CEILINGS), None)


def _files() -> list[PurePosixPath]:
    tops = {PurePosixPath(name).parts[0] for name in CEILINGS}
    found = [path for top in tops for path in ([ROOT / top] if (ROOT / top).is_file() else (ROOT / top).rglob("*"))]
    return sorted(PurePosixPath(path.relative_to(ROOT)) for path in found if path.suffix in SUFFIXES and path.is_file())


def test_each_folder_keeps_to_its_ceiling() -> None:
    counts: dict[str, int] = defaultdict(int)
    hard: dict[str, list[tuple[PurePosixPath, Hard]]] = defaultdict(list)
    for path in _files():
        if folder := folder_of(path):
            text = (ROOT / path).read_text(encoding="utf-8")
            counts[folder] += sentence_count(path, text)
            hard[folder] += [(path, found) for found in hard_sentences(path, text)]
    assert set(counts) == set(CEILINGS), "a folder of the table has no sentence"
    for folder, ceiling in CEILINGS.items():
        per_thousand = 1000 * len(hard[folder]) / counts[folder]
        listed = "\n".join(f"{path}:{found.line}: {found.why}: {found.sentence}" for path, found in hard[folder])
        assert per_thousand <= ceiling, (
            f"{folder} has {per_thousand:.1f} hard sentences of a thousand, and may have {ceiling}. "
            f"Give each of yours a noun for its subject (docs/style.rst):\n{listed}"
        )


@pytest.mark.parametrize(
    ("sentence", "why"),
    [
        ("Who waits for a buffer rings the sender.", "headless"),
        ("What is left goes to the next sender.", "headless"),
        ("Whoever takes the lock repairs first.", "headless"),
        ("It is closed, and whoever reads it gets an error.", "headless"),
        ("Memory is the arena; who finds no buffer waits in line.", "headless"),
        ("Lost was nothing, in none of them.", "inverted"),
        ("Of an answer only that is read in which all is well.", "inverted"),
        ("A process that waits for a buffer rings the sender.", None),
        ("Who rings the sender?", None),
        ("It tells the sender what to do.", None),
        ("A death says who held the lock, so the next process knows it.", None),
        ("Nobody knows whose batch that is.", None),
    ],
)
def test_a_planted_sentence_is_judged(sentence: str, why: str | None) -> None:
    assert why_hard(sentence) == why


def test_a_fragment_is_one_in_a_docstring_alone() -> None:
    assert why_hard("Of each winner.", is_docstring=True) == "fragment"
    assert why_hard("Of each winner.") is None
    assert why_hard("The row of each winner.", is_docstring=True) is None


def found_in(name: str, text: str) -> list[tuple[int, str]]:
    return [(found.line, found.why) for found in hard_sentences(PurePosixPath(name), text)]


PYTHON = '''"""A module.

What it has."""


def f():
    """Of each winner."""
    # a comment
    # on it. Who reads, waits.
    raise ValueError("the lock is taken; who waits is served later")
    x = "who"
'''
C = """int who;
/* Who waits
 * rings. A process sleeps. */
char *a = "Who waits rings.";
"""
PAGE = """Title
=====

A first. What is left stays.

.. code-block:: sh

   who am i

- who waits rings
- a process

.. list-table::

   * - what waits rings
"""


def test_python_is_read_in_docstrings_comments_and_messages() -> None:
    assert found_in("a.py", PYTHON) == [(1, "headless"), (7, "fragment"), (8, "headless"), (10, "headless")]


def test_c_is_read_in_its_comments() -> None:
    assert found_in("a.c", C) == [(2, "headless")]
    assert sentence_count(PurePosixPath("a.c"), C) == 2


def test_a_page_is_read_without_its_code() -> None:
    assert found_in("a.rst", PAGE) == [(4, "headless"), (10, "headless"), (15, "headless")]


def test_literals_are_no_words() -> None:
    assert list(sentences("``who`` is a command. `what` as well.")) == ["X is a command.", "X as well."]
