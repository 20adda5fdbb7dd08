# SPDX-License-Identifier: Apache-2.0
"""The code blocks of a page, and the page's own rules for running them.

A page specifies them in comments, which the site does not show::

    .. rehearsal                     at most once in a page, before its first block
       events = {name}               the block's text "events" becomes a name that no other test uses
       marks: slow, spark            the page's test carries these marks of pytest
       needs: gunicorn               the page's test is skipped where this module is not installed
    .. not run: REASON               the next block is shown and not run
    .. saved as: app.py              the next block becomes this file
    .. output                        the next block is what the block before it prints; "..." stands for anything

A block in a language of `RUN` is run, one in a language of `PARSED` is parsed, one of ``text`` is shown. A program of
``examples`` that the page includes is saved completely under its own name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import docutils.core
from docutils import nodes
from docutils.parsers.rst import Directive, directives

from tests.docs.page import RUN, Block, Page, PageError

PARSED = {"ini", "yaml", "toml"}
SHOWN = {"text"}
# Docutils knows fewer directives and roles than Sphinx: an unknown one is neither a block nor an error here.
SETTINGS = {"report_level": 5, "halt_level": 5, "file_insertion_enabled": False, "syntax_highlight": "none"}


LANGUAGES = {".py": "python", ".yml": "yaml"}
"""Maps the suffix of an included file to its language."""


class LiteralInclude(Directive):
    """Sphinx's directive of that name: a block with the whole text of a file, even if the site shows only a part."""

    required_arguments = 1
    option_spec = dict.fromkeys(("caption", "language", "lines", "start-at"), directives.unchanged)

    def run(self) -> list[nodes.Node]:
        path = Path(self.state.document.current_source or "").parent / self.arguments[0]
        if not path.is_file() or path.suffix not in LANGUAGES:
            raise PageError(f"{path} is neither a Python nor a YAML file: a page includes no others")
        text = path.read_text(encoding="utf-8")
        block = nodes.literal_block(text, text, classes=["code", LANGUAGES[path.suffix]], included=path.name)
        block.line = self.lineno
        return [block]


def read_rules(path: Path) -> Page:
    """Return a page with its rules and without its blocks, which docutils would parse for 25 ms."""
    page = Page(path)
    for comment in re.findall(r"^\.\. (rehearsal\n(?:   .+\n)+)", path.read_text(encoding="utf-8"), re.MULTILINE):
        _read_rehearsal(page, comment.rstrip("\n").replace("\n   ", "\n"))
    return page


def read_page(path: Path) -> Page:
    """Return all blocks of a page, parsed by docutils.

    Raises:
        PageError: a block has no known language, or a comment about blocks cannot be understood.
    """
    page = Page(path)
    mark = ""
    for node in _comments_and_blocks(path):
        if isinstance(node, nodes.comment):
            mark = node.astext()
            if mark.split("\n")[0] == "rehearsal":
                _read_rehearsal(page, mark)
                mark = ""
        else:
            page.blocks.append(_block(page, node, mark))
            mark = ""
    return page


def _comments_and_blocks(path: Path) -> Iterator[nodes.Element]:
    """Yield comments and literal blocks in the order of the page."""
    text = path.read_text(encoding="utf-8")
    directives.register_directive("literalinclude", LiteralInclude)  # Sphinx in this process would register its own
    tree = docutils.core.publish_doctree(text, source_path=str(path), settings_overrides=SETTINGS)
    for node in tree.findall(nodes.Element):
        is_wanted = isinstance(node, (nodes.comment, nodes.literal_block))
        if is_wanted and not isinstance(node.parent, nodes.system_message):
            yield node


def _read_rehearsal(page: Page, comment: str) -> None:
    for line in comment.split("\n")[1:]:
        if " = " in line:
            shown, _, used = line.partition(" = ")
            page.replacements[shown.strip()] = used.strip()
        elif line.startswith("marks:"):
            page.marks = line.removeprefix("marks:").replace(",", " ").split()
        elif line.startswith("needs:"):
            page.needs = line.removeprefix("needs:").replace(",", " ").split()
        else:
            raise PageError(f"{page.name}: rehearsal says {line!r}, which is no replacement, no mark and no module")


def _block(page: Page, node: nodes.Element, mark: str) -> Block:
    language = next((name for name in node["classes"] if name != "code"), "")
    line = (node.line or 0) + 1
    if language not in RUN | PARSED | SHOWN:
        raise PageError(
            f"{page.name}:{line}: a block in {language or 'no language'}; say .. code-block:: sh or another"
        )
    if "included" in node:
        return Block(language, node.astext(), line, file=node["included"])
    block = Block(language, node.astext() + "\n", line)
    verb, _, rest = mark.partition(":")
    if verb == "saved as":
        return Block(language, block.text, line, file=rest.strip())
    if verb == "not run":
        if len(rest.split()) < 3:
            raise PageError(f"{page.name}:{line}: '.. not run:' needs its reason, in words")
        return Block(language, block.text, line, reason=rest.strip())
    if verb == "output":
        if not (page.blocks and page.blocks[-1].is_run):
            raise PageError(f"{page.name}:{line}: there is no block before this one whose output it could be")
        return Block(language, block.text, line, is_output=True)
    return block
