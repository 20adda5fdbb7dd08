# SPDX-License-Identifier: Apache-2.0
"""Commit subjects fit into one line of every tool that lists them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

import pytest

from setup import ROOT

LAST_BEFORE_THE_RULE = "1eca25fdacc8fac919da7744ef1633c90109a9e5"

SUBJECT_LENGTH_MAX = 72


def too_long(commits: Iterable[str]) -> list[str]:
    """Return the lines, each a short hash and a subject, whose subject exceeds `SUBJECT_LENGTH_MAX` characters."""
    return [commit for commit in commits if len(commit.partition(" ")[2]) > SUBJECT_LENGTH_MAX]


def commits_since(revision: str) -> list[str]:
    """Return short hash and subject of each commit after `revision`. If the history is missing, skip the test."""
    command = ["git", "-C", str(ROOT), "log", "--no-merges", "--format=%h %s", f"{revision}..HEAD"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("the history of the project cannot be read: git is not installed")
    if listed.returncode != 0:
        pytest.skip(f"this folder has no history since {revision}: {listed.stderr.strip()}")
    return listed.stdout.splitlines()


def test_no_commit_has_a_long_subject() -> None:
    refused = too_long(commits_since(LAST_BEFORE_THE_RULE))
    assert not refused, f"subjects of more than {SUBJECT_LENGTH_MAX} characters:\n" + "\n".join(refused)


def test_a_subject_is_measured_without_its_commit() -> None:
    fits, is_too_long = "1234567 " + "x" * SUBJECT_LENGTH_MAX, "1234567 " + "x" * (SUBJECT_LENGTH_MAX + 1)
    assert too_long([fits, is_too_long]) == [is_too_long]


def test_a_folder_without_history_is_skipped_with_a_word() -> None:
    with pytest.raises(pytest.skip.Exception, match="this folder has no history since 0000000"):
        commits_since("0000000")
