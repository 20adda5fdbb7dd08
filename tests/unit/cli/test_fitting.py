# SPDX-License-Identifier: Apache-2.0
"""A field that fits into the terminal is shown. A field that does not is omitted completely."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shmaccum.cli.drawing import Screen, Stack, Text, View, drawn
from shmaccum.cli.fitting import GAP, FirstThatFits, FittedToScreen, Pieces, reduce_largest


def lines_of(view: View, width: int, height: int | None = None) -> list[str]:
    """The view on a screen of this many rows, or on an endless page."""
    return drawn(view, Screen(width, height))


WORDS = st.lists(st.from_regex(r"[a-z]{1,6}( [a-z]{1,6}){0,2}", fullmatch=True), min_size=1, max_size=8)


@given(WORDS, st.integers(20, 60))
def test_a_line_ends_between_two_pieces(words: list[str], width: int) -> None:
    lines = lines_of(Pieces(*words), width)
    assert [piece for line in lines for piece in line.split(GAP)] == words
    assert max(map(len, lines)) <= width
    nexts = [line.split(GAP)[0] for line in lines[1:]]
    assert all(len(line + GAP + piece) > width for line, piece in zip(lines, nexts, strict=False))


def test_a_piece_that_is_wider_than_the_line_is_reported_whole() -> None:
    assert lines_of(Pieces("a", "b" * 25, Text("c")), 10) == ["a", "b" * 10, "b" * 10, "b" * 5, "c"]


def test_the_widest_form_that_fits_is_taken() -> None:
    forms = [lambda size=size: Text("x" * size) for size in (30, 20, 10)]
    assert [len(lines_of(FirstThatFits(*forms), width)[0]) for width in (30, 29, 15)] == [30, 20, 10]
    assert len(lines_of(FirstThatFits(*forms), 9)) == 2


def view_of(counts: tuple[int, ...]) -> FittedToScreen:
    """Three header lines, and for each shown list a title, its rows and the count of omitted rows."""

    def make_view(shown: object) -> View:
        parts = ["head"] * 3
        assert isinstance(shown, (list, tuple))
        for index, (count, left) in enumerate(zip(counts, shown, strict=True)):
            if left:
                parts += ["title", *[f"row {index}"] * left, *(["more"] if left < count else [])]
        return Stack(*parts)

    return FittedToScreen(make_view, counts)


@given(st.tuples(*[st.integers(0, 12)] * 3), st.integers(6, 40))
def test_a_screen_shows_as_much_of_each_list_as_there_is_room_for(counts: tuple[int, ...], height: int) -> None:
    whole = lines_of(view_of(counts), 80)
    assert [whole.count(f"row {index}") for index in range(3)] == list(counts)
    lines = lines_of(view_of(counts), 80, height)
    assert len(lines) <= height
    if len(whole) <= height:
        assert lines == whole
    elif height >= 3 + 3 * sum(count > 0 for count in counts):
        assert all(f"row {index}" in lines for index in range(3) if counts[index])
    elif counts[0]:
        assert "row 0" in lines


@given(st.lists(st.integers(0, 20), min_size=1, max_size=4), st.integers(0, 60))
def test_rows_are_taken_from_the_longest_lists_and_one_of_each_stays(counts: list[int], surplus: int) -> None:
    left = reduce_largest(counts, surplus)
    assert sum(counts) - sum(left) == min(surplus, sum(max(count - 1, 0) for count in counts))
    cut = [after for before, after in zip(counts, left, strict=True) if after < before]
    assert all(after >= max(left) - 1 for after in cut)
