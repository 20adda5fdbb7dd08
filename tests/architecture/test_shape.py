# SPDX-License-Identifier: Apache-2.0
"""The counts of `shape` are correct for a small checkout that these tests write."""

from __future__ import annotations

from pathlib import Path

import pytest

from setup import ROOT
from tests.architecture import shape
from tests.architecture.reference import key_lines, own_names

FILES = {
    "CHANGELOG.rst": "Changelog\n=========\n\nUnreleased\n----------\n\n- new\n\n0.1.0\n-----\n\n- old\n",
    "shmaccum/__init__.py": "if TYPE_CHECKING:\n    from shmaccum.low import Sink as Sink\n",
    "shmaccum/exceptions.py": "class Late(Exception):\n    pass\n\n\nDelayed = Late\n",
    "shmaccum/low.py": "class Sink:\n    size: int\n    _hidden: int\n\n    def write(self):\n        pass\n",
    "shmaccum/high/__init__.py": "",
    "shmaccum/high/work.py": (
        "from shmaccum.low import Sink\n\n\nclass Late:\n    pass\n\n\n"
        "def _once():\n    return 1\n\n\ndef _twice():\n    return _once()\n\n\n_twice()\n_twice()\n"
    ),
    "native/base/a.h": '#include "base/b.h"\n',
    "native/base/b.c": '#include "base/a.h"\n\nint f(void)\n{\n    return 1;\n}\n\nint g(void)\n{\n    return 2;\n}\n',
    "docs/decisions/0001-a.rst": "0001 a\n",
    "docs/index.rst": "index\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> shape.Tree:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return shape.Tree(tmp_path)


def test_the_structure_of_a_checkout_is_counted(tree: shape.Tree) -> None:
    assert dict(shape.structure(tree)) == {
        "entries directly in shmaccum/ (packages)": "3 (1)",
        "import layers / edges / cycles of packages": "2 / 1 / 0",
        "C include cycles of folders / of files": "0 / 1",
        "class names defined twice or more": "1 (Late x2)",
        "exceptions / public names": "1 / 3",
        "members of Sink": "2",
    }


def test_the_sizes_of_a_checkout_are_counted(tree: shape.Tree) -> None:
    figures = dict(shape.sizes(tree))
    assert figures["product lines, Python + C"] == f"{2 + 5 + 6 + 17} + {1 + 11}"
    assert figures["decisions / pages"] == "1 / 2"
    assert figures["changelog of the unreleased version"] == "5 bytes"
    assert figures["private functions called once, at most 3 lines"] == "1 of 3 (33.3 %)"
    assert figures["lines of a C function, p90 / max"] == "3 / 3"


def test_the_keys_of_a_document_are_named_once() -> None:
    document = {"a": 1, "b": [{"c": "x"}, {"c": "y"}]}
    assert list(key_lines("look", document)) == ["json look .a: int", "json look .b[].c: str"]


def test_a_module_that_lists_no_names_has_those_that_it_defines() -> None:
    assert "Tree" in own_names("tests.architecture.shape")
    assert "Counter" not in own_names("tests.architecture.shape")


def test_this_checkout_has_few_packages_in_layers() -> None:
    tree = shape.Tree(ROOT)
    graph = shape.package_graph(tree)
    assert len(tree.entries()) <= 17
    assert len(shape.layers(graph)) <= 10
    assert sum(len(wanted & set(graph)) for wanted in graph.values()) <= 90
    assert shape.cycles(graph) == []
    assert shape.cycles(shape.include_graph(tree)) == []
    assert shape.cycles(shape.file_graph(tree)) == []
