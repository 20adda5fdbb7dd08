# SPDX-License-Identifier: Apache-2.0
"""Mutants that change no behaviour, each with the reason (``equivalent.csv``).

A row names its mutant by the path, the function, and the changed line before and after, as ast.unparse() writes them.
So a row stays valid if the mutant's line moves.
"""

from __future__ import annotations

import ast
import copy
import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.operators import Site, change_node, sites

LISTED = Path(__file__).with_name("equivalent.csv")
SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Change:
    """The change of a mutant.

    Attributes:
        path: the path of the source.
        function: its qualified name, or that of the class, or "" for a statement of the module.
        change: the line before and after.
    """

    path: str
    function: str
    change: str


def changes(path: str, source: str) -> dict[Site, Change]:
    """Return the changes of all mutants of a source."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    return {site: _change(site, nodes[site.node_index], parents) for site in sites(path, source)}


def _change(site: Site, node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Change:
    above = [node, *_above(node, parents)]
    statement = next(each for each in above if isinstance(each, ast.stmt))
    copies: dict[int, ast.AST] = {}
    changed = copy.deepcopy(statement, copies)
    change_node(copies[id(node)], site.operator)
    lines = zip(ast.unparse(statement).splitlines(), ast.unparse(changed).splitlines(), strict=True)
    before, after = next(pair for pair in lines if pair[0] != pair[1])
    function = ".".join(each.name for each in reversed(above) if isinstance(each, SCOPES))
    return Change(site.path, function, f"{before.strip()} -> {after.strip()}")


def _above(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[ast.AST]:
    while (parent := parents.get(node)) is not None:
        yield parent
        node = parent


def _listed() -> dict[Change, str]:
    with LISTED.open(encoding="utf-8", newline="") as file:
        return {Change(row["path"], row["function"], row["change"]): row["reason"] for row in csv.DictReader(file)}


EQUIVALENTS = _listed()
"""The reasons, by the change."""


def is_equivalent(site: Site, source: str) -> bool:
    """True if the mutant is listed."""
    return any(row.path == site.path for row in EQUIVALENTS) and changes(site.path, source).get(site) in EQUIVALENTS
