# SPDX-License-Identifier: Apache-2.0
"""Runs the blocks of one page in order, in the current folder: ``python -m tests.docs.rehearsal NAME``.

The page is in the standard input, as JSON.

A separate process runs each page, so that a test can end it together with the processes of its blocks. Python blocks
share one namespace, as if a reader typed them in turn. Each shell block runs in its own bash.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.docs.page import Block, Page

COMPARED = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Stage:
    """The state of a run: the replacements of the page's names, and the namespace of its Python blocks."""

    def __init__(self, page: Page, name: str) -> None:
        self.page = page
        self._used = {shown: self._fill(used, name) for shown, used in page.replacements.items()}
        self._namespace: dict[str, Any] = {"__name__": "__main__"}

    @staticmethod
    def _fill(used: str, name: str) -> str:
        """Fill a replacement with values of this run."""
        known: dict[str, Callable[[], str]] = {
            "{name}": lambda: name,
            "{folder}": lambda: str(Path.cwd()),
            "{port}": _free_port,
            "{brokers}": _mock_brokers,
            "{python}": lambda: sys.executable,
        }
        return re.sub(r"\{\w+\}", lambda found: known[found.group()](), used)

    def as_run(self, text: str) -> str:
        """Return a block's text with the names of this run."""
        return _replaced(text, self._used)

    def as_shown(self, text: str) -> str:
        """Return the output of a block with the names of the page."""
        for shown, used in self._used.items():
            text = text.replace(used, shown)
        return text

    def run(self, block: Block) -> str:
        """Run a block and return its output.

        Raises:
            Exception: a Python block raised it.
            CalledProcessError: a command of a shell block ended with another code than 0.
        """
        text = self.as_run(block.text)
        return self.as_shown(self._run_python(block, text) if block.language == "python" else _run_shell(text))

    def _run_python(self, block: Block, text: str) -> str:
        printed = io.StringIO()
        code = compile("\n" * (block.line - 1) + text, str(self.page.path), "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, self._namespace)
        return printed.getvalue()


def _replaced(text: str, used: dict[str, str]) -> str:
    """Replace whole words only: `events` is not replaced in `my_events`."""
    if not used:
        return text
    shown = "|".join(re.escape(name) for name in sorted(used, key=len, reverse=True))
    return re.sub(rf"(?<![\w-])(?:{shown})(?![\w-])", lambda found: used[found.group()], text)


def _run_shell(text: str) -> str:
    """Return the output of the commands. It goes to a file, because a background process would keep a pipe open."""
    with tempfile.TemporaryFile("w+") as printed:
        command = ["bash", "-euo", "pipefail", "-c", text]
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT)
        printed.seek(0)
        output = printed.read()
    if ended.returncode:
        sys.stdout.write(output)
        raise subprocess.CalledProcessError(ended.returncode, text)
    return output


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


_brokers: list[Any] = []


def _mock_brokers() -> str:
    """Return the addresses of a mock cluster of librdkafka, which lives as long as this process."""
    from confluent_kafka import Producer

    mock_cluster = Producer({"test.mock.num.brokers": 2, "bootstrap.servers": "ignored", "log_level": 0})
    _brokers.append(mock_cluster)
    return ",".join(sorted(f"{broker.host}:{broker.port}" for broker in mock_cluster.list_topics().brokers.values()))


def rehearse(page: Page, name: str) -> list[str]:
    """Run all blocks of the page. Return the first difference from the page as a sentence, if any."""
    stage = Stage(page, name)
    printed = ""
    for block in page.blocks:
        place = f"{page.name}:{block.line}"
        if block.file is not None:
            Path(block.file).write_text(stage.as_run(block.text), encoding="utf-8")
        elif block.is_output:
            if not doctest.OutputChecker().check_output(block.text, printed, COMPARED):
                return [f"{place}: the page shows\n{block.text}\nand this was printed\n{printed}"]
        elif block.is_run:
            try:
                printed = stage.run(block)
            except Exception as failure:  # noqa: BLE001 - whatever it is, the page is wrong
                return [f"{place}: {type(failure).__name__}: {failure}"]
    return []


def main() -> int:
    """Run the command line."""
    faults = rehearse(Page.from_json(sys.stdin.read()), sys.argv[1])
    print(*faults, sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
