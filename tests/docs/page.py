# SPDX-License-Identifier: Apache-2.0
"""A page of the documentation and its code blocks, as the process that runs them gets them.

This module does not import docutils, so that this process starts fast.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

from setup import ROOT

RUN = {"python", "sh"}
"""The languages of blocks that are run."""


class PageError(Exception):
    """A page has invalid rules for its blocks."""


@dataclass(frozen=True)
class Block:
    """A code block: its text, its first line number, and the rule of the comment before it."""

    language: str
    text: str
    line: int
    file: str | None = None
    reason: str | None = None
    is_output: bool = False

    @property
    def is_run(self) -> bool:
        return self.language in RUN and self.file is None and self.reason is None


@dataclass
class Page:
    """A page and its blocks, in order."""

    path: Path
    blocks: list[Block] = field(default_factory=list)
    replacements: dict[str, str] = field(default_factory=dict)
    marks: list[str] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path.name)

    @property
    def is_run(self) -> bool:
        return any(block.is_run for block in self.blocks)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Page:
        fields = json.loads(text)
        blocks = [Block(**block) for block in fields["blocks"]]
        return cls(**fields | {"path": Path(fields["path"]), "blocks": blocks})
