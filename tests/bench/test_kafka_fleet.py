# SPDX-License-Identifier: Apache-2.0
"""The work of a fleet's workers, without a broker."""

from __future__ import annotations

from multiprocessing import Pipe

import pytest

from bench.harness.form import VARIABLE, job_seconds
from bench.parts.kafka_fleet import KEYS, Job, serve_jobs
from tests.support.processes import WATCHDOG_S


def served(job: Job) -> tuple[list[bytes], int]:
    """The keys that a worker sent for a job, and the number that it reported."""
    mine, theirs = Pipe()
    sent: list[bytes] = []
    flushes: list[int] = []
    mine.send(job)
    mine.send(None)
    serve_jobs(theirs, sent.append, lambda: flushes.append(len(sent)))
    assert mine.poll(WATCHDOG_S)
    assert mine.recv() == "warm"
    count, cpu_s = mine.recv()
    assert cpu_s >= 0
    assert flushes == [1, len(sent)], "the last record is flushed, too"
    return sent[1:], count


@pytest.mark.parametrize("rate", [0, 1_000_000])
def test_a_worker_sends_the_requested_number_of_records(rate: int) -> None:
    sent, count = served(Job(300, rate))
    assert count == len(sent) == 300
    assert sent[:256] == KEYS


def test_a_worker_with_a_time_limit_counts_its_records() -> None:
    sent, count = served(Job(seconds=0.01))
    assert count == len(sent) >= len(KEYS)
    assert len(sent) % len(KEYS) == 0, "each key as often as the others"


def test_a_dry_job_counts_records_and_sends_none() -> None:
    assert served(Job(300, 1_000_000, is_dry=True)) == ([], 300)


def test_jobs_are_short_where_they_are_asked_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert job_seconds(5) == 5
    monkeypatch.setenv(VARIABLE, "1")
    assert job_seconds(5) == 0.5
