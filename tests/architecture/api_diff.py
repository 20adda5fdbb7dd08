# SPDX-License-Identifier: Apache-2.0
"""Compare all names of shmaccum with another revision: ``python -m tests.architecture.api_diff REV``.

The comparison covers the lines of ``tests.architecture.reference`` (options, commands, signatures, metrics and JSON)
and the names in the pages of docs/reference. REV is a revision, which is built in a temporary folder, or the folder of
a checkout with a built extension. The exit code is 1 if a name is missing or changed here.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from setup import ROOT

SUBJECT = re.compile(r"json .*(?=: )|\w+ [^:('\"]*")
NAME_IN_PAGE = re.compile(r"``([^`\s]+)``")


class Difference(NamedTuple):
    """A subject with its lines of both revisions. One of the two may be empty."""

    subject: str
    before: list[str]
    after: list[str]


def differences(before: Collection[str], after: Collection[str]) -> list[Difference]:
    """Return each subject with a line that only one of the revisions has."""
    found: dict[str, Difference] = {}
    for line in sorted({*before} ^ {*after}):
        subject = subject_of(line)
        difference = found.setdefault(subject, Difference(subject, [], []))
        (difference.before if line in before else difference.after).append(line)
    return [found[subject] for subject in sorted(found)]


def subject_of(line: str) -> str:
    """Return the part of a line that names its subject."""
    match = SUBJECT.match(line)
    return match.group().strip() if match else line


def described(checkout: Path) -> list[str]:
    """Return the lines of a checkout."""
    environment = os.environ | {"PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    program = [sys.executable, str(ROOT / "tests" / "architecture" / "reference.py")]
    lines = subprocess.run(program, env=environment, stdout=subprocess.PIPE, text=True, check=True, cwd=checkout).stdout
    return [*lines.splitlines(), *page_lines(checkout / "docs" / "reference")]


def page_lines(folder: Path) -> Iterator[str]:
    """Yield the names that the pages of a folder mention."""
    for name in sorted({name for path in folder.glob("*.rst") for name in NAME_IN_PAGE.findall(path.read_text())}):
        yield f"page {name}"


def build(revision: str, folder: Path) -> None:
    """Build a revision in a folder."""
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", revision], stdout=subprocess.PIPE)
    if packed.returncode:
        raise SystemExit(f"git archive {revision} failed: name a revision or the folder of a built checkout")
    subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
    subprocess.run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=folder, check=True)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.architecture.api_diff", description=__doc__)
    parser.add_argument("revision", help="a revision, or the folder of a built checkout")
    revision = parser.parse_args().revision
    with tempfile.TemporaryDirectory() as folder:
        other = Path(revision).resolve() if Path(revision).is_dir() else Path(folder)
        if other == Path(folder):
            build(revision, other)
        found = differences(described(other), described(ROOT))
    for each in found:
        kind = "changed" if each.before and each.after else "missing" if each.before else "new"
        print(f"{kind:8} {each.subject}")
        if kind == "changed":
            print(*(f"    before: {line}" for line in each.before), sep="\n")
            print(*(f"    after:  {line}" for line in each.after), sep="\n")
    return 1 if any(each.before for each in found) else 0


if __name__ == "__main__":
    sys.exit(main())
