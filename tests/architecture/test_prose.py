# SPDX-License-Identifier: Apache-2.0
"""Plain prose: in each folder, at most a few sentences per thousand must be read twice."""

from __future__ import annotations

from collections import defaultdict
from pathlib import PurePosixPath

import pytest

from setup import ROOT
from tests.architecture.prose import Hard, hard_sentences, sentence_count, sentences, turns, why_hard

CEILING = 5
"""The maximum number of hard sentences per thousand in a folder."""
TURN_CEILING = 15
"""The maximum number of turns per thousand sentences of a folder. Some are terms of Kafka: dead letters."""
TURNS_MIN = 5
"""The number of such turns that any folder may have, even if it has few sentences."""
NOT_YET = "tests"
"""The top whose folders are exempt."""
TOPS = ("bench", "docs", "examples", "native", "shmaccum", "tests")
PAGES = ("README.rst", "SECURITY.rst", "CHANGELOG.rst", "CONTRIBUTING.rst")
SUFFIXES = {".py", ".pyi", ".c", ".h", ".rst"}
PLANTED = PurePosixPath("tests/architecture/test_prose.py")
"""This file, which plants hard sentences."""


def room_of(path: PurePosixPath) -> str:
    """The folder that a file counts for: the one directly below the top, or the top if the file is directly in it."""
    return "/".join(path.parts[:2]) if len(path.parts) > 2 else path.parts[0]


def _files() -> list[PurePosixPath]:
    found = [ROOT / page for page in PAGES] + [path for top in TOPS for path in (ROOT / top).rglob("*")]
    prose = (path.relative_to(ROOT) for path in found if path.suffix in SUFFIXES and path.is_file())
    return sorted({PurePosixPath(path) for path in prose} - {PLANTED})


def _shown(found: list[tuple[PurePosixPath, Hard]]) -> str:
    return "\n".join(f"{path}:{hard.line}: {hard.why}: {hard.sentence}" for path, hard in found)


def test_each_room_keeps_to_the_ceiling_and_has_no_fragment() -> None:
    counts: dict[str, int] = defaultdict(int)
    hard: dict[str, list[tuple[PurePosixPath, Hard]]] = defaultdict(list)
    for path in _files():
        text = (ROOT / path).read_text(encoding="utf-8")
        counts[room_of(path)] += sentence_count(path, text)
        hard[room_of(path)] += [(path, found) for found in hard_sentences(path, text)]
    assert {*PAGES, *TOPS} <= {room.split("/")[0] for room, count in counts.items() if count}, "a top has no sentence"
    for room, found in hard.items():
        per_thousand = 1000 * len(found) / max(counts[room], 1)
        assert per_thousand <= CEILING, (
            f"{room} has {per_thousand:.1f} hard sentences of a thousand, and may have {CEILING}. "
            f"Give each of yours a noun for its subject (docs/style.rst):\n{_shown(found)}"
        )
    fragments = [each for found in hard.values() for each in found if each[1].why == "fragment"]
    assert not fragments, f"give each of these docstrings a noun (docs/style.rst):\n{_shown(fragments)}"


def test_each_folder_keeps_to_the_ceiling_of_turns() -> None:
    counts: dict[str, int] = defaultdict(int)
    found: dict[str, list[tuple[PurePosixPath, Hard]]] = defaultdict(list)
    for path in _files():
        text = (ROOT / path).read_text(encoding="utf-8")
        counts[room_of(path)] += sentence_count(path, text)
        found[room_of(path)] += [(path, turn) for turn in turns(path, text)]
    for room, each in found.items():
        if len(each) <= TURNS_MIN:
            continue
        per_thousand = 1000 * len(each) / counts[room]
        assert per_thousand <= TURN_CEILING, (
            f"{room} has {per_thousand:.1f} turns for a thousand sentences, and may have {TURN_CEILING}. "
            f"Write the standard term or a plain sentence (docs/style.rst):\n{_shown(each)}"
        )


@pytest.mark.parametrize(
    ("sentence", "why"),
    [
        ("Answers the oldest batch.", ["answers"]),
        ("It comes back at the deadline.", ["comes back"]),
        ("Nobody is told.", ["says so", "nobody"]),
        ("The sender naps behind the round.", ["behind", "metaphor"]),
        ("None: for ever.", ["colon for a condition"]),
        ("The offset of the next record.", []),
    ],
)
def test_a_planted_turn_is_found(sentence: str, why: list[str]) -> None:
    assert [turn.why for turn in turns(PurePosixPath("a.rst"), sentence)] == why


def test_a_file_counts_for_its_room() -> None:
    assert room_of(PurePosixPath("shmaccum/spark/discovery/__init__.py")) == "shmaccum/spark"
    assert room_of(PurePosixPath("shmaccum/exceptions.py")) == "shmaccum"
    assert room_of(PurePosixPath("README.rst")) == "README.rst"


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
 * rings. A process "sleeps". */
char *a = "who waits";
char *b = "f(self)\\n--\\n\\nWhat a process gets. It "
          "is a lock; who waits rings.";
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


def test_c_is_read_in_its_comments_docstrings_and_messages() -> None:
    assert found_in("a.c", C) == [(2, "headless"), (5, "headless"), (5, "headless")]
    assert sentence_count(PurePosixPath("a.c"), C) == 4


def test_a_page_is_read_without_its_code() -> None:
    assert found_in("a.rst", PAGE) == [(4, "headless"), (10, "headless"), (15, "headless")]


def test_literals_are_no_words() -> None:
    assert list(sentences("``who`` is a command. `what` as well.")) == ["X is a command.", "X as well."]
