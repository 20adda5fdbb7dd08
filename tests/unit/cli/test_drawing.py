# SPDX-License-Identifier: Apache-2.0
"""Texts and tables fit into the terminal, lose no wrapped word, and move no cursor."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmaccum.cli.drawing import (
    GAP_WIDTH,
    PROBLEM,
    STYLES,
    Column,
    Labelled,
    Screen,
    Stack,
    Table,
    Text,
    View,
    cell_count,
    drawn,
    narrowed,
    numbers,
    words,
)
from tests.unit.cli.conftest import Shell

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
ESCAPE = "\x1b["


def table_of(rows: list[list[str]], *, is_folded: bool = True) -> Table:
    table = Table(*words("name"), *numbers("count"), Column("what", is_folded=is_folded), title="title")
    for row in rows:
        table.add_row(*row)
    return table


# --- widths


@given(ANY_TEXT, st.integers(1, 50))
def test_no_line_of_a_text_is_wider_than_the_screen(text: str, width: int) -> None:
    for view in (Text(text), Text(text, is_cut=True)):
        assert all(cell_count(line) <= width for line in drawn(view, Screen(width)))


@given(st.lists(st.lists(ANY_TEXT, min_size=3, max_size=3), max_size=4), st.integers(1, 80), st.booleans())
def test_no_line_of_a_table_is_wider_than_the_screen(rows: list[list[str]], width: int, is_folded: bool) -> None:
    lines = drawn(table_of(rows, is_folded=is_folded), Screen(width))
    assert max(map(cell_count, lines)) <= width


@given(st.lists(st.from_regex(r"[a-z]{1,12}", fullmatch=True), max_size=30), st.integers(12, 60))
def test_a_folded_text_keeps_every_word(text: list[str], width: int) -> None:
    assert " ".join(drawn(Text(" ".join(text)), Screen(width))).split() == text


@given(st.lists(st.integers(0, 30), min_size=1, max_size=5), st.integers(-5, 200))
def test_cells_are_taken_from_the_widest_column(widths: list[int], surplus: int) -> None:
    left = narrowed(widths, surplus, [1] * len(widths))
    assert sum(widths) - sum(left) == min(max(surplus, 0), sum(max(width - 1, 0) for width in widths))
    assert all(after >= max(left) - 1 for before, after in zip(widths, left, strict=True) if after < before)


def test_an_ideograph_takes_two_cells_and_an_accent_none() -> None:
    assert [cell_count(text) for text in ("abc", "日本", "e\u0301", "█░…µ", "")] == [3, 4, 1, 4, 0]
    table = Table(*words("a", "b"))
    table.add_row("日本", "x")
    table.add_row("abcd", "y")
    assert drawn(table, Screen(20))[1:] == ["日本  x", "abcd  y"]


# --- forms


def test_a_table_that_is_too_wide_folds_before_it_cuts() -> None:
    table = table_of([["partition-0", "1,000", "the log is full: no space is left"]])
    assert drawn(table, Screen(39)) == [
        "title",
        "name         count  what",
        "partition-0  1,000  the log is full: no",
        "                    space is left",
    ]
    assert drawn(table, Screen(24))[2:] == [
        "partit…  1,000  the log",
        "                is full:",
        "                no space",
        "                is left",
    ]


def test_a_cut_text_ends_in_an_ellipsis() -> None:
    assert drawn(Text("abcdef", is_cut=True), Screen(4)) == ["abc…"]
    assert drawn(Text("abcdef", is_cut=True), Screen(4, has_unicode=False)) == ["abc."]
    assert drawn(Text("abcdef", is_cut=True), Screen(6)) == ["abcdef"]
    assert drawn(Text("abcdef", is_cut=True), Screen(1)) == ["…"]


def test_labels_stand_beside_the_first_line_of_their_views() -> None:
    view = Labelled(5, [("in", "one two three"), ("", Stack("a", "b"))])
    assert drawn(view, Screen(14)) == ["in    one two", "      three", "      a", "      b"]


def test_cells_that_a_row_lacks_are_empty_and_no_line_ends_in_blanks() -> None:
    table = Table(*words("name"), *numbers("count"), *words("state", "why"))
    table.add_row("a", "1", "running")
    table.add_row("and 3 more")
    assert drawn(table, Screen(80)) == ["name        count  state    why", "a               1  running", "and 3 more"]
    assert len("and 3 more") + GAP_WIDTH == "name        count".index("count")


# --- bytes of other processes


@pytest.mark.parametrize("view", [Text("a\x1b[2J\rb"), Text("a\x1b[2J\rb", is_cut=True)])
def test_a_letter_that_would_move_the_cursor_is_shown_as_an_escape(view: View) -> None:
    assert drawn(view, Screen(40)) == ["a\\x1b[2J\\rb"]


def test_a_name_that_is_no_utf8_is_shown_as_escapes() -> None:
    (line,) = drawn(Text(os.fsdecode(b"x\xff")), Screen(40))
    assert line == "x\\udcff"


# --- colors


def test_styles_are_numbers_of_the_terminal() -> None:
    text = Text("a ", PROBLEM).append("b").append(" c", "cyan")
    assert drawn(text, Screen(40), has_color=True) == ["\x1b[1;31ma \x1b[0mb\x1b[36m c\x1b[0m"]
    assert drawn(text, Screen(40)) == ["a b c"]
    assert len(set(STYLES.values())) == len(STYLES)


@pytest.mark.parametrize(
    ("variables", "is_colored"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
)
def test_a_pipe_gets_colors_when_they_are_asked_for(filled: str, variables: dict[str, str], is_colored: bool) -> None:
    command = [sys.executable, "-m", "shmaccum", "stat", filled, "--once"]
    environment = {name: value for name, value in os.environ.items() if name not in {"FORCE_COLOR", "NO_COLOR"}}
    result = subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=True)
    assert (ESCAPE in result.stdout) == is_colored


def test_a_narrow_terminal_is_kept_to(shell: Shell, filled: str) -> None:
    for columns in (20, 40):
        output = shell("inspect", filled, "--slots", columns=columns).stdout
        assert max(map(len, output.splitlines())) <= columns
