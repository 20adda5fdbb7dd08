# SPDX-License-Identifier: Apache-2.0
"""``shmaccum produce``: a separate process that reads lines, while this one is the sender."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import pytest

from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.cli.produce import Tally
from shmaccum.producer.deliveries import DeliveryCounts
from tests.support.accumulator import Accumulator
from tests.support.arenas import deliver_all, drain
from tests.support.processes import wait_until

TOPIC = "lines"
Header = tuple[str, bytes | None]


class Received(NamedTuple):
    """A record as it was delivered."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]


def feed(process: subprocess.Popen[bytes], text: bytes) -> None:
    """Write to a command that may exit before the end."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(text)
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


class Kitchen:
    """A sender, and the commands that produce for it."""

    def __init__(self, sender: Accumulator) -> None:
        self.sender = sender
        self.arena_name = sender.arena.name
        self.received: list[Received] = []
        self.result = BatchResult.SUCCEEDED

    def start(self, *arguments: str, standard_input: IO[bytes] | int = subprocess.PIPE) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "shmaccum", "produce", self.arena_name, "-t", TOPIC, *arguments]
        return subprocess.Popen(
            command, stdin=standard_input, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )

    def deliver(self) -> None:
        """Deliver all ready records."""
        for batch in drain(self.sender):
            self.received += [Received(batch.partition, record[2], record[3], record[4]) for record in batch.decode()]
            self.sender.complete(batch, self.result)
        self.sender.maintain()

    def finish(self, process: subprocess.Popen[bytes], *, code: int = 0) -> tuple[str, str]:
        """Deliver until the command ends. Return its outputs."""

        def is_over() -> bool:
            self.deliver()
            return process.poll() is not None

        wait_until(is_over, "the command ends")
        with process:
            assert process.stdout is not None
            assert process.stderr is not None
            output, errors = process.stdout.read().decode(), process.stderr.read().decode()
        assert process.returncode == code, errors
        assert "Traceback" not in errors
        return output, errors

    def produce(self, text: bytes, *arguments: str, code: int = 0) -> tuple[str, str]:
        """Run the command once with this input."""
        process = self.start(*arguments)
        writer = threading.Thread(target=feed, args=(process, text))
        writer.start()
        outputs = self.finish(process, code=code)
        writer.join()
        return outputs

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.received]


@pytest.fixture
def kitchen(arena: Arena, sender: Accumulator) -> Iterator[Kitchen]:
    arena.native.set_topic_partition_count(TOPIC, 1)
    kitchen = Kitchen(sender)
    yield kitchen
    kitchen.deliver()


def test_results_that_were_overwritten_are_unknown_and_not_pending() -> None:
    class Overwritten(list[int]):
        is_done, exception = True, None
        counts = DeliveryCounts(pending=0, succeeded=1, failed=0, lost=2)

    tally = Tally()
    deliveries: Any = Overwritten(range(3))
    tally.add(deliveries, 30)
    assert tally.pending == 0
    assert str(tally).endswith("1 delivered, 2 with an unknown result, because it was overwritten before it was read")


def test_lines_become_records(kitchen: Kitchen) -> None:
    assert kitchen.produce(b"one\ntwo\n\nlast") == ("", "")
    assert kitchen.received == [Received(0, None, value, []) for value in (b"one", b"two", b"", b"last")]


def test_keys_headers_and_nulls(kitchen: Kitchen) -> None:
    kitchen.produce(
        b"k1:v1\nk2:\nplain\n", "-K", ":", "-k", "fix", "-Z", "-H", "source=web", "-H", "empty=", "-H", "null"
    )
    headers: list[Header] = [("source", b"web"), ("empty", b""), ("null", None)]
    assert kitchen.received == [
        Received(0, b"k1", b"v1", headers),
        Received(0, b"k2", None, headers),
        Received(0, b"fix", b"plain", headers),
    ]


def test_delimiters_and_a_count(kitchen: Kitchen) -> None:
    kitchen.produce(b"a\x1eb\nb\x1ec\x1ed", "-D", r"\x1e", "-c", "3")
    assert kitchen.values() == [b"a", b"b\nb", b"c"]


def test_a_partition_may_be_named(kitchen: Kitchen, arena: Arena) -> None:
    arena.native.set_topic_partition_count(TOPIC, 4)
    kitchen.produce(b"a\nb\n", "-p", "3")
    assert [record.partition for record in kitchen.received] == [3, 3]


def test_files_are_read_in_order_and_a_dash_is_standard_input(kitchen: Kitchen, tmp_path: Path) -> None:
    (tmp_path / "first").write_bytes(b"1\n2")
    (tmp_path / "last").write_bytes(b"4\n")
    kitchen.produce(b"3\n", str(tmp_path / "first"), "-", str(tmp_path / "last"))
    assert kitchen.values() == [b"1", b"2", b"3", b"4"]


def test_many_lines_arrive_in_order(kitchen: Kitchen) -> None:
    lines = [b"%d" % number for number in range(50_000)]
    kitchen.produce(b"\n".join(lines) + b"\n")
    assert kitchen.values() == lines


def test_what_was_sent_is_passed_on_as_tee_does(kitchen: Kitchen) -> None:
    output, _ = kitchen.produce(b"one\ntwo", "-T")
    assert output == "one\ntwo\n"


def test_a_line_is_sent_while_the_input_stays_open(kitchen: Kitchen) -> None:
    process = kitchen.start()
    assert process.stdin is not None
    process.stdin.write(b"now\nla")
    process.stdin.flush()

    def has_come() -> bool:
        kitchen.deliver()
        return kitchen.values() == [b"now"]

    wait_until(has_come, "the first line is delivered")
    process.stdin.write(b"ter\n")
    process.stdin.close()
    kitchen.finish(process)
    assert kitchen.values() == [b"now", b"later"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_delivers_what_it_read(kitchen: Kitchen, number: signal.Signals) -> None:
    process = kitchen.start()
    assert process.stdin is not None
    process.stdin.write(b"one\ntwo\n")
    process.stdin.flush()

    def has_come() -> bool:
        kitchen.deliver()
        return len(kitchen.received) == 2

    wait_until(has_come, "both lines are delivered")
    process.send_signal(number)
    _, errors = kitchen.finish(process, code=130)
    assert "interrupted" in errors


def test_an_endless_line_is_given_up_with_what_came_before_it_delivered(kitchen: Kitchen) -> None:
    _, errors = kitchen.produce(b"fine\n" + b"x" * (3 << 20), code=1)
    assert "stdin: record 2 has no delimiter within 1 MiB (max_request_size of the arena)" in errors
    assert kitchen.values() == [b"fine"]


def test_the_exit_code_reports_that_records_failed(kitchen: Kitchen) -> None:
    kitchen.result = BatchResult.FAILED
    _, errors = kitchen.produce(b"one\ntwo\n", code=1)
    assert "2 records sent (6 B), 0 delivered, 2 failed" in errors


def test_the_exit_code_reports_that_records_are_still_in_the_arena(kitchen: Kitchen) -> None:
    process = kitchen.start("--timeout", "50ms", standard_input=subprocess.DEVNULL)
    kitchen.finish(process)
    source, target = os.pipe()
    os.write(target, b"one\n")
    os.close(target)
    process = kitchen.start("--timeout", "50ms", standard_input=source)
    os.close(source)
    assert process.wait(60) == 1
    with process:
        assert process.stderr is not None
        assert b"1 still in the arena: its sender will deliver them" in process.stderr.read()
    kitchen.deliver()
    assert kitchen.values() == [b"one"]


def test_what_was_sent_before_memory_ran_out_is_reported(kitchen: Kitchen) -> None:
    process = kitchen.start("--timeout", "50ms", "-X", "max.block.ms=50ms")
    feed(process, b"line of text\n" * 20_000)
    assert process.wait(60) == 1
    with process:
        assert process.stderr is not None
        errors = process.stderr.read().decode()
    assert "Failed to allocate" in errors
    assert f"{len(deliver_all(kitchen.sender)):,} still in the arena: its sender will deliver them" in errors


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-X", "linger.mss=5"], "linger.mss is not an option of the producer: did you mean linger_ms?"),
        (["-X", "acks=1"], "acks is an option of the sender"),
        (["-X", "linger.ms"], "'linger.ms' is not NAME=VALUE: write it like -X linger.ms=5"),
        (["-X", "linger.ms=1", "-X", "linger.ms=2"], "linger.ms is given twice"),
        (["-H", "=x"], "'=x' is not NAME=VALUE: write it like source=web"),
        (["-D", ""], "a delimiter cannot be empty"),
        (["/"], "/: Is a directory"),
        (["no-such-file"], "no-such-file: No such file or directory"),
        (["-p", "9", "-X", "max_block_ms=300"], "did not increase within 300 ms (max_block_ms)"),
        (["--timeout", "soon"], "'soon' is not a duration"),
    ],
)
def test_what_cannot_be_done_is_a_sentence_and_sends_nothing(
    kitchen: Kitchen, arguments: Sequence[str], sentence: str
) -> None:
    _, errors = kitchen.produce(b"one\n", *arguments, code=2)
    assert sentence in errors
    assert kitchen.received == []
