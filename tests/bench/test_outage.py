# SPDX-License-Identifier: Apache-2.0
"""The parts of the question ``outage`` count correctly, and a round loses nothing through an arena."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from bench.__main__ import parse
from bench.harness import form
from bench.harness.question import UnavailableError
from bench.parts import outage
from bench.parts.host_clients import RefusingClient
from bench.parts.host_workers import value_of
from bench.questions.outage import OURS, QUESTION

COUNT = 4


def value(number: int) -> bytes:
    return value_of(outage.JOB, 0, number, outage.VALUE_SIZE)


def test_lost_and_doubled_records_are_counted_by_their_numbers() -> None:
    warm = value_of(0, 0, 0)
    assert outage.fate([warm, *map(value, range(COUNT))], COUNT) == (0, 0)
    assert outage.fate([warm, warm, value(0), value(2), value(2), value(2)], COUNT) == (2, 2)


class PlantedBroker:
    """Has one record of a topic more at each request, and at most those of `numbers`."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers
        self.shown = -1

    def log_size(self, _topic: str) -> int:
        self.shown = min(self.shown + 1, len(self.numbers))
        return self.shown

    def values(self, _topic: str) -> Iterator[bytes]:
        return map(value, self.numbers[: self.shown])


def drained(numbers: Sequence[int]) -> outage.Drain:
    drain = outage.Drain(PlantedBroker(numbers), "topic", COUNT)  # type: ignore[arg-type]
    drain.wait()
    return drain


def test_a_drain_ends_with_the_last_record_although_others_are_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "POLL_S", 0.001)
    monkeypatch.setattr(outage, "REST_S", 0.01)
    drain = drained([0, 1, 2, 3])
    assert (drain.lost, drain.doubled) == (0, 0)
    assert drain.drain_s > 0
    late = drained([0, 0, 1, 2, 3])
    assert (late.lost, late.doubled) == (0, 1)


def test_records_that_do_not_arrive_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "POLL_S", 0.001)
    monkeypatch.setattr(outage, "REST_S", 0.01)
    monkeypatch.setattr(outage, "STALL_S", 0.1)
    drain = drained([0, 2])
    assert (drain.lost, drain.doubled) == (2, 0)


def test_the_files_of_a_queue_are_counted_and_read(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    for name in ("a", "below/b"):
        (tmp_path / name).write_bytes(os.urandom(3 << 20))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        assert [path.name for path in outage.files_of(tmp_path)] == ["a", "b"]
        stored, seconds = outage._cold(tmp_path)
    assert stored == 6 << 20
    assert seconds > 0


def test_the_peak_of_memory_remains_after_the_memory_was_freed() -> None:
    size = 100 << 20
    code = f"bytes(bytearray({size})); print(flush=True); input()"
    command = [sys.executable, "-S", "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "\n"
        assert psutil.Process(child.pid).memory_info().rss < size <= outage.peak_size(child.pid)
        child.communicate("\n")


def test_a_queue_in_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/dev/shm")
    with pytest.raises(UnavailableError, match="set TMPDIR to a folder on a disk"):
        outage.check_disk(1)


def test_a_size_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UnavailableError, match=r"GB of disk are needed, .* are free: --megabytes N"):
        outage.check_disk(1 << 60)


def test_a_queue_in_memory_refuses_what_does_not_fit() -> None:
    options = {"bootstrap.servers": "127.0.0.1:1", "queue.buffering.max.messages": 2, "log_level": 0}
    client = RefusingClient(None, "topic", options)
    for number in range(COUNT):
        client.send(number, b"key", value(number))
    assert len(client._producer) == 2


def test_the_size_is_that_of_the_form_or_the_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(form.VARIABLE, raising=False)
    monkeypatch.delenv(form.SIZE_VARIABLE, raising=False)
    assert form.data_size(20, 2) == 20
    monkeypatch.setenv(form.VARIABLE, "1")
    assert form.data_size(20, 2) == 2
    monkeypatch.setenv(form.SIZE_VARIABLE, str(parse(["outage", "--megabytes", "7"]).megabytes))
    assert form.data_size(20, 2) == 7_000_000


def test_every_goal_names_a_contender() -> None:
    names = {contender.name for contender in QUESTION.contenders()}
    assert {goal.contender for goal in QUESTION.goals} <= names
    assert QUESTION.peer in names


@pytest.mark.kafka
@pytest.mark.parametrize("name", [OURS, "confluent-kafka, in memory"])
def test_a_round_loses_and_doubles_nothing(name: str) -> None:
    pytest.importorskip("confluent_kafka")
    measured = outage.run(outage.WAYS[name], 40_000_000)
    assert (measured["lost"], measured["doubled"]) == (0, 0)
    assert measured["drain_bytes_per_s"] > 0
    if name == OURS:
        assert measured["stored_bytes"] > 10_000_000, "the overflow has what the arena does not take"


def test_a_broker_that_discards_gets_everything() -> None:
    measured = outage.run_discarding(40_000_000)
    assert measured["stored_bytes"] > 10_000_000
    assert measured["of_read"] > 0
