# SPDX-License-Identifier: Apache-2.0
"""If an optional package is missing, the error names it, and everything else works.

The packages are those of the extras in pyproject.toml. Each is hidden in turn, then all at once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from shmaccum import Arena, Producer, Sender

ROOT = Path(__file__).resolve().parents[2]
MODULE_OF = {
    "kafka-python": "kafka",
    "python-snappy": "snappy",
    "google-re2": "re2",
    "confluent-kafka": "confluent_kafka",
    "aws-msk-iam-sasl-signer-python": "aws_msk_iam_sasl_signer",
    "opentelemetry-api": "opentelemetry",
    "opentelemetry-instrumentation": "opentelemetry.instrumentation",
}
"""The modules of packages whose names differ."""
OF_USERS = ("kafka", "confluent", "aiokafka", "serve", "msk", "metrics", "opentelemetry", "plot", "spark")

PROBE = """
import importlib, json, pkgutil, sys
hidden, log = sys.argv[1].split(","), sys.argv[2]
for name in hidden:
    sys.modules[name] = None
import click, shmaccum
from click.testing import CliRunner
from shmaccum.cli import main

def commands(command, path):
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), [*path, name])

def outcome(arguments):
    result = CliRunner().invoke(main, arguments)
    return [result.exit_code, repr(result.exception), result.output]

def imported(name):
    try:
        importlib.import_module(name)
    except Exception as error:
        return [type(error).__name__, str(error)]
    return None

found = {"help": {" ".join(path): outcome([*path, "--help"]) for path in commands(main, [])}, "work": {}, "modules": {}}
for work in json.loads(sys.argv[3]):
    found["work"][" ".join(work)] = outcome([argument.replace("LOG", log) for argument in work])
names = [f"shmaccum.{module.name}" for module in pkgutil.iter_modules(shmaccum.__path__) if module.name != "__main__"]
for package in ("cli", "compat", "config", "log.server"):
    path = importlib.import_module(f"shmaccum.{package}").__path__
    names += [f"shmaccum.{package}.{module.name}" for module in pkgutil.iter_modules(path)]
found["modules"] = {name: imported(name) for name in names}
json.dump(found, sys.stdout)
"""
LOCAL = (
    ["topics", "list", "LOG"],
    ["topics", "describe", "LOG", "flights"],
    ["topics", "create", "LOG", "planes", "--partitions", "2"],
    ["topics", "partitions", "LOG", "planes", "--partitions", "3"],
    ["topics", "delete", "LOG", "planes"],
    ["groups", "list", "LOG"],
    ["users", "list", "LOG.users"],
    ["log", "info", "LOG"],
    ["log", "cat", "LOG", "--topic", "flights"],
    ["options", "sink"],
    ["ls"],
)
"""Commands that work without any of the packages."""
NEEDY: Mapping[str, list[str]] = {
    "kafka": ["serve", "LOG", "--listen", "127.0.0.1:0"],
    "prometheus_client": ["metrics", "LOG/../arena"],
}
"""Maps a module to a command that needs it."""
SENTENCE = "pip install '.["

pytestmark = pytest.mark.xdist_group("optional packages")  # each program runs once, for all tests


def extras() -> dict[str, list[str]]:
    tomllib = pytest.importorskip("tomllib")  # since Python 3.11
    with (ROOT / "pyproject.toml").open("rb") as file:
        found: dict[str, list[str]] = tomllib.load(file)["project"]["optional-dependencies"]
    return found


def modules() -> list[str]:
    """The modules of the optional packages."""
    lines = [line for name in OF_USERS for line in extras()[name] if not line.startswith("shmaccum")]
    names = [line.partition(">")[0].partition("[")[0].strip() for line in lines]
    return sorted({MODULE_OF.get(name, name) for name in names})


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages") / "log"
    arena = Arena.create(folder.parent / "arena", buffer_memory="64KiB", topics={"flights": 1})
    with arena, Producer(arena) as producer, Sender(arena, f"log:{folder}") as sender:
        future = producer.send("flights", b"landed")
        sender.open()
        while not future.is_done:
            sender.run_once()
    Path(f"{folder}.users").touch(mode=0o600)
    return folder


@cache
def probe(hidden: str, log: Path) -> dict[str, Any]:
    work = [*LOCAL, *(NEEDY[name] for name in hidden.split(",") if name in NEEDY)]
    arguments = [sys.executable, "-c", PROBE, hidden, str(log), json.dumps(work)]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=100, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


HIDDEN = [*modules(), ",".join(modules())]


def test_the_packages_of_every_extra_for_users_are_hidden() -> None:
    others = {"pipelines", "programs", "test", "spark-test", "docs", "bench", "dev"}
    assert {*OF_USERS} == extras().keys() - others
    assert {*NEEDY} < {*modules()}


@pytest.mark.parametrize("hidden", HIDDEN)
def test_help_needs_no_package(hidden: str, log: Path) -> None:
    found = probe(hidden, log)["help"]
    assert len(found) > 30
    assert {command: outcome for command, outcome in found.items() if outcome[0] != 0} == {}


@pytest.mark.parametrize("hidden", HIDDEN)
def test_local_commands_need_no_package(hidden: str, log: Path) -> None:
    work = probe(hidden, log)["work"]
    failed = {" ".join(command): work[" ".join(command)] for command in LOCAL if work[" ".join(command)][0] != 0}
    assert failed == {}


@pytest.mark.parametrize("hidden", [name for name in HIDDEN if name in NEEDY])
def test_a_command_that_needs_the_package_reports_it_in_one_sentence(hidden: str, log: Path) -> None:
    code, error, output = probe(hidden, log)["work"][" ".join(NEEDY[hidden])]
    assert (code, error) == (2, "SystemExit(2)")
    assert output.startswith("shmaccum: ")
    assert SENTENCE in output
    assert output.count("\n") == 1


@pytest.mark.parametrize("hidden", HIDDEN)
def test_a_module_of_users_is_imported_or_its_error_names_what_is_missing(hidden: str, log: Path) -> None:
    found = probe(hidden, log)["modules"]
    failed = {name: error for name, error in found.items() if error is not None}
    assert {name: error for name, error in failed.items() if error[0] != "PackageMissingError"} == {}
    assert all(SENTENCE in error[1] for error in failed.values())
    of_confluent = {f"confluent{part}" for part in ("", "_aio", "_callbacks", "_errors", "_producer", "_serializing")}
    of_compat = of_confluent | {"kafka_python", "aiokafka"}
    importing = {"shmaccum.instrumentation", *(f"shmaccum.compat.{module}" for module in of_compat)}
    server = {"access", "asking", "call", "coordinator", "messages", "server"}
    assert {name for name in failed if not name.startswith("shmaccum.log.server.")} <= importing
    assert server & {name.rpartition(".")[2] for name in failed} in (set(), server - {"asking"})
