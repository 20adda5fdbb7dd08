# SPDX-License-Identifier: Apache-2.0
"""The directive ``public-names``: the API reference of all public names of one kind.

The next build contains each new public name.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import nested_parse_with_titles

import shmaccum
from shmaccum import exceptions

# A reader of the reference looks for these first.
FIRST = ("Producer", "DeliveryFuture", "RecordMetadata", "Deliveries", "Arena", "Sender")
KINDS = ("objects", "functions", "options", "exceptions")
# Classes whose members are not shown. Inherited members of all other classes are.
LEFT_OUT = "Options, tuple, IntEnum, ReprEnum, Enum, int, object"

# Members for other modules of shmaccum.
INNER = {
    "Producer": (
        "append_columns, append_rows, is_open, partitions_to_choose_from, record_bytes, record_count, refuse_sends, "
        "tracker, will_be_delivered"
    ),
    "Transaction": "begin, begin_waits, commit_waits, release",
    "DeliveryFuture": (
        "completion, headers_size, key_size, partition_index, record_index, seq, slot_index, tracker, value_size"
    ),
}


def kind_of(name: str) -> str | None:
    """Return the kind of a public name, or None for a former name and for other values."""
    value = getattr(shmaccum, name)
    if name in former_names():
        return None
    if inspect.isclass(value) and issubclass(value, BaseException):
        return "exceptions"
    if inspect.isclass(value):
        return "options" if name.endswith("Options") else "objects"
    return "functions" if callable(value) else None


def _lines(name: str) -> list[str]:
    """Return the autodoc directive of a name."""
    if kind_of(name) == "functions":
        return [f".. autofunction:: shmaccum.{name}", ""]
    if kind_of(name) == "exceptions":
        return [f".. autoclass:: shmaccum.{name}", "   :members:", "   :show-inheritance:", ""]
    inner = INNER.get(name, "contradictions, place, scope")
    members = ["   :members:", f"   :inherited-members: {LEFT_OUT}", f"   :exclude-members: {inner}"]
    return [f".. autoclass:: shmaccum.{name}", *members, ""]


def _in_order() -> list[str]:
    """Return the public names, the most important ones first."""
    return sorted(shmaccum.__all__, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))


def former_names() -> dict[str, str]:
    """Return the former name of each merged exception, with its present name."""
    classes = {name: value for name, value in vars(exceptions).items() if inspect.isclass(value)}
    return {name: value.__name__ for name, value in classes.items() if value.__name__ != name}


def _former_lines() -> list[str]:
    """Return a list of the former names."""
    rows = [f"- ``{name}``: :class:`shmaccum.{today}`" for name, today in sorted(former_names().items())]
    return ["Former names, which can still be imported:", "", *rows, ""]


def exception_tree(error: type[Exception], indent: str = "") -> list[str]:
    """Return a nested list of an exception and the public exceptions that derive from it."""
    derived = [one for one in error.__subclasses__() if getattr(shmaccum, one.__name__, None) is one]
    below = (line for one in derived for line in exception_tree(one, f"{indent}  "))
    return [f"{indent}- :class:`shmaccum.{error.__name__}`", "", *below]


class PublicNames(SphinxDirective):
    """``.. public-names:: exceptions`` lists all public names of that kind, with the tree of exceptions."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        kind = self.arguments[0]
        if kind not in KINDS:
            raise self.error(f"public-names takes one of {', '.join(KINDS)}, got {kind!r}")
        lines = [line for name in _in_order() if kind_of(name) == kind for line in _lines(name)]
        if kind == "exceptions":
            lines = [*exception_tree(shmaccum.ShmaccumError), *lines, *_former_lines()]
        container = nodes.container()
        nested_parse_with_titles(self.state, StringList(lines, self.get_source_info()[0]), container)
        return container.children


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directive when Sphinx loads the extension."""
    app.add_directive("public-names", PublicNames)
    return {"parallel_read_safe": True}
