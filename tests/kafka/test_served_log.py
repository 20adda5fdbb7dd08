# SPDX-License-Identifier: Apache-2.0
"""Kafka's programs, kcat and aiokafka produce to a served log and consume it, also in groups."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from shmaccum import Consumer
from tests.kafka.distribution import java_command, require, run_tool
from tests.support.log_server import PARTITION_COUNT, produce, served
from tests.support.processes import wait_until
from tests.support.segment_log import make_batch, open_log

pytestmark = pytest.mark.kafka

TOPIC = "flights"
TOOLS = "org.apache.kafka.tools"
GROUPS_TOOL = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
RECORD_COUNT = 300
SETTLE_S = 90.0
SESSION_MS = 6000


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """The address of a writable served log with a short session timeout."""
    with served(tmp_path / "log", group_consumer_session_timeout_ms=SESSION_MS) as address:
        yield address


def tool(address: str, main_class: str, *arguments: str, stdin: str = "") -> str:
    """Runs one of Kafka's programs on a served log and returns its standard output."""
    return run_tool(main_class, "--bootstrap-server", address, *arguments, stdin=stdin)


def rows(table: str) -> list[dict[str, str]]:
    """The rows of a table that a tool prints, by the names in its header."""
    lines = [line.split() for line in table.splitlines() if line.strip() and not line.startswith("Consumer group")]
    return [dict(zip(lines[0], line, strict=False)) for line in lines[1:]]


def test_java_s_tool_shows_the_members_of_a_local_group_with_their_lag(tmp_path: Path) -> None:
    require()
    with open_log(tmp_path / "log") as log:
        log.create_topic(TOPIC, 2)
        for partition in range(2):
            log.partition(TOPIC, partition).append([make_batch([b"0", b"1", b"2"])])
    options = {"group_id": "local", "group_instance_id": "one"}
    with (
        served(tmp_path / "log", is_writable=False) as address,
        Consumer(tmp_path / "log", TOPIC, **options) as consumer,
    ):
        consumer.poll()
        consumer.commit(dict.fromkeys(consumer.assignment(), 1))
        found = rows(tool(address, GROUPS_TOOL, "--describe", "--group", "local"))
    assert [(row["PARTITION"], row["LAG"], row["CONSUMER-ID"], row["HOST"]) for row in found] == [
        ("0", "2", "one", "/127.0.0.1"),
        ("1", "2", "one", "/127.0.0.1"),
    ]


def test_java_tools_make_a_topic_produce_consume_describe_and_reset(address: str) -> None:
    require()
    topics = f"{TOOLS}.TopicCommand"
    tool(address, topics, "--create", "--topic", TOPIC, "--partitions", "2", "--replication-factor", "1")
    values = [str(number) for number in range(RECORD_COUNT)]
    tool(address, f"{TOOLS}.ConsoleProducer", "--topic", TOPIC, stdin="\n".join(values))
    consumer = (f"{TOOLS}.consumer.ConsoleConsumer", "--topic", TOPIC, "--group", "g", "--max-messages", "300")
    assert sorted(tool(address, *consumer, "--from-beginning").split(), key=int) == values
    described = rows(tool(address, GROUPS_TOOL, "--describe", "--group", "g"))
    assert {row["LAG"] for row in described} == {"0"}
    assert sum(int(row["CURRENT-OFFSET"]) for row in described) == RECORD_COUNT
    reset = ("--reset-offsets", "--group", "g", "--topic", TOPIC, "--to-earliest", "--execute")
    assert {row["NEW-OFFSET"] for row in rows(tool(address, GROUPS_TOOL, *reset))} == {"0"}
    assert sorted(tool(address, *consumer).split(), key=int) == values
    ends = [line.split(":") for line in tool(address, f"{TOOLS}.GetOffsetShell", "--topic", TOPIC).split()]
    assert sum(int(end) for _, _, end in ends) == RECORD_COUNT
    tool(address, topics, "--alter", "--topic", TOPIC, "--partitions", "3")
    assert "PartitionCount: 3" in tool(address, topics, "--describe", "--topic", TOPIC)
    tool(address, GROUPS_TOOL, "--delete", "--group", "g")
    tool(address, topics, "--delete", "--topic", TOPIC)
    assert TOPIC not in tool(address, topics, "--list").split()


def test_javas_console_consumer_continues_in_a_group_whose_partitions_the_server_assigns(address: str) -> None:
    require()
    produce(address, range(RECORD_COUNT))
    consumer = (f"{TOOLS}.consumer.ConsoleConsumer", "--topic", TOPIC, "--group", "g", "--from-beginning")
    half = ("--max-messages", str(RECORD_COUNT // 2), "--consumer-property", "group.protocol=consumer")
    values = [*tool(address, *consumer, *half).split(), *tool(address, *consumer, *half).split()]
    assert sorted(map(int, values)) == list(range(RECORD_COUNT))
    assert {row["LAG"] for row in rows(tool(address, GROUPS_TOOL, "--describe", "--group", "g"))} == {"0"}


def test_javas_console_consumer_subscribes_to_a_pattern_that_the_server_resolves(address: str) -> None:
    require()
    produce(address, range(RECORD_COUNT))
    produce(address, range(RECORD_COUNT, RECORD_COUNT + 3), topic="flight-times")
    produce(address, range(9), topic="trains")
    pattern = ("--include", "fl.*s", "--group", "g", "--from-beginning", "--max-messages", str(RECORD_COUNT + 3))
    consumer = (f"{TOOLS}.consumer.ConsoleConsumer", *pattern, "--consumer-property", "group.protocol=consumer")
    assert sorted(map(int, tool(address, *consumer).split())) == list(range(RECORD_COUNT + 3))


def events(output: str) -> list[dict[str, object]]:
    """The lines of a verifiable program, each a JSON object."""
    return [json.loads(line) for line in output.splitlines()]


def test_javas_verifiable_producer_and_consumer_agree(address: str) -> None:
    require()
    sent = tool(
        address, f"{TOOLS}.VerifiableProducer", "--topic", TOPIC, "--max-messages", str(RECORD_COUNT), "--acks", "-1"
    )
    assert [event for event in events(sent) if event["name"] == "producer_send_error"] == []
    received = tool(
        address,
        f"{TOOLS}.VerifiableConsumer",
        *("--topic", TOPIC, "--group-id", "g", "--max-messages", str(RECORD_COUNT), "--verbose"),
    )
    values = [str(event["value"]) for event in events(received) if event["name"] == "record_data"]
    assert sorted(values, key=int) == [str(number) for number in range(RECORD_COUNT)]


class JavaMember:
    """Kafka's verifiable consumer in a process, and its current partitions."""

    def __init__(self, address: str, protocol: str) -> None:
        settings = ["--session-timeout", str(SESSION_MS)] if protocol == "classic" else []
        command = java_command(
            f"{TOOLS}.VerifiableConsumer",
            *("--bootstrap-server", address, "--topic", TOPIC, "--group-id", "g", "--group-protocol", protocol),
            *settings,
        )
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.partitions: frozenset[int] = frozenset()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            told = {int(place["partition"]) for place in event.get("partitions", ()) if "count" not in place}
            if event["name"] == "partitions_assigned":
                self.partitions |= told
            elif event["name"] == "partitions_revoked":
                self.partitions -= told

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


def is_shared(members: Sequence[JavaMember], shares: Sequence[int]) -> bool:
    """True when each partition has one owner, and the members have these numbers of partitions."""
    held = [member.partitions for member in members]
    owned = sorted(partition for partitions in held for partition in partitions)
    return owned == list(range(PARTITION_COUNT)) and sorted(map(len, held), reverse=True) == list(shares)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_javas_consumers_share_three_partitions_and_inherit_those_of_a_killed_one(address: str, protocol: str) -> None:
    require()
    tool(address, f"{TOOLS}.TopicCommand", "--create", "--topic", TOPIC, "--partitions", "3")
    members: list[JavaMember] = []
    with contextlib.ExitStack() as stack:
        for shares in ([3], [2, 1], [1, 1, 1], [1, 1, 1, 0]):
            members.append(JavaMember(address, protocol))
            stack.callback(members[-1].kill)
            wait_until(partial(is_shared, members, shares), f"the shares are {shares}", SETTLE_S)
        owner = next(member for member in members if member.partitions)
        owner.kill()
        members.remove(owner)
        wait_until(partial(is_shared, members, [1, 1, 1]), "the survivors share all partitions", SETTLE_S)


def run_kcat(address: str, *arguments: str, stdin: str = "") -> str:
    """Runs kcat on a served log and returns its standard output."""
    if shutil.which("kcat") is None:
        pytest.skip("this test needs kcat (on Debian: apt-get install kcat)")
    command = ["kcat", "-b", address, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kcat_lists_produces_consumes_and_asks_for_offsets(address: str) -> None:
    values = [str(number) for number in range(RECORD_COUNT)]
    run_kcat(address, "-P", "-t", TOPIC, "-p", "1", stdin="\n".join(values))
    (topic,) = json.loads(run_kcat(address, "-L", "-J", "-t", TOPIC))["topics"]
    assert len(topic["partitions"]) == PARTITION_COUNT
    assert run_kcat(address, "-C", "-t", TOPIC, "-o", "beginning", "-e", "-q").split() == values
    assert run_kcat(address, "-C", "-t", TOPIC, "-p", "1", "-o", "290", "-e", "-q").split() == values[290:]
    assert "offset 300" in run_kcat(address, "-Q", "-t", f"{TOPIC}:1:-1")
    assert run_kcat(address, "-X", "auto.offset.reset=earliest", "-e", "-q", "-G", "g", TOPIC).split() == values


def test_aiokafka_produces_consumes_in_a_group_and_finds_its_offsets_again(address: str) -> None:
    aiokafka = pytest.importorskip("aiokafka")

    async def journey() -> tuple[list[int], int]:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True) as producer:
            for number in range(RECORD_COUNT):
                await producer.send_and_wait(TOPIC, b"%d" % number, partition=number % PARTITION_COUNT)
        settings = {"bootstrap_servers": address, "group_id": "g", "enable_auto_commit": False}
        async with aiokafka.AIOKafkaConsumer(TOPIC, auto_offset_reset="earliest", **settings) as consumer:
            values = [int((await consumer.getone()).value) for _ in range(RECORD_COUNT)]
            await consumer.commit()
        async with aiokafka.AIOKafkaConsumer(TOPIC, **settings) as again:
            offsets = [await again.committed(place) for place in again.assignment()]
        return values, sum(offset or 0 for offset in offsets)

    values, committed = asyncio.run(journey())
    assert sorted(values) == list(range(RECORD_COUNT))
    assert committed == RECORD_COUNT
