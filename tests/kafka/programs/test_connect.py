# SPDX-License-Identifier: Apache-2.0
"""Kafka Connect in distributed mode copies a file to another one through a topic.

Connectors, the positions in the file, and states are in compacted topics, which a restarted worker reads again.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.kafka.broker import LOOPBACK, held_port
from tests.kafka.programs.installation import java_command
from tests.kafka.programs.program import OUTPUT_SHOWN, PARTITION_COUNT, SETTLE_S, Program, running
from tests.support.processes import wait_until

pytestmark = pytest.mark.kafka

HALF = 300
CONNECTORS = ("source", "sink")


@pytest.fixture
def rest_port() -> Iterator[int]:
    """A reserved port for the requests of the worker's administrators."""
    with closing(held_port()) as held:
        yield held.getsockname()[1]


def worker_command(address: str, name: str, rest_port: int, folder: Path) -> list[str]:
    """Write the properties of a worker, and return its command line."""
    storages = {f"{kind}.storage.topic": f"{name}-{kind}" for kind in ("config", "offset", "status")}
    factors = {f"{kind}.storage.replication.factor": "1" for kind in ("config", "offset", "status")}
    converters = {f"{part}.converter": "org.apache.kafka.connect.storage.StringConverter" for part in ("key", "value")}
    properties = {
        "bootstrap.servers": address,
        "group.id": name,
        "listeners": f"http://{LOOPBACK}:{rest_port}",
        "offset.storage.partitions": str(PARTITION_COUNT),
        **storages,
        **factors,
        **converters,
    }
    file = folder / "worker.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return java_command("org.apache.kafka.connect.cli.ConnectDistributed", str(file))


def request(rest_port: int, method: str, path: str, body: object = None) -> tuple[int, str]:
    """Make a request of the worker, and return the status and the text of the response."""
    with closing(http.client.HTTPConnection(LOOPBACK, rest_port, timeout=SETTLE_S)) as connection:
        connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode()


def run_connectors(rest_port: int, topic: str, folder: Path) -> None:
    """Create a connector that reads the file "in", and one that writes the file "out"."""
    common = {"tasks.max": "1", "topic": topic, "topics": topic}
    for name, file in zip(CONNECTORS, ("in", "out"), strict=True):
        stated = {"connector.class": f"FileStream{name.capitalize()}", "file": str(folder / file)}
        status, told = request(rest_port, "PUT", f"/connectors/{name}/config", {**common, **stated})
        assert status == http.client.CREATED, told


def wait_until_ready(rest_port: int, program: Program) -> None:
    """Wait until the worker has read its topics."""

    def is_ready() -> bool:
        program.check_runs()
        try:
            return request(rest_port, "GET", "/health")[0] == http.client.OK
        except ConnectionError:
            return False

    wait_until(is_ready, "the worker is ready", SETTLE_S)


def wait_until_copied(program: Program, folder: Path) -> None:
    """Wait until the second file has the lines of the first one."""

    def is_copied() -> bool:
        program.check_runs()
        target = folder / "out"
        return target.exists() and target.stat().st_size >= (folder / "in").stat().st_size

    try:
        wait_until(is_copied, "all lines are copied", SETTLE_S)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{program.output()[-OUTPUT_SHOWN:]}") from error


def write_lines(folder: Path, numbers: range) -> None:
    with open(folder / "in", "a") as file:
        file.writelines(f"line {number}\n" for number in numbers)


def test_connect_copies_each_line_once_and_continues_after_a_restart(
    address: str, unique_name: str, rest_port: int, tmp_path: Path
) -> None:
    command = worker_command(address, unique_name, rest_port, tmp_path)
    write_lines(tmp_path, range(HALF))
    with running(command, tmp_path / "output") as program:
        wait_until_ready(rest_port, program)
        run_connectors(rest_port, f"{unique_name}-lines", tmp_path)
        wait_until_copied(program, tmp_path)
        program.stop()
    write_lines(tmp_path, range(HALF, 2 * HALF))
    with running(command, tmp_path / "output") as program:
        wait_until_copied(program, tmp_path)
        program.stop()
    lines = (tmp_path / "out").read_text().splitlines()
    assert sorted(lines) == sorted(f"line {number}" for number in range(2 * HALF))
