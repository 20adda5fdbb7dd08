# SPDX-License-Identifier: Apache-2.0
"""The rule of terms: each word has one meaning, which the glossary defines.

`entries` reads the glossary. An entry has the bold words of one line, and a definition below it, which may list words
after *Not* and *Never*. A *not* word has another meaning here, so sources and pages use it. A *never* word would give
one thing two names, so no source and no page uses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

ENTRY = re.compile(r"^(\*\*.+)\n((?: {4}.+\n?)+)", re.MULTILINE)
BOLD = re.compile(r"\*\*([^*]+)\*\*")
LISTED = r"\*{}\* (?:an? )?([^.]+)\."
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
WORD = re.compile(r"[a-z]+")


class Entry(NamedTuple):
    """The terms that one definition explains, and the words that it excludes."""

    words: tuple[str, ...]
    not_words: tuple[str, ...]
    never_words: tuple[str, ...]


def _listed(kind: str, definition: str) -> tuple[str, ...]:
    found = re.findall(LISTED.format(kind), " ".join(definition.split()))
    return tuple(word for words in found for word in re.split(r", | or | and ", words))


def entries(glossary: str) -> Iterator[Entry]:
    """Return the entries of a glossary, in its order."""
    for words, definition in ENTRY.findall(glossary):
        yield Entry(tuple(BOLD.findall(words)), _listed("Not", definition), _listed("Never", definition))


def plain(text: str) -> str:
    """Return the words of a text or source in lower case, separated by one space. Names are split into words."""
    return f" {' '.join(WORD.findall(CAMEL.sub(' ', text).lower()))} "


def _forms(word: str) -> tuple[str, ...]:
    """Return the pattern of a word in `plain` text: alone, or as a plural, a past tense or a participle."""
    base = plain(word).strip()
    stem = base.removesuffix("e")
    return tuple(f" {form} " for form in (base, f"{base}s", f"{base}es", f"{stem}ed", f"{stem}ing"))


def is_used(word: str, texts: Iterable[str]) -> bool:
    """True if one of the `plain` texts contains the word."""
    return any(form in text for text in texts for form in _forms(word))
