# SPDX-License-Identifier: Apache-2.0
"""A loop executes the calls of other threads, and exceptions are raised in the calling thread."""

from __future__ import annotations

import threading

import pytest

from shmaccum.common.pending_calls import PendingCalls


def test_a_loop_answers_and_reports_its_errors() -> None:
    is_asked = threading.Event()
    questions: PendingCalls[int] = PendingCalls("the loop", is_asked.set)
    answers = iter((7, KeyError("gone")))

    def make() -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def loop() -> None:
        for _ in range(2):
            assert is_asked.wait(10)
            is_asked.clear()
            questions.answer(make)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        assert questions.ask(10) == 7
        with pytest.raises(KeyError, match="gone"):
            questions.ask(10)
    finally:
        thread.join()


def test_a_blocked_loop_is_named() -> None:
    questions: PendingCalls[int] = PendingCalls("the loop", lambda: None)
    with pytest.raises(TimeoutError, match="the loop did not answer within 0 s"):
        questions.ask(0)
