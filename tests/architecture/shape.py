# SPDX-License-Identifier: Apache-2.0
"""``make shape``: figures of the structure of a checkout, one per line.

``python -m tests.architecture.shape [ROOT] [-v]`` measures another checkout, in this layout or an earlier one. ``-v``
also lists the counted items: the layers with their imports, the cycles, the class names defined more than once, and
the short private functions called once.
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from setup import ROOT
from tests.architecture import rules
from tests.architecture.homes import homes

Graph = dict[str, set[str]]
Function = ast.FunctionDef | ast.AsyncFunctionDef

SHORT_LINES = 3
"""The maximum line count of a short function."""
TEXT_SUFFIXES = {".py", ".pyi", ".c", ".h", ".java", ".sh", ".rst", ".csv", ".json", ".yml", ".html", ".css", ".js"}


class Tree:
    """The files of a checkout, as a map from their relative paths to their text."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = {
            PurePosixPath(path.relative_to(root)): path.read_text(encoding="utf-8")
            for folder in ("shmaccum", "native", "tests", "bench", "docs")
            for path in sorted((root / folder).rglob("*"))
            if path.is_file() and path.suffix in TEXT_SUFFIXES and "__pycache__" not in path.parts
        }
        self.product = {path: text for path, text in self.under("shmaccum").items() if path.suffix == ".py"}
        self.modules = {path: ast.parse(text) for path, text in self.product.items()}

    def under(self, folder: str) -> dict[PurePosixPath, str]:
        """The files of a folder."""
        return {path: text for path, text in self.files.items() if PurePosixPath(folder) in path.parents}

    def lines(self, folder: str, *suffixes: str) -> int:
        """The line count of the files in a folder whose names end in one of `suffixes`."""
        return sum(len(text.splitlines()) for path, text in self.under(folder).items() if path.suffix in suffixes)

    def classes(self) -> Iterator[ast.ClassDef]:
        """All classes of the product."""
        for tree in self.modules.values():
            yield from (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))

    def entries(self) -> list[str]:
        """The packages and modules directly in shmaccum/, without those whose name begins with two underscores."""
        names = {path.parts[1] for path in self.product}
        return sorted(name for name in names if not name.startswith("__"))


def functions(tree: ast.Module) -> Iterator[Function]:
    """All functions and methods of a module."""
    return (node for node in rules.statements(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def layers(graph: Graph) -> list[list[str]]:
    """The nodes by layer. Each layer has the nodes that need only earlier layers. Nodes in a cycle are in no layer."""
    left = {name: wanted & set(graph) for name, wanted in graph.items()}
    found = []
    while layer := sorted(name for name, wanted in left.items() if not wanted & set(left)):
        found.append(layer)
        left = {name: wanted for name, wanted in left.items() if name not in layer}
    return found


def package_graph(tree: Tree) -> Graph:
    """Each package or module directly in shmaccum/, and the ones that it imports."""
    graph = rules.import_graph(tree.product)
    return rules.room_graph({name: graph[name] for name in graph if name not in {rules.ROOT, f"{rules.ROOT}.__main__"}})


def include_graph(tree: Tree) -> Graph:
    """Each folder of native/, and the folders whose headers its files include."""
    graph: Graph = {}
    for path, text in tree.under("native").items():
        folder = rules.native_folder(path)
        if folder and path != rules.NATIVE_MODULE:
            names = {str(PurePosixPath(name).parent) for is_system, name in rules.included(text) if not is_system}
            graph.setdefault(folder, set()).update(names - {folder})
    return graph


def file_graph(tree: Tree) -> Graph:
    """Each C file with its header as one node, and the nodes that it includes."""
    graph: Graph = {}
    for path, text in tree.under("native").items():
        own = str(path.relative_to("native").with_suffix(""))
        names = {str(PurePosixPath(name).with_suffix("")) for is_system, name in rules.included(text) if not is_system}
        graph.setdefault(own, set()).update(names - {own})
    return graph


def reachable(graph: Graph, start: str) -> set[str]:
    """All nodes that edges reach from `start`. It includes `start` only in a cycle."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


def cycles(graph: Graph) -> list[list[str]]:
    """The groups of nodes that reach each other."""
    reach = {name: reachable(graph, name) for name in graph}
    groups = {frozenset(other for other in reach[name] if name in reach.get(other, ())) for name in graph}
    return sorted(sorted(group) for group in groups if group)


def body_lines(function: Function) -> int:
    """The lines of a function below its signature, without its docstring."""
    first, last = function.body[0], function.body[-1]
    return (last.end_lineno or last.lineno) - first.lineno + 1 - rules.docstring_lines(function)


def names_used(tree: ast.Module) -> Counter[str]:
    """How often a module uses each name, also as an attribute."""
    used: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            used[node.id] += 1
        elif isinstance(node, ast.Attribute):
            used[node.attr] += 1
    return used


def called_once(tree: ast.Module) -> list[Function]:
    """The short private functions of a module that it calls in exactly one place."""
    used = names_used(tree)
    return [
        function
        for function in functions(tree)
        if function.name.startswith("_")
        and not function.name.endswith("__")
        and body_lines(function) <= SHORT_LINES
        and used[function.name] == 1
    ]


def repeated_classes(tree: Tree) -> dict[str, int]:
    """The class names that are defined more than once."""
    counts = Counter(found.name for found in tree.classes())
    return {name: count for name, count in counts.most_common() if count > 1}


def c_function_lengths(texts: Iterable[str]) -> list[int]:
    """The line count of the body of each C function."""
    lengths, start = [], 0
    for text in texts:
        for number, line in enumerate(rules.without_comments(text).splitlines(), start=1):
            if line.rstrip() == "{":
                start = number
            elif start and line.startswith("}"):
                lengths.append(number - start + 1)
                start = 0
    return lengths


def length_figures(lengths: list[int]) -> str:
    """The ninth decile and the maximum."""
    return f"{statistics.quantiles(lengths, n=10)[-1]:.0f} / {max(lengths)}"


def member_count(tree: Tree, name: str) -> int:
    """How many public members the class `name` declares."""
    declared = set()
    for found in (each for each in tree.classes() if each.name == name):
        for node in found.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                declared.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                declared.add(node.target.id)
    return sum(not member.startswith("_") for member in declared)


def exceptions(tree: Tree) -> tuple[int, int]:
    """How many classes ``shmaccum/exceptions.py`` defines, and how many former names it provides for them."""
    kinds = [type(node) for node in tree.modules[PurePosixPath("shmaccum/exceptions.py")].body]
    return kinds.count(ast.ClassDef), kinds.count(ast.Assign)


def unreleased_bytes(tree: Tree) -> int:
    """The size of the unreleased version's part of the changelog."""
    text = (tree.root / "CHANGELOG.rst").read_text(encoding="utf-8")
    _, *parts = re.split(r"^(.+)\n-{4,}$", text, flags=re.MULTILINE)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    return len(sections.get("Unreleased", "").strip().encode())


def structure(tree: Tree) -> Iterator[tuple[str, str]]:
    """Figures of packages, layers and names."""
    entries, graph = tree.entries(), package_graph(tree)
    packages = [name for name in entries if not name.endswith(".py")]
    yield "entries directly in shmaccum/ (packages)", f"{len(entries)} ({len(packages)})"
    edges = sum(len(wanted & set(graph)) for wanted in graph.values())
    yield "import layers / edges / cycles of packages", f"{len(layers(graph))} / {edges} / {len(cycles(graph))}"
    yield (
        "C include cycles of folders / of files",
        f"{len(cycles(include_graph(tree)))} / {len(cycles(file_graph(tree)))}",
    )
    repeated = repeated_classes(tree)
    most = ", ".join(f"{name} x{count}" for name, count in list(repeated.items())[:3])
    yield "class names defined twice or more", f"{len(repeated)} ({most})"
    class_count, former_count = exceptions(tree)
    lazy_count = len(homes(tree.modules[PurePosixPath("shmaccum/__init__.py")]))
    yield "exceptions / public names", f"{class_count} / {lazy_count + class_count + former_count}"
    yield "members of Sink", str(member_count(tree, "Sink"))


def sizes(tree: Tree) -> Iterator[tuple[str, str]]:
    """Figures of lines, pages and functions."""
    yield "product lines, Python + C", f"{tree.lines('shmaccum', '.py'):,} + {tree.lines('native', '.c', '.h'):,}"
    yield "C lines of bindings (native/python)", f"{tree.lines('native/python', '.c', '.h'):,}"
    tests, bench = tree.lines("tests", ".py", ".c", ".h"), tree.lines("bench", ".py", ".c", ".h", ".java")
    docs = tree.lines("docs", ".rst")
    yield "lines of tests / bench / docs", f"{tests:,} / {bench:,} / {docs:,}"
    pages = [path for path in tree.under("docs") if path.suffix == ".rst"]
    decisions = [path for path in pages if path.parts[1] == "decisions" and path.name[0].isdigit()]
    yield "decisions / pages", f"{len(decisions)} / {len(pages)}"
    yield "changelog of the unreleased version", f"{unreleased_bytes(tree):,} bytes"
    count = sum(1 for module in tree.modules.values() for _ in functions(module))
    once = sum(len(called_once(module)) for module in tree.modules.values())
    title = f"private functions called once, at most {SHORT_LINES} lines"
    yield title, f"{once} of {count:,} ({100 * once / count:.1f} %)"
    lengths = [body_lines(each) for module in tree.modules.values() for each in functions(module)]
    yield "lines of a Python function, p90 / max", length_figures(lengths)
    c_texts = [text for path, text in tree.under("native").items() if path.suffix in rules.C_SUFFIXES]
    yield "lines of a C function, p90 / max", length_figures(c_function_lengths(c_texts))


def listed(tree: Tree) -> Iterator[str]:
    """The counted items, one per line."""
    graph = package_graph(tree)
    for number, layer in enumerate(layers(graph)):
        for name in layer:
            yield f"layer {number}: {name} <- {' '.join(sorted(graph[name] & set(graph)))}"
    for name, wanted in sorted(include_graph(tree).items()):
        yield f"native/{name} <- {' '.join(sorted(wanted))}"
    for members in cycles(file_graph(tree)):
        yield f"C files that include each other: {' '.join(members)}"
    for name, count in repeated_classes(tree).items():
        yield f"class {name}: {count} times"
    for path, module in tree.modules.items():
        for function in called_once(module):
            yield f"called once: {path}:{function.lineno} {function.name}"


def main(arguments: list[str] | None = None) -> None:
    """Print the figures of a checkout."""
    parser = argparse.ArgumentParser(prog="python -m tests.architecture.shape", description="figures of the structure")
    parser.add_argument("root", nargs="?", type=Path, default=ROOT, help="a checkout; this one if it is not given")
    parser.add_argument("-v", "--verbose", action="store_true", help="also list the layers and the repeated names")
    options = parser.parse_args(arguments)
    tree = Tree(options.root)
    for title, figure in (*structure(tree), *sizes(tree)):
        print(f"{title:<52} {figure}")
    if options.verbose:
        print(*listed(tree), sep="\n")


if __name__ == "__main__":
    main()
