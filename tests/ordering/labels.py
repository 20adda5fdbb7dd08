# SPDX-License-Identifier: Apache-2.0
"""Find the labels of atomic operations in the C code, on the page of memory ordering, and in the models."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "native"
PAGE = ROOT / "docs" / "explanation" / "memory-ordering.rst"
EDGES = PAGE.with_suffix(".csv")
ATOMICS = NATIVE / "base" / "atomic.h"

LABEL = re.compile(r"\b[A-Z]\d{1,2}\b")
DEFINED = re.compile(r"^ *static inline \S+ \*?(\w+?)(?:_##suffix)?\(", re.MULTILINE)
WITHOUT_ORDER = {"load_relaxed", "store_relaxed", "prefetch_for_write", "spin_pause"}
COMMENT = re.compile(r"/\*.*?\*/")
MODEL_LABEL = re.compile(r'"([A-Z]\d{1,2})"')


@dataclass(frozen=True)
class Operation:
    """An atomic operation of the C code that is stronger than relaxed."""

    place: str
    text: str
    labels: frozenset[str]
    halves: frozenset[str]


def halves(name: str) -> set[str]:
    """Return the orders that an operation has, and that can be weakened."""
    if "barrier" in name:
        return {"fence"}
    if name.startswith("load_"):
        return {"acquire"}
    if name.startswith(("store_", "atomic_store")):
        return {"release"}
    return {"acquire", "release"}


def ordered_operations(atomics: str) -> set[str]:
    """Return the names that atomic.h defines for operations with an order."""
    names = set(DEFINED.findall(atomics)) - WITHOUT_ORDER
    return {full for name in names for full in ([name] if is_whole(name) else [f"{name}_u64", f"{name}_u32"])}


def is_whole(name: str) -> bool:
    """True for a name that has no suffix for the width."""
    return "pointer" in name or "barrier" in name or name == "store_order_keep"


def operations(sources: dict[str, str], names: set[str]) -> Iterator[Operation]:
    """Return each line of the sources that has such an operation, with the labels in its comment."""
    call = re.compile(rf"\b(?:{'|'.join(sorted(names))}|atomic_\w+|__atomic_\w+|__sync_\w+)\(")
    for path, source in sources.items():
        for number, line in enumerate(source.splitlines(), 1):
            comments = " ".join(COMMENT.findall(line))
            called = [found.rstrip("(") for found in call.findall(COMMENT.sub("", line))]
            if called and not line.lstrip().startswith("*"):
                orders = {half for name in called for half in halves(name)}
                yield Operation(f"{path}:{number}", line.strip(), frozenset(LABEL.findall(comments)), frozenset(orders))


def c_operations() -> list[Operation]:
    """Return the operations of native/."""
    sources = {
        str(path.relative_to(ROOT)): path.read_text() for path in sorted(NATIVE.rglob("*.[ch]")) if path != ATOMICS
    }
    return list(operations(sources, ordered_operations(ATOMICS.read_text())))


def page_labels() -> tuple[set[str], set[str]]:
    """Return the labels of edges, and the labels in the table of orders that are no edge."""
    pairs, _, others = PAGE.read_text().partition("Orders that are no edge\n")
    rows = csv.reader(EDGES.read_text().splitlines())
    edges = {label for source, _, target, *_ in rows for label in LABEL.findall(f"{source} {target}")}
    return edges | cells_with_labels(pairs), cells_with_labels(others)


def cells_with_labels(text: str) -> set[str]:
    """Return the labels in the cells of tables that contain only labels."""
    cells = re.findall(r"^   (?:\*|  ?)? *- ((?:[A-Z]\d{1,2}(?:, | / )?)+)$", text, re.MULTILINE)
    return {label for cell in cells for label in LABEL.findall(cell)}


def model_labels() -> set[str]:
    """Return the labels in the sources of the models."""
    sources = sorted((Path(__file__).parent / "src").glob("*.rs"))
    return {label for path in sources if path.stem != "order" for label in MODEL_LABEL.findall(path.read_text())}
