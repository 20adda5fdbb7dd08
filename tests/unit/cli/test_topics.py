# SPDX-License-Identifier: Apache-2.0
"""``shmaccum topics`` creates, shows, extends and deletes topics while no process writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.log_server import served
from tests.support.segment_log import TOPIC, make_batches, open_log
from tests.unit.cli.conftest import Shell


def test_a_topic_is_made_described_grown_and_deleted(shell: Shell, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    assert shell("topics", "create", log, "a", "-n", "2", "--set", "retention.ms=1h").stdout == "a has 2 partitions\n"
    assert shell("topics", "partitions", log, "a", "-n", "3").stdout == "a has 3 partitions\n"
    (facts,) = shell.json("topics", "list", log)
    assert facts == shell.json("topics", "describe", log, "a")
    assert facts["settings"] == {"retention.ms": "3600000"}
    assert [part["partition"] for part in facts["partitions"]] == [0, 1, 2]
    shown = shell("topics", "describe", log, "a").stdout
    assert shown.startswith(f"a: id {facts['id']}, 3 partitions\nretention.ms=3600000\n")
    assert [line.split()[0] for line in shown.splitlines()[-3:]] == ["0", "1", "2"]
    assert shell("topics", "delete", log, "a").stdout == "a was deleted with 3 partitions\n"
    assert shell.json("topics", "list", log) == []


def test_records_bytes_and_offsets_are_counted(shell: Shell, tmp_path: Path) -> None:
    with open_log(tmp_path) as directory:
        directory.partition(TOPIC, 0).append(make_batches(4))
        directory.delete_records(TOPIC, 0, 5)
    (facts,) = shell.json("topics", "list", str(tmp_path))
    (part,) = facts["partitions"]
    numbers = part["log_start_offset"], part["log_end_offset"], part["record_count"], part["leader_epoch"]
    assert (facts["record_count"], *numbers) == (7, 5, 12, 7, 0)
    assert TOPIC in shell("topics", "list", str(tmp_path)).stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["create", "LOG", TOPIC, "-n", "1"], "has the topic flights"),
        (["create", "LOG", "a", "-n", "1", "--set", "retention.ms=soon"], "soon"),
        (["create", "LOG", "a", "-n", "1", "--set", "flush.ms=1"], "no setting flush.ms"),
        (["create", "LOG", "a/b", "-n", "1"], "cannot be a topic"),
        (["partitions", "LOG", TOPIC, "-n", "1"], "name a larger number"),
        (["partitions", "LOG", "b", "-n", "2"], "has no topic 'b'"),
        (["delete", "LOG", "b"], "has no topic 'b'"),
        (["describe", "LOG", "b"], "has no topic 'b'"),
    ],
)
def test_what_cannot_be_is_a_sentence(shell: Shell, tmp_path: Path, arguments: list[str], sentence: str) -> None:
    open_log(tmp_path).close()
    arguments = [str(tmp_path) if argument == "LOG" else argument for argument in arguments]
    assert sentence in shell("topics", *arguments, code=2).stderr


def test_a_log_that_a_server_writes_is_changed_through_that_server(shell: Shell, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    with served(tmp_path / "log"):
        shell("topics", "create", log, "a", "-n", "2", "--set", "retention.ms=1h")
        shell("topics", "partitions", log, "a", "-n", "3")
        (facts,) = shell.json("topics", "list", log)
        assert (facts["settings"], len(facts["partitions"])) == ({"retention.ms": "3600000"}, 3)
        assert "the topic a already exists" in shell("topics", "create", log, "a", "-n", "1", code=2).stderr
        assert shell("topics", "delete", log, "a").stdout == "a was deleted with 3 partitions\n"
        assert shell.json("topics", "list", log) == []
    shell("topics", "create", log, "a", "-n", "1")


def test_a_log_that_is_written_is_looked_at_and_not_changed(shell: Shell, tmp_path: Path) -> None:
    with open_log(tmp_path):
        assert [facts["topic"] for facts in shell.json("topics", "list", str(tmp_path))] == [TOPIC]
        assert "is written by another process" in shell("topics", "delete", str(tmp_path), TOPIC, code=2).stderr
