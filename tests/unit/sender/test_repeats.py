# SPDX-License-Identifier: Apache-2.0
"""The sender's log lines about a continuing trouble."""

from __future__ import annotations

from shmaccum.sender.host import REPEAT_NS, SENTENCES_MAX, Repeats


def test_a_sentence_is_reported_at_once_and_then_once_a_while_with_how_often_it_came() -> None:
    repeats = Repeats()
    assert repeats.count_to_report("the disk is full", 5) == 1
    assert [repeats.count_to_report("the disk is full", 5 + now) for now in (0, 1, REPEAT_NS - 1)] == [0, 0, 0]
    assert repeats.count_to_report("no connection", 6) == 1
    assert repeats.count_to_report("the disk is full", 5 + REPEAT_NS) == 4
    assert repeats.count_to_report("the disk is full", 6 + REPEAT_NS) == 0


def test_sentences_that_never_come_twice_take_no_memory() -> None:
    repeats = Repeats()
    for number in range(10 * SENTENCES_MAX):
        assert repeats.count_to_report(f"trouble {number}", number) == 1
        assert len(repeats._reported) <= SENTENCES_MAX
