# SPDX-License-Identifier: Apache-2.0
"""Works that start together take as long as they report, even with several per core."""

from __future__ import annotations

import time

from bench.questions.contention_send import together

PROCESS_COUNT = 16
WORK_S = 0.001


def prepare(number: int) -> int:
    return number


def work(prepared: int, number: int) -> tuple[int, float]:
    started_s = time.perf_counter()
    while time.perf_counter() - started_s < WORK_S:
        pass
    return prepared + number, time.perf_counter() - started_s


def test_no_work_is_longer_than_all_of_them_together() -> None:
    answers, seconds = together(prepare, work, [(number,) for number in range(PROCESS_COUNT)])
    assert [answer for answer, _ in answers] == [2 * number for number in range(PROCESS_COUNT)]
    assert seconds >= max(taken_s for _, taken_s in answers) >= WORK_S
