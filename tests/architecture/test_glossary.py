# SPDX-License-Identifier: Apache-2.0
"""The glossary explains each of its terms once, and the project uses them so."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from setup import ROOT
from tests.architecture.glossary import Entry, entries, is_used, plain

GLOSSARY = (ROOT / "docs" / "glossary.rst", ROOT / "docs" / "glossary-logs.rst")
ENTRIES = tuple(entry for page in GLOSSARY for entry in entries(page.read_text(encoding="utf-8")))
SUFFIXES = {".py", ".pyi", ".c", ".h", ".rst"}
OF_OPENTELEMETRY = re.compile(r"\bmessaging(\.\w+)+")
"""The names of OpenTelemetry's attributes, which it has chosen."""


@pytest.fixture(scope="module")
def texts() -> dict[Path, str]:
    """The words of each source and page except the pages of the glossary."""
    found = [path for top in ("native", "shmaccum", "docs") for path in (ROOT / top).rglob("*")] + [*ROOT.glob("*.rst")]
    chosen = [path for path in found if path.suffix in SUFFIXES and path.is_file() and path not in GLOSSARY]
    contents = {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in chosen}
    return {path: plain(OF_OPENTELEMETRY.sub("", text)) for path, text in contents.items()}


def test_a_word_has_one_entry() -> None:
    assert len(ENTRIES) > 60
    counts = Counter(word.lower() for entry in ENTRIES for word in entry.words)
    assert [word for word, count in counts.items() if count > 1] == []


def test_every_word_of_the_glossary_is_used(texts: dict[Path, str]) -> None:
    words = {word for entry in ENTRIES for word in (*entry.words, *entry.not_words)}
    unused = sorted(word for word in words if not is_used(word, texts.values()))
    assert unused == [], "leave these entries out, and list such a *not* word after *Never*"


def test_a_word_that_is_never_used_is_not_used(texts: dict[Path, str]) -> None:
    found = {
        word: [str(path) for path, text in texts.items() if is_used(word, [text])]
        for entry in ENTRIES
        for word in entry.never_words
    }
    assert len(found) > 10
    assert {word: paths for word, paths in found.items() if paths} == {}, (
        "docs/glossary.rst and docs/glossary-logs.rst have the words to use"
    )


PLANTED = """
**ref**, **place**
    A distance in bytes. *Not* a pointer or handle.
    *Never* address book, locator.

**plain**
    A word that is *not* special.
"""


def test_an_entry_is_read_with_the_words_that_it_sets_apart() -> None:
    assert list(entries(PLANTED)) == [
        Entry(("ref", "place"), ("pointer", "handle"), ("address book", "locator")),
        Entry(("plain",), (), ()),
    ]


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("A buffer_pool_evict(arena)", True),
        ("class EvictedError", True),
        ("evicting", True),
        ("evictions", False),
        ("a devict", False),
    ],
)
def test_a_word_is_found_in_names_and_forms(text: str, is_found: bool) -> None:
    assert is_used("evict", [plain(text)]) is is_found
