# SPDX-License-Identifier: Apache-2.0
"""``shmaccum ship``."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

import pytest

from shmaccum.log.files import LogReader
from shmaccum.log.files.shipping_positions import read_shipped
from shmaccum.sender.shipping import Shipper
from tests.support.segment_log import TOPIC, log_files, make_batches, offsets, open_log
from tests.unit.cli.conftest import Shell


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with 20 batches of 3 records."""
    with open_log(tmp_path / "log") as directory:
        offsets(directory.partition(TOPIC, 0).append(make_batches(20)))
    return tmp_path / "log"


def test_a_log_is_shipped_once_and_the_progress_reported(shell: Shell, log: Path, tmp_path: Path) -> None:
    progress = shell.json("ship", str(log), "--to", f"log:{tmp_path / 'copy'}", "--once", "--quiet")
    assert (progress["record_count"], progress["left_record_count"], progress["refusals"]) == (60, 0, {})
    assert len(list(LogReader(tmp_path / "copy").partition(TOPIC, 0).records())) == 60


def test_topics_and_names_are_chosen(shell: Shell, log: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    flags = ["--topics", TOPIC, "--rename", f"{TOPIC}=other", "--rate-limit", "10MiB", "-X", "partitions=2"]
    shell("ship", str(log), "--to", f"log:{copy}", "--once", *flags)
    assert LogReader(copy).topics() == ["other"]


def test_the_start_is_reported_for_all_or_for_a_partition(shell: Shell, log: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shell("ship", str(log), "--to", f"log:{copy}", "--once", "-q", "--from", "end", "--from", f"{TOPIC}:0=-6")
    assert len(list(LogReader(copy).partition(TOPIC, 0).records())) == 6


def test_a_log_that_is_damaged_or_refused_ends_with_1(shell: Shell, log: Path, tmp_path: Path) -> None:
    (file,) = log_files(log)
    content = bytearray(file.read_bytes())
    content[1000] ^= 0xFF
    file.write_bytes(content)
    progress = shell.json("ship", str(log), "--to", f"log:{tmp_path / 'copy'}", "--once", "--quiet", code=1)
    assert (progress["damage_count"], progress["record_count"]) == (1, 57)


def test_positions_are_forgotten_when_asked(shell: Shell, log: Path, tmp_path: Path) -> None:
    shell("ship", str(log), "--to", f"log:{tmp_path / 'copy'}", "--once", "--quiet")
    assert "were forgotten" in shell("ship", str(log), "--forget").output
    assert read_shipped(str(log)).shipped_to is None
    assert "has no positions" in shell("ship", str(log), "--forget").output


def test_a_signal_ends_a_shipper_that_follows(
    shell: Shell, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Shipper, "run_once", lambda _self: os.kill(os.getpid(), signal.SIGTERM))
    with caplog.at_level(logging.INFO):
        shell("ship", str(log), "--to", f"log:{tmp_path / 'copy'}")
    assert "the shipper was asked to stop, and 0 partitions have batches in flight" in caplog.text


def test_a_signal_ends_a_shipper_that_waits_for_its_sink(
    shell: Shell, log: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Shipper, "_poll", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    with caplog.at_level(logging.INFO):
        shell("ship", str(log), "--to", "kafka:127.0.0.1:9")
    assert "the shipper was asked to stop before kafka:127.0.0.1:9 answered: it has sent nothing" in caplog.text


def test_a_signal_ends_a_server(
    shell: Shell, log: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("kafka")
    from shmaccum.log.server import LogServer

    monkeypatch.setattr(LogServer, "run", lambda _self: os.kill(os.getpid(), signal.SIGTERM))
    with caplog.at_level(logging.INFO):
        shell("serve", str(log), "--listen", "127.0.0.1:0")
    assert "stopping: closing connections and the log" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "--to"),
        (["--to", "nowhere:x"], "kind of sink"),
        (["--to", "kafka:localhost:9092", "--rename", "a"], "--rename flights="),
        (["--to", "kafka:localhost:9092", "-X", "linger_ms=5"], "linger_ms"),
        (["--to", "kafka:localhost:9092", "-X", "sasl_plain_password=secret"], "env:NAME"),
        (["--to", "kafka:localhost:9092", "--progress", "often"], "duration"),
        (["--to", "kafka:localhost:9092", "--from", "flights=first"], "s@MS"),
    ],
)
def test_a_wrong_flag_is_reported(shell: Shell, log: Path, arguments: list[str], sentence: str) -> None:
    assert sentence in shell("ship", str(log), *arguments, code=2).output


def test_a_directory_that_is_no_log_is_reported(shell: Shell, tmp_path: Path) -> None:
    assert "is not a directory" in shell("ship", str(tmp_path / "none"), "--to", "kafka:localhost:9092", code=2).output
