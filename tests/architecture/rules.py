# SPDX-License-Identifier: Apache-2.0
"""The rules of style and layering, each a function from a source file to its violations.

A rule takes a path relative to the project's root and the file's text, and has no side effects. The tests of the
rules plant violations as strings.
"""

from __future__ import annotations

import ast
import csv
import functools
import io
import itertools
import re
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

Rule = Callable[[PurePosixPath, str], Iterator[str]]

FUNCTION_LINES_MAX = 70
LINE_LENGTH_MAX = 120

# Each folder of native/ and the folders that its files may include from, besides itself. The folders of the producer
# and of the sender do not include each other: they share only the arena.
NATIVE_FOLDERS = {
    "base": (),
    "format": ("base",),
    "log": ("base", "format"),
    "arena": ("base", "format"),
    "producer": ("base", "format", "arena"),
    "broker": ("base", "format"),
    "sender": ("base", "format", "broker", "log", "arena"),
    "python/common": ("base", "format", "arena"),
    "python/arena": ("base", "format", "arena", "python/common"),
    "python/producer": ("base", "format", "arena", "producer", "python/common"),
    "python/sender": (
        *("base", "format", "broker", "log", "arena", "sender"),
        *("python/common", "python/log"),
    ),
    "python/log": ("base", "format", "broker", "log", "python/common"),
}
# The module names every type, so it includes all folders.
NATIVE_MODULE = PurePosixPath("native/python/module.c")

C_SUFFIXES = {".c", ".h"}
PYTHON_SUFFIXES = {".py", ".pyi"}

# Written so that this file does not violate its own rule.
BANNED = re.compile(r"\b(T[O]DO|F[I]XME|X[X]X|H[A]CK)\b|/w[o]rk/|/r[o]ot/|/h[o]me/")

UNDERLINE = re.compile(r"([=\-~^\"'.+*#])\1{2,}")
C_COMMENT_OR_STRING = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.DOTALL)
C_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)
BARE_ATOMICS = re.compile(r"\b(memory_order_\w+|atomic_\w+_explicit|__atomic_\w+|__sync_\w+|_Atomic)\b")


def line_number(text: str, position: int) -> int:
    """The line, counted from 1, of the character at `position`."""
    return text.count("\n", 0, position) + 1


def without_comments(text: str) -> str:
    """C code with blanked comments. Its lines and strings are unchanged."""

    def blank(match: re.Match[str]) -> str:
        found = match.group()
        return found if found.startswith('"') else re.sub(r"[^\n]", " ", found)

    return C_COMMENT_OR_STRING.sub(blank, text)


# --- every source


def long_line(_path: PurePosixPath, text: str) -> Iterator[str]:
    """No line is longer than 120 characters."""
    for number, line in enumerate(text.splitlines(), start=1):
        if len(line) > LINE_LENGTH_MAX:
            yield f"line {number} has {len(line)} characters"


def missing_license(_path: PurePosixPath, text: str) -> Iterator[str]:
    """One of the first two lines names the license. An empty file needs none."""
    if text and "SPDX-License-Identifier: Apache-2.0" not in "\n".join(text.splitlines()[:2]):
        yield "no SPDX-License-Identifier: Apache-2.0 in the first two lines"


def banned_word(_path: PurePosixPath, text: str) -> Iterator[str]:
    """No marks of unfinished work and no paths of one machine."""
    for match in BANNED.finditer(text):
        yield f"line {line_number(text, match.start())} says {match.group()!r}"


def short_underline(_path: PurePosixPath, text: str) -> Iterator[str]:
    """The line below a title is at least as long as the title."""
    lines = text.splitlines()
    for number, (title, below) in enumerate(itertools.pairwise(lines), start=1):
        is_title = title[:1].isalnum() or title.startswith(("`", ":"))
        if is_title and UNDERLINE.fullmatch(below) and len(below) < len(title):
            yield f"line {number + 1} is shorter than the title {title!r}"


# --- C


def native_folder(path: PurePosixPath) -> str | None:
    """The folder of a file under native/, relative to it. None for any other file."""
    return "/".join(path.parts[1:-1]) if path.parts[0] == "native" and len(path.parts) > 2 else None


def included(text: str) -> list[tuple[bool, str]]:
    """The includes of a C file, each as whether it is a system header and its name."""
    return [(quote == "<", name) for quote, name in C_INCLUDE.findall(without_comments(text))]


def upward_include(path: PurePosixPath, text: str) -> Iterator[str]:
    """A folder of native/ includes itself and the folders below it only, by paths that start at native/."""
    folder = native_folder(path)
    if path == NATIVE_MODULE:
        return
    if folder not in NATIVE_FOLDERS:
        yield f"lies in none of the folders {', '.join(NATIVE_FOLDERS)}"
        return
    allowed = (folder, *NATIVE_FOLDERS[folder])
    for is_system, name in included(text):
        if not is_system and str(PurePosixPath(name).parent) not in allowed:
            yield f'folder {folder} may not include "{name}"'


def python_header(path: PurePosixPath, text: str) -> Iterator[str]:
    """Only native/python includes Python's headers, and the benchmark of the minimal call."""
    if path == PurePosixPath("bench/native/empty_call.c"):
        return
    for _, name in included(text):
        if name in {"Python.h", "structmember.h", "datetime.h"} and not (native_folder(path) or "").startswith(
            "python"
        ):
            yield f"includes {name} outside native/python"


def bare_atomic(path: PurePosixPath, text: str) -> Iterator[str]:
    """Atomics only by the names of base/atomic.h."""
    if path == PurePosixPath("native/base/atomic.h"):
        return
    if (True, "stdatomic.h") in included(text):
        yield "includes <stdatomic.h>"
    code = without_comments(text)
    for match in BARE_ATOMICS.finditer(code):
        yield f"line {line_number(code, match.start())} uses {match.group()}"


def long_c_function(_path: PurePosixPath, text: str) -> Iterator[str]:
    """No C function body, from the `{` to the `}` in column 0, is longer than 70 lines."""
    start = 0
    for number, line in enumerate(without_comments(text).splitlines(), start=1):
        if line.rstrip() == "{":
            start = number
        elif start and line.startswith("}"):
            if number - start + 1 > FUNCTION_LINES_MAX:
                yield f"the function at line {start} has {number - start + 1} lines"
            start = 0


CHECKS_PER_FUNCTION_MIN = 0.5
CHECKED_FOLDERS = ("arena", "producer", "sender")
CHECK = re.compile(r"\bCHECK\((.*?)\);", re.DOTALL)
ARENA_LOAD = re.compile(r"\bload_(?:relaxed|acquire)_u\d+\(")


def checks_per_function(texts: Iterable[str]) -> float:
    """How many CHECKs a C function of these files has on average."""
    codes = [without_comments(text) for text in texts]
    function_count = sum(line.rstrip() == "{" for code in codes for line in code.splitlines())
    return sum(len(CHECK.findall(code)) for code in codes) / function_count


def check_of_input(_path: PurePosixPath, text: str) -> Iterator[str]:
    """No CHECK loads a word of the arena. Such a word is input, and bad input returns a status."""
    code = without_comments(text)
    for match in CHECK.finditer(code):
        if ARENA_LOAD.search(match.group(1)):
            yield f"line {line_number(code, match.start())} checks a word of the arena"


LABEL = re.compile(r"\b[A-Z]\d{1,2}\b")
COMMENT_BEHIND_CODE = re.compile(r"[;{),&=|][ \t]*/\*(?:[^*]|\*(?!/))*\*/")
FULL_BARRIER = re.compile(r"^[ \t]*barrier_\w+\(\);(.*)$", re.MULTILINE)


def unlabelled_barrier(path: PurePosixPath, text: str) -> Iterator[str]:
    """Each full barrier names the ordering edge that it creates."""
    if path == PurePosixPath("native/base/atomic.h"):
        return
    for match in FULL_BARRIER.finditer(text):
        if not LABEL.search(match.group(1)):
            yield f"line {line_number(text, match.start())} has a barrier and no label"


# --- Python


REPLACEABLE_CLOCK = re.compile(r"(?<!clock of )\btime\.monotonic|\bfrom time import\b[^\n]*\bmonotonic")


def replaceable_clock(path: PurePosixPath, text: str) -> Iterator[str]:
    """Waits read shmaccum/common/clock.py, because packages that freeze clocks replace time.monotonic."""
    if path == PurePosixPath("shmaccum/common/clock.py"):
        return
    for match in REPLACEABLE_CLOCK.finditer(text):
        yield f"line {line_number(text, match.start())} reads time.monotonic: use shmaccum.common.clock"


def docstring_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The line count of the docstring, which does not count for the length of a function."""
    first = function.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return (first.end_lineno or first.lineno) - first.lineno + 1
    return 0


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """All statements and their clauses at any depth. This is three times as fast as `ast.walk`, which also visits
    expressions.
    """
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        clauses = (ast.stmt, ast.excepthandler, ast.match_case)
        waiting += (child for child in ast.iter_child_nodes(node) if isinstance(child, clauses))


def long_python_function(_path: PurePosixPath, text: str) -> Iterator[str]:
    """No Python function is longer than 70 lines without its docstring."""
    for node in statements(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1 - docstring_lines(node)
            if lines > FUNCTION_LINES_MAX:
                yield f"{node.name} at line {node.lineno} has {lines} lines"


def module_name(path: PurePosixPath) -> list[str]:
    """The dotted name of a module as a list. A package's ``__init__`` is its last part."""
    return list(path.with_suffix("").parts)


@functools.cache
def imported(path: PurePosixPath, text: str) -> frozenset[str]:
    """Absolute names of all modules that a Python file imports anywhere, `from a import b` as both a and a.b.

    Six tests call it, so the result for each file is cached.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = module_name(path)[: -node.level] if node.level else []
            base = ".".join([*package, *([node.module] if node.module else [])])
            names.update([base, *(f"{base}.{alias.name}" for alias in node.names)])
    return frozenset(names)


def pyspark_outside_spark(path: PurePosixPath, text: str) -> Iterator[str]:
    """Only shmaccum/spark imports pyspark."""
    if path.parts[:2] == ("shmaccum", "spark"):
        return
    for name in sorted(imported(path, text)):
        if name.split(".")[0] == "pyspark":
            yield f"imports {name} outside shmaccum/spark"


# The package for the wire protocol to brokers.
KAFKA_LIBRARY = PurePosixPath("shmaccum/sender/sinks/kafka/library")
KAFKA_PACKAGE = PurePosixPath("shmaccum/common/kafka_package.py")
KAFKA_MESSAGES = PurePosixPath("shmaccum/log/server/messages.py")
# The producer that raises kafka-python's exceptions.
KAFKA_PYTHON_COMPAT = PurePosixPath("shmaccum/compat/kafka_python.py")


def kafka_outside_library(path: PurePosixPath, text: str) -> Iterator[str]:
    """Only one folder imports kafka-python, so a change of its internals affects no other."""
    others = {KAFKA_PACKAGE, KAFKA_MESSAGES, KAFKA_PYTHON_COMPAT}
    if KAFKA_LIBRARY in path.parents or path in others:
        return
    for name in sorted(imported(path, text)):
        if name.split(".")[0] == "kafka":
            yield f"imports {name} outside {KAFKA_LIBRARY}"


def bare_select(path: PurePosixPath, text: str) -> Iterator[str]:
    """select() raises for descriptors from 1,024 on; shmaccum/arena/wake_fifo.py and epoll do not."""
    if path.name not in {"results_fifo.py", "wake_fifo.py"} and "select" in imported(path, text):
        yield "imports select: shmaccum.arena.wake_fifo.wait_readable takes every descriptor"


# Producers and senders share only the arena, and a supervisor starts a sender by exec, so neither imports the other.
# Both use a log, which imports neither.
ABOVE_LOGS = {
    "shmaccum.producer",
    "shmaccum.sender",
    "shmaccum.sender.sinks",
    "shmaccum.sender.shipping",
    "shmaccum.supervisor",
    "shmaccum.supervisor.kept_producer",
    "shmaccum.relay",
    "shmaccum.observe",
    "shmaccum.cli",
    "shmaccum.spark",
}
KEPT_APART = {
    "shmaccum.arena": {*ABOVE_LOGS, "shmaccum.log.files"},
    "shmaccum.producer": {"shmaccum.sender", "shmaccum.sender.sinks", "shmaccum.aio", "shmaccum.compat"},
    "shmaccum.aio": {"shmaccum.sender", "shmaccum.sender.sinks", "shmaccum.compat", "shmaccum.cli", "shmaccum.spark"},
    "shmaccum.compat": {
        "shmaccum.sender",
        "shmaccum.log.files",
        "shmaccum.log.server",
        "shmaccum.log.consumer",
        "shmaccum.observe",
        "shmaccum.cli",
        "shmaccum.spark",
    },
    "shmaccum.sender": {"shmaccum.producer", "shmaccum.supervisor.kept_producer"},
    "shmaccum.sender.sinks": {
        "shmaccum.log.server",
        "shmaccum.sender",
        "shmaccum.producer",
        "shmaccum.supervisor.kept_producer",
    },
    "shmaccum.supervisor": {"shmaccum.sender"},
    "shmaccum.supervisor.supervisor": {"shmaccum.producer"},
    "shmaccum.supervisor.start": {"shmaccum.producer"},
    "shmaccum.log.files": {
        *ABOVE_LOGS,
        "shmaccum.log.groups",
        "shmaccum.log.consumer",
        "shmaccum.log.server",
        "shmaccum.arena",
    },
    "shmaccum.log.groups": {*ABOVE_LOGS, "shmaccum.arena", "shmaccum.log.consumer", "shmaccum.log.server"},
    "shmaccum.log.consumer": {*ABOVE_LOGS, "shmaccum.arena", "shmaccum.log.server"},
    "shmaccum.log.server": ABOVE_LOGS,
}
"""Maps a package or module to the packages and modules that it may not import."""
SINKS = "shmaccum.sender.sinks"
"""A row for a package around the sinks does not apply to them: others may make a sink without starting a sender."""


def room(module: str) -> str | None:
    """The top package of a module: "producer" of shmaccum.producer.pipeline. None if it is in no package."""
    parts = module.split(".")
    return parts[1] if parts[0] == "shmaccum" and len(parts) > 1 else None


def places(module: str) -> list[str]:
    """The packages around a module, itself included, for which a row of `KEPT_APART` counts."""
    around = module_ancestors(module)
    return around[around.index(SINKS) :] if SINKS in around else around


def crossing_import(path: PurePosixPath, text: str) -> Iterator[str]:
    """No package imports a package or module that `KEPT_APART` forbids to it."""
    own = places(".".join(module_name(path)).removesuffix(".__init__"))
    for name in sorted(imported(path, text)):
        for package in own:
            if KEPT_APART.get(package, set()) & set(places(name)):
                yield f"{package} may not import {name}"


SEGMENT_LOG = PurePosixPath("shmaccum/log/files")
PATH_METHODS = {"read_bytes", "read_text", "write_bytes", "write_text"}


def unguarded_open(path: PurePosixPath, text: str) -> Iterator[str]:
    """A file in a log directory may be a FIFO, so only regular_files.open_regular opens such files."""
    if SEGMENT_LOG not in path.parents or path.name == "regular_files.py":
        return
    for call in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)):
        name, arguments = ast.unparse(call.func), ast.unparse(call)
        is_guarded = "opener=open_regular" in arguments if name == "open" else "os.O_DIRECTORY" in arguments
        if (name in {"open", "os.open"} and not is_guarded) or name.split(".")[-1] in PATH_METHODS:
            yield f"line {call.lineno} calls {name} without open_regular"


# --- the whole tree

ROOT = "shmaccum"


def import_graph(files: dict[PurePosixPath, str]) -> dict[str, set[str]]:
    """Each module of shmaccum and the modules that it imports anywhere, also lazily or only for types.

    `from package import module` leads to the module, not to the package around it. The root imports its
    names lazily, so an import of the root leads to none of them.
    """
    texts = {".".join(module_name(path)).removesuffix(".__init__"): (path, text) for path, text in files.items()}
    graph: dict[str, set[str]] = {}
    for module, (path, text) in texts.items():
        names = set(imported(path, text) & set(texts))
        packages = {name.rpartition(".")[0] for name in names}
        graph[module] = names - (packages & set(module_ancestors(module))) - {ROOT}
    return graph


def room_graph(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Map each package, or module outside all packages, to the ones that its modules import."""
    rooms: dict[str, set[str]] = {}
    for module, wanted in graph.items():
        own = room(module) or ROOT
        rooms.setdefault(own, set()).update({room(name) or ROOT for name in wanted} - {own})
    return rooms


def module_ancestors(module: str) -> list[str]:
    """The packages around a module, itself included: a, a.b and a.b.c for a.b.c."""
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def import_circle(graph: dict[str, set[str]]) -> list[str]:
    """The modules in an import cycle, or that import one in a cycle. Empty if there is no cycle."""
    left = {module: set(wanted) for module, wanted in graph.items()}
    while free := {module for module, wanted in left.items() if not wanted & set(left)}:
        left = {module: wanted for module, wanted in left.items() if module not in free}
    return sorted(left)


def uncompiled(files: set[str], compiled: set[str]) -> set[str]:
    """C files under native/ that are not compiled into the extension."""
    return {name for name in files if name.endswith(".c")} - compiled


def unused_headers(files: dict[str, str]) -> set[str]:
    """Headers under native/ that no file there includes. `files` maps paths to texts."""
    wanted = {f"native/{name}" for text in files.values() for is_system, name in included(text) if not is_system}
    return {name for name in files if name.endswith(".h")} - wanted


def edge_ends(page: str, edges: str) -> Counter[str]:
    """The count of edge ends for each label in docs/explanation/memory-ordering.rst and its table of edges (CSV)."""
    cells = re.findall(r"^   \* - (.*)", page, re.MULTILINE)
    ends = {(label, "from") for cell in cells for label in LABEL.findall(cell)}
    for source, _, target, *_ in csv.reader(edges.splitlines()):
        ends |= {(label, "from") for label in LABEL.findall(source)}
        ends |= {(label, "to") for label in LABEL.findall(target)}
    return Counter(label for label, _ in ends)


def labels_of_code(text: str) -> Counter[str]:
    """The count of places in a C file that carry each label in a trailing comment."""
    return Counter(label for comment in COMMENT_BEHIND_CODE.findall(text) for label in set(LABEL.findall(comment)))


def exported_symbols(nm_output: str) -> set[str]:
    """The names in the output of `nm -D --defined-only`."""
    return {line.split()[-1] for line in nm_output.splitlines() if line.strip()}


def modules_without_a_line(overview: str, modules: Iterable[str]) -> list[str]:
    """The modules that their package's overview does not name."""
    words = set(re.findall(r"\w+", overview))
    return sorted(name for name in modules if name not in words)


NAMED_FILE = re.compile(r"(?<![\w/.<>{}*-])\w[\w./-]*\.(?:c|h|py)\b(?!\.?\w|\()")
NAMED_MEMBER = re.compile(r"`(_?[A-Z]\w*)\.(\w+)(?:\(\))?`")
FOREIGN_CLASSES = {"DataFrame"}


@functools.cache
def prose_of(path: PurePosixPath, text: str) -> list[str]:
    """The comments and docstrings of a source. Two rules read them."""
    if path.suffix in C_SUFFIXES:
        return [found for found in C_COMMENT_OR_STRING.findall(text) if not found.startswith('"')]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    expressions = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr))
    constants = (value.value for value in expressions if isinstance(value, ast.Constant))
    return [*comments, *(text for text in constants if isinstance(text, str))]


def endings(path: PurePosixPath) -> Iterator[str]:
    """A path and each shorter form that a sentence may use: ``a/b.c`` and ``b.c``."""
    return ("/".join(path.parts[start:]) for start in range(len(path.parts)))


def missing_files(path: PurePosixPath, text: str, known: set[str]) -> list[str]:
    """The missing files that comments and docstrings name."""
    return [name for prose in prose_of(path, text) for name in NAMED_FILE.findall(prose) if name not in known]


class ClassNames(NamedTuple):
    """The names that a class defines or sets, and its bases."""

    members: set[str]
    bases: set[str]


def classes_of(texts: Iterable[str]) -> dict[str, ClassNames]:
    """The classes of sources, by name. Classes with the same name count as one."""
    classes: dict[str, ClassNames] = {}
    for node in (node for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)):
        found = classes.setdefault(node.name, ClassNames(set(), set()))
        found.bases.update(word for base in node.bases for word in re.findall(r"\w+", ast.unparse(base)))
        for part in ast.walk(node):
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                found.members.add(part.name)
            elif isinstance(part, ast.Name | ast.Attribute) and isinstance(part.ctx, ast.Store):
                found.members.add(part.id if isinstance(part, ast.Name) else part.attr)
    return classes


def has_member(classes: dict[str, ClassNames], name: str, member: str) -> bool:
    """True if a class or one of its bases defines or sets the name."""
    found = classes.get(name, ClassNames(set(), set()))
    return member in found.members or any(has_member(classes, base, member) for base in found.bases - {name})


def missing_members(path: PurePosixPath, text: str, classes: dict[str, ClassNames]) -> list[str]:
    """The methods and attributes that comments and docstrings name as `Class.name` and that no such class has."""
    return [
        f"{name}.{member}"
        for prose in prose_of(path, text)
        for name, member in NAMED_MEMBER.findall(prose)
        if name not in FOREIGN_CLASSES and not has_member(classes, name, member)
    ]
