# SPDX-License-Identifier: Apache-2.0
"""The project's own sources obey the rules of style and layering."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from setup import ROOT, native_sources
from shmaccum import exceptions
from tests.architecture import rules
from tests.architecture.rules import C_SUFFIXES, PYTHON_SUFFIXES, Rule

pytestmark = pytest.mark.xdist_group("sources")
"""Each file is parsed by one worker."""

SOURCE_FOLDERS = ("native", "shmaccum", "tests", "bench", "examples")
BUILD_FILES = (
    "setup.py",
    "pyproject.toml",
    "Makefile",
    ".ci/run",
    ".ci/wheels",
    ".ci/wheel-arm64",
    ".ci/try-wheel",
    ".ci/cibuildwheel.toml",
)
SOURCE_SUFFIXES = C_SUFFIXES | PYTHON_SUFFIXES
PROSE_FOLDERS = ("docs",)
PICTURE_SUFFIXES = (".png",)
PROSE_FILES = ("README.rst", "CHANGELOG.rst", "MANIFEST.in")


def files_under(*folders: str) -> Iterator[PurePosixPath]:
    for folder in folders:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield PurePosixPath(path.relative_to(ROOT))


SOURCES = sorted(
    [
        *(path for path in files_under(*SOURCE_FOLDERS) if path.suffix in SOURCE_SUFFIXES),
        *(PurePosixPath(name) for name in BUILD_FILES),
    ]
)
PROSE = sorted(
    [
        *(path for path in files_under(*PROSE_FOLDERS) if path.suffix not in PICTURE_SUFFIXES),
        *(PurePosixPath(name) for name in PROSE_FILES),
    ]
)
C_FILES = [path for path in SOURCES if path.suffix in C_SUFFIXES]
NATIVE = [path for path in C_FILES if path.parts[0] == "native"]
PYTHON = [path for path in SOURCES if path.suffix in PYTHON_SUFFIXES]
PACKAGE = [path for path in PYTHON if path.parts[0] == "shmaccum"]

RULES: list[tuple[Rule, list[PurePosixPath]]] = [
    (rules.long_line, SOURCES),
    (rules.missing_license, SOURCES),
    (rules.banned_word, SOURCES + PROSE),
    (rules.short_underline, [path for path in PROSE if path.suffix == ".rst"]),
    (rules.upward_include, NATIVE),
    (rules.python_header, C_FILES),
    (rules.bare_atomic, NATIVE),
    (rules.unlabelled_barrier, NATIVE),
    (rules.check_of_input, NATIVE),
    (rules.long_c_function, C_FILES),
    (rules.long_python_function, PYTHON),
    (rules.pyspark_outside_spark, PACKAGE),
    (rules.kafka_outside_library, PACKAGE),
    (rules.bare_select, PACKAGE),
    (rules.replaceable_clock, PACKAGE),
    (rules.crossing_import, PACKAGE),
    (rules.unguarded_open, PACKAGE),
]


def read(path: PurePosixPath) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize(("rule", "paths"), RULES, ids=[rule.__name__ for rule, _ in RULES])
def test_no_source_violates(rule: Rule, paths: list[PurePosixPath]) -> None:
    assert paths, "a rule over no files proves nothing"
    violations = [f"{path}: {violation}" for path in paths for violation in rule(path, read(path))]
    assert not violations, "\n".join(violations)


def test_no_modules_import_each_other_in_a_circle() -> None:
    files = {path: read(path) for path in PACKAGE if path.suffix == ".py"}
    assert rules.import_circle(rules.import_graph(files)) == []


def test_no_rooms_import_each_other_in_a_circle() -> None:
    files = {path: read(path) for path in PACKAGE if path.suffix == ".py"}
    graph = rules.import_graph(files)
    assert rules.import_circle(rules.room_graph({name: graph[name] for name in graph if name != "shmaccum"})) == []


PACKAGES = sorted({path.parent for path in PACKAGE if len(path.parts) > 2 and "discovery" not in path.parts})


@pytest.mark.parametrize("folder", PACKAGES, ids=str)
def test_the_overview_of_a_package_names_its_modules(folder: PurePosixPath) -> None:
    overview = ast.get_docstring(ast.parse(read(folder / "__init__.py"))) or ""
    modules = {path.stem for path in PACKAGE if path.parent == folder and not path.stem.startswith("__")}
    missing = rules.modules_without_a_line(overview, modules)
    assert missing == [], f"{folder}/__init__.py says of each module what it is for"


@pytest.mark.parametrize("overview", ["native/arena/arena.h", "native/sender/sender.h"])
def test_the_overview_of_a_core_folder_names_its_files(overview: str) -> None:
    text, _, _ = read(PurePosixPath(overview)).partition("*/")
    files = {path.stem for path in NATIVE if path.parent == PurePosixPath(overview).parent}
    assert rules.modules_without_a_line(text.partition("This folder has:")[2], files - {"sender"}) == []


def test_every_c_file_is_compiled() -> None:
    assert rules.uncompiled({str(path) for path in files_under("native")}, set(native_sources())) == set()


@pytest.mark.parametrize("folder", rules.CHECKED_FOLDERS)
def test_each_layer_has_enough_checks(folder: str) -> None:
    texts = [read(path) for path in NATIVE if path.parts[1] == folder]
    assert rules.checks_per_function(texts) >= rules.CHECKS_PER_FUNCTION_MIN


def test_every_header_is_included() -> None:
    assert rules.unused_headers({str(path): read(path) for path in NATIVE}) == set()


def test_comments_and_docstrings_name_files_and_members_that_are_there() -> None:
    known = {name for path in SOURCES + PROSE for name in rules.endings(path)}
    classes = rules.classes_of(map(read, PACKAGE))
    texts = {path: read(path) for path in NATIVE + PACKAGE}
    gone = {
        path: [*rules.missing_files(path, text, known), *rules.missing_members(path, text, classes)]
        for path, text in texts.items()
    }
    assert {str(path): names for path, names in gone.items() if names} == {}


def test_every_ordering_edge_is_labelled_at_both_ends() -> None:
    page = PurePosixPath("docs/explanation/memory-ordering.rst")
    documented = rules.edge_ends(read(page), read(page.with_suffix(".csv")))
    coded = sum((rules.labels_of_code(read(path)) for path in NATIVE), Counter[str]())
    assert len(documented) > 20, "the tables are not read"
    assert {label: (count, coded[label]) for label, count in documented.items() if coded[label] < count} == {}
    assert set(coded) - set(documented) == {"N2", "N3"}, "every other label is an edge; those two are reasons"


def test_each_decision_has_its_own_number_in_its_title() -> None:
    decisions = [path for path in files_under("docs/decisions") if path.name != "README.rst"]
    assert len({path.name[:4] for path in decisions}) == len(decisions)
    titles = {path: read(path).splitlines()[0] for path in decisions}
    assert [title for path, title in titles.items() if not title.startswith(f"{path.name[:4]} ")] == []


def decision_faults(page: str) -> list[str]:
    """What the form of a decision forbids: other sections, longer ones, or more than one sentence of consequence."""
    parts = re.split(r"^(\w+)\n-+\n\n", page, flags=re.MULTILINE)[1:]
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    if list(sections) != ["Context", "Decision", "Consequences"]:
        return [f"its sections are {', '.join(sections)}"]
    prose = {name: text.split("\n\n==")[0].strip() for name, text in sections.items()}
    long = [f"{name} has more than 5 lines" for name, text in prose.items() if text.count("\n") > 4]
    return long + ["Consequences has several sentences"] * bool(re.search(r"\w[`)]*\.\s", prose["Consequences"]))


def test_each_decision_has_the_form_that_its_index_describes() -> None:
    decisions = [path for path in files_under("docs/decisions") if path.name != "README.rst"]
    faults = {str(path): decision_faults(read(path)) for path in decisions}
    assert {path: found for path, found in faults.items() if found} == {}


@pytest.mark.parametrize(
    ("context", "consequences", "fault"),
    [
        ("A need.", "One fact.", []),
        ("A line.\n" * 6, "One fact.", ["Context has more than 5 lines"]),
        ("A need.", "One fact. Another one.", ["Consequences has several sentences"]),
    ],
)
def test_the_form_of_a_decision_is_checked(context: str, consequences: str, fault: list[str]) -> None:
    sections = {"Context": context, "Decision": "A choice.\n\n===  ===\na    b\n===  ===", "Consequences": consequences}
    page = "".join(f"{name}\n{'-' * len(name)}\n\n{text}\n\n" for name, text in sections.items())
    assert decision_faults(page) == fault


def drawn_folders(tree: str) -> set[str]:
    """The folders of a drawn tree. Two spaces indent a level, and a word that ends in a slash is a folder."""
    found: set[str] = set()
    above: list[str] = []
    for line in tree.splitlines():
        level = (len(line) - len(line.lstrip())) // 2
        names = re.findall(r"[\w-]+(?=/(?:\s|$))", line.strip().split("   ")[0])
        above[level:] = names[-1:]
        found |= {"/".join([*above[:level], name]) for name in names}
    return found


def test_the_file_map_names_every_folder() -> None:
    page = read(PurePosixPath("docs/explanation/architecture.rst"))
    block = page.split("File map\n", 1)[1].split(".. code-block:: text\n\n", 1)[1].split("\n\n", 1)[0]
    drawn = drawn_folders(textwrap.dedent(block))
    java = PurePosixPath("bench/java/src")
    folders = {folder for path in files_under(*SOURCE_FOLDERS, *PROSE_FOLDERS) for folder in path.parents}
    real = {str(folder) for folder in folders if java not in [folder, *folder.parents]} - {"."}
    assert drawn - real == set(), "docs/explanation/architecture.rst draws folders that are not there"
    assert real - drawn == set(), "docs/explanation/architecture.rst does not draw these folders"


PLACE = re.compile(r"``([\w/]+\.(?:c|h|py))(?::\s+([\w.]+))?``")


def defines(text: str, name: str) -> bool:
    """True if a file defines a function or a class, or a method as `Class.method`."""
    definition = r"(?:^|\s)(?:def|class)\s+{0}\b|^[\w][^;=]*\b\*?{0}\([^;]*$"
    return all(re.search(definition.format(part), text, re.MULTILINE) for part in name.split("."))


def test_the_journey_of_a_record_names_functions_that_are_there() -> None:
    page = read(PurePosixPath("docs/explanation/architecture.rst"))
    places = [
        (f"{'shmaccum' if name.endswith('.py') else 'native'}/{name}", what) for name, what in PLACE.findall(page)
    ]
    assert len(places) > 20, "the journey is not read"
    missing = [name for name, _ in places if not (ROOT / name).is_file()]
    assert missing == [], "docs/explanation/architecture.rst names files that are not there"
    undefined = [(name, what) for name, what in places if what and not defines(read(PurePosixPath(name)), what)]
    assert undefined == [], "docs/explanation/architecture.rst names functions that are not there"


def test_a_definition_is_distinguished_from_a_call() -> None:
    assert defines("static int f(int a)\n{\n", "f")
    assert not defines("    return f(a);\n", "f")
    assert defines("class A:\n    def b(self) -> None:\n", "A.b")
    assert not defines("class A:\n    c = a.b()\n", "A.b")


def test_a_drawn_tree_is_read_by_its_levels() -> None:
    tree = "a/        first\n  b/  c/   two\n    d/     below c\n  e/       one/two\nf/\n"
    assert drawn_folders(tree) == {"a", "a/b", "a/c", "a/c/d", "a/e", "f"}


def test_native_holds_nothing_but_c() -> None:
    assert {path.suffix for path in files_under("native")} == C_SUFFIXES


def test_the_extension_exports_its_init_function_alone() -> None:
    spec = importlib.util.find_spec("shmaccum._native")
    assert spec is not None, "the extension is not built: run make test"
    assert spec.origin is not None
    output = subprocess.run(
        ["nm", "-D", "--defined-only", Path(spec.origin)], capture_output=True, text=True, check=True
    ).stdout
    assert rules.exported_symbols(output) == {"PyInit__native"}


def test_code_and_pages_name_exceptions_of_today() -> None:
    classes = {name: value for name, value in vars(exceptions).items() if isinstance(value, type)}
    former = re.compile("|".join(rf"\b{name}\b" for name, value in classes.items() if value.__name__ != name))
    known = {"shmaccum/exceptions.py", "tests/unit/test_exceptions.py", "tests/docs/test_site.py", "CHANGELOG.rst"}
    paths = [path for path in SOURCES + PROSE if str(path) not in known]
    assert [str(path) for path in paths if former.search((ROOT / path).read_text(encoding="utf-8"))] == []
