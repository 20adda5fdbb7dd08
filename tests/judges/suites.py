# SPDX-License-Identifier: Apache-2.0
"""The suites that judge a served log: the path of each in SOURCES, and how to run it.

::

    SOURCES/librdkafka/tests/test-runner        built by its own make
    SOURCES/franz-go/pkg/kgo/kgo.test           built by go test -c
    SOURCES/kafka-python/test/integration       as it is
    SOURCES/kafka-python/test/consumer          as it is; its consumer and its assignors are ours (local_consumer)
    SOURCES/kafka-python/test/producer          as it is; its producer is ours (compat_producers)
    SOURCES/confluent-kafka-python/tests        the same
    SOURCES/aiokafka/tests                      the same
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from setup import ROOT
from tests.judges.guard import guarded
from tests.judges.judged import LOGIN, server_with_login
from tests.judges.outcomes import Outcomes, of_go, of_junit, of_librdkafka
from tests.kafka import distribution

KAFKA_VERSION = "4.1.1"
"""The version of Apache Kafka that suites assume."""
LIMIT_S = 3600.0
KAFKA_PYTHON_TESTS = ("admin", "consumer", "producer")
"""Tests of SASL and TLS start their own broker."""
KAFKA_PYTHON_UNIT_TESTS = ("test_assignors", "test_consumer")
"""Unit tests of consumers that can use ours. The other files test internals of a Kafka client."""
COMPAT_TESTS = {
    "kafka-python-compat": (
        "kafka-python/test",
        ("test/integration/test_producer_integration.py", "test/producer/test_kip679_config.py"),
    ),
    "confluent-compat": ("confluent-kafka-python/tests", ("tests/test_Producer.py",)),
    "aiokafka-compat": ("aiokafka/tests", ("tests/test_producer.py",)),
}
"""Suite -> the path below SOURCES without which it cannot run, and its tests of producers."""
VERSION_FILES = {"kafka-python": "kafka/version.py", "aiokafka": "aiokafka/__init__.py"}
"""Libraries that tests import from SOURCES, in front of the installed package, and the file that has their version."""
VERSION = re.compile(r"""__version__ = ['"](\d+\.\d+)""")
PATIENCE = 8
"""A factor for the time limits of librdkafka's tests, because a timeout ends its runner."""
RUNNER = "librdkafka/tests/test-runner"
TOOLS = {"kafka-topics.sh": "org.apache.kafka.tools.TopicCommand", "kafka-acls.sh": "org.apache.kafka.tools.AclCommand"}
"""Kafka's scripts -> the programs that they run."""
TEST_LIMIT_S = 90
"""The limit of one kafka-python test. One test waits for a minute."""


class Suite(NamedTuple):
    """The tests of another project."""

    name: str
    needs: str
    """The path below SOURCES without which the suite cannot run."""
    run: Callable[[Path, str, Path], Outcomes]
    """Arguments: the path in `needs`, the server's address, and a folder for reports."""
    partitions: int = 4
    """The number of partitions of a new topic."""


def version_problem(suite: Suite, sources: Path) -> str | None:
    """Return why a suite's sources are unusable. If their version fits or does not matter, return None."""
    library = suite.needs.partition("/")[0]
    file = VERSION_FILES.get(library)
    found = VERSION.search((sources / library / file).read_text()) if file is not None else None
    if found is None or metadata.version(library).startswith(f"{found[1]}."):
        return None
    return (
        f"{sources / library} has version {found[1]}, and {metadata.version(library)} is installed: check out the "
        "sources of the installed version"
    )


def _execute(command: list[str], folder: Path, variables: Mapping[str, str], log: Path) -> None:
    """Runs a suite, which may fail, and writes its output to the log."""
    options: dict[str, Any] = {"cwd": folder, "env": {**os.environ, **variables}}
    with open(log, "wb") as file, guarded(command, stdout=file, stderr=file, **options) as process:
        process.wait(LIMIT_S)


def write_tools(folder: Path) -> None:
    """Writes scripts with the names of Kafka's, and links its jars, for librdkafka's tests. One compiles Java."""
    scripts = folder / "bin"
    scripts.mkdir(parents=True)
    (folder / "libs").symlink_to(distribution.find())
    for name, main_class in TOOLS.items():
        _write_script(scripts / name, shlex.join(distribution.java_command(main_class)))
    java = shlex.join(["java", *distribution.short_lived_jvm()])
    _write_script(scripts / "kafka-run-class.sh", f'{java} -cp "$CLASSPATH:{folder}/libs/*"')


def _write_script(path: Path, command: str) -> None:
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o755)


def _run_librdkafka(runner: Path, address: str, place: Path, *, protocol: str, name: str) -> Outcomes:
    """Runs the tests that need a broker. librdkafka's other tests use its mock."""
    report = place / f"{name}.json"
    write_tools(place / f"{name}-tools")
    settings = place / f"{name}.conf"
    settings.write_text(f"metadata.broker.list={address}\ntest.timeout.multiplier={PATIENCE}\n")
    library = runner.parent.parent
    variables = {
        "LD_LIBRARY_PATH": f"{library / 'src'}:{library / 'src-cpp'}",
        "RDKAFKA_TEST_CONF": str(settings),
        "TEST_REPORT": str(report),
        "TEST_KAFKA_VERSION": KAFKA_VERSION,
        "TEST_CONSUMER_GROUP_PROTOCOL": protocol,
        "KAFKA_PATH": str(place / f"{name}-tools"),
        "BROKERS": address,
    }
    _execute([str(runner), "-p1", "-Q", "-E", "-L"], runner.parent, variables, place / f"{name}.log")
    return of_librdkafka(report.read_text())


def _run_kgo(program: Path, address: str, place: Path) -> Outcomes:
    """Runs all tests. Tests of logins get a server that requires one."""
    log = place / "franz-go.log"
    variables = {"KGO_SEEDS": address, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": "50000"}
    command = [str(program), "-test.v", f"-test.timeout={LIMIT_S:.0f}s"]
    with server_with_login(place) as login_address:
        login = {"KGO_TEST_SCRAM_SEEDS": login_address, "KGO_TEST_SCRAM": ":".join(LOGIN)}
        _execute(command, program.parent, {**variables, **login}, log)
    return of_go(log.read_text(errors="replace"))


def _run_kafka_python(folder: Path, address: str, place: Path) -> Outcomes:
    source = folder.parent.parent
    (source / "servers" / KAFKA_VERSION / "kafka-bin").mkdir(parents=True, exist_ok=True)
    report = place / "kafka-python.xml"
    files = [str(folder / f"test_{name}_integration.py") for name in KAFKA_PYTHON_TESTS]
    command = [sys.executable, "-m", "pytest", *files, "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    variables = {"KAFKA_URI": f"tcp://{address}", "KAFKA_VERSION": KAFKA_VERSION, "PYTHONPATH": str(source)}
    limits = [f"--timeout={TEST_LIMIT_S}", "--timeout-method=signal"]
    _execute([*command, *limits], source, variables, place / "kafka-python.log")
    return of_junit(report.read_text())


def _run_kafka_python_unit(folder: Path, _address: str, place: Path) -> Outcomes:
    source = folder.parent.parent
    report = place / "kafka-python-unit.xml"
    files = [str(folder / f"{name}.py") for name in KAFKA_PYTHON_UNIT_TESTS]
    plugins = ["-p", "no:cacheprovider", "-p", "tests.judges.local_consumer"]
    command = [sys.executable, "-m", "pytest", *files, "-q", "-c", os.devnull, *plugins, f"--junitxml={report}"]
    limits = [f"--timeout={TEST_LIMIT_S}", f"--rootdir={source}"]
    variables = {"PYTHONPATH": os.pathsep.join([str(source), str(ROOT)])}
    _execute([*command, *limits], source, variables, place / "kafka-python-unit.log")
    return of_junit(report.read_text())


def _run_compat(folder: Path, address: str, place: Path, *, name: str, files: tuple[str, ...]) -> Outcomes:
    """Runs a library's producer tests with our producer. Their package is also called tests."""
    source = folder.parent
    report = place / f"{name}.xml"
    plugins = ["-p", "no:cacheprovider", "-p", "compat_producers", "-c", os.devnull, f"--rootdir={source}"]
    if name == "aiokafka-compat":
        plugins.append("--noconftest")  # which starts brokers in Docker
    command = [sys.executable, "-m", "pytest", *(str(source / file) for file in files), "-q", *plugins]
    limits = [f"--timeout={TEST_LIMIT_S}", "--timeout-method=signal", f"--junitxml={report}"]
    variables = {
        "JUDGED_ADDRESS": address,
        "KAFKA_URI": f"tcp://{address}",
        "KAFKA_VERSION": KAFKA_VERSION,
        "PYTHONPATH": os.pathsep.join([str(source), str(ROOT / "tests" / "judges"), str(ROOT)]),
    }
    _execute([*command, *limits], source, variables, place / f"{name}.log")
    return of_junit(report.read_text())


def _compat_suite(name: str) -> Suite:
    """The suite of a library's producer tests. aiokafka's expect two partitions of each topic."""
    needs, files = COMPAT_TESTS[name]
    return Suite(name, needs, partial(_run_compat, name=name, files=files), 2 if name == "aiokafka-compat" else 4)


SUITES = (
    Suite("librdkafka", RUNNER, partial(_run_librdkafka, protocol="classic", name="librdkafka")),
    Suite("librdkafka-848", RUNNER, partial(_run_librdkafka, protocol="consumer", name="librdkafka-848")),
    Suite("franz-go", "franz-go/pkg/kgo/kgo.test", _run_kgo),
    Suite("kafka-python", "kafka-python/test/integration", _run_kafka_python),
    Suite("kafka-python-unit", "kafka-python/test/consumer", _run_kafka_python_unit),
    *(_compat_suite(name) for name in COMPAT_TESTS),
)
