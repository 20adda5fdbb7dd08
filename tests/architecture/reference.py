# SPDX-License-Identifier: Apache-2.0
"""Everything that a program can name of shmaccum, one sorted line each, so that ``diff`` compares two revisions.

``python -m tests.architecture.reference`` prints the options, the commands, the public classes and functions with
their signatures, the metrics, and the keys of all JSON. The program imports nothing from the tests, so it can
describe another checkout: ``PYTHONPATH=CHECKOUT python tests/architecture/reference.py``.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
from prometheus_client import CollectorRegistry

import shmaccum
from shmaccum import config
from shmaccum.cli import main as command_group
from shmaccum.observe.prometheus import ArenaCollector

PUBLIC_MODULES = ("shmaccum.aio", "shmaccum.logging", "shmaccum.tracing", "shmaccum.spark")
COMPAT_MODULES = ("shmaccum.compat.aiokafka", "shmaccum.compat.confluent", "shmaccum.compat.kafka_python")
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
TABLES = ("Arena", "Producer", "Consumer", "Sender", "LogSink", "KafkaSink", "PlacelessSink", "Server", "Shipper")
SPARK_TABLES = ("SparkSink", "SparkSource")


def plain(value: Any) -> str:
    """Return the text of a value on one line. It is the same in each process."""
    text = ADDRESS.sub("", repr(value.__qualname__ if inspect.isroutine(value) else value))
    return " ".join(text.split())


def option_lines() -> Iterator[str]:
    """Yield each option of each table, with everything in its row."""
    for table in (*TABLES, *SPARK_TABLES):
        options = getattr(config, f"{table}Options")
        for field in dataclasses.fields(options):
            row = {name: plain(value) for name, value in _row(field).items()}
            yield f"option {table}.{field.name}: {field.type} {row}"


def _row(field: dataclasses.Field[Any]) -> dict[str, Any]:
    for row in field.metadata.values():
        if dataclasses.is_dataclass(row):
            return {each.name: getattr(row, each.name) for each in dataclasses.fields(row)}
    return {"default": field.default}


def command_lines(command: click.Command, path: str) -> Iterator[str]:
    """Yield a command with its options and arguments, and the commands of a group."""
    context = click.Context(command, info_name=path)
    yield f"command {path}: {plain(command.help)} {plain(command.epilog)}"
    for parameter in command.get_params(context):
        facts = parameter.to_info_dict()
        kept = ("opts", "secondary_opts", "type", "required", "nargs", "multiple", "default", "help", "envvar")
        yield f"command {path} {parameter.name}: {plain({name: facts.get(name) for name in kept})}"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from command_lines(found, f"{path} {name}")


def signature(value: Any) -> str:
    """Return the parameters of a function or class, as far as they are known."""
    try:
        return plain(str(inspect.signature(value)))
    except (TypeError, ValueError):
        return "(...)"


def class_lines(name: str, value: type) -> Iterator[str]:
    """Yield a class with its bases and its members, including inherited ones."""
    bases = [base.__name__ for base in value.__mro__[1:-1] if not base.__name__.startswith("_")]
    yield f"class {name}{signature(value)}: {' '.join(bases)}"
    for member in dir(value):
        found = inspect.getattr_static(value, member)
        if member.startswith("_"):
            continue
        is_called = callable(getattr(value, member, None))
        kind = signature(getattr(value, member)) if is_called else f" ({type(found).__name__})"
        yield f"class {name}.{member}{kind}"


def name_lines(module_name: str, names: Iterable[str]) -> Iterator[str]:
    """Yield the public names of a module."""
    module = importlib.import_module(module_name)
    for name in names:
        value = getattr(module, name)
        full = f"{module_name}.{name}"
        if inspect.isclass(value):
            yield from class_lines(full, value)
        elif callable(value):
            yield f"function {full}{signature(value)}"
        else:
            yield f"name {full}"


def own_names(module_name: str) -> list[str]:
    """Return ``__all__`` of a module. If it has none, return the public names that it defines."""
    module = importlib.import_module(module_name)
    listed = getattr(module, "__all__", None)
    return list(listed) if listed else [name for name in vars(module) if _is_own(module_name, vars(module)[name], name)]


def _is_own(module_name: str, value: Any, name: str) -> bool:
    return not name.startswith("_") and getattr(value, "__module__", None) == module_name


def key_lines(title: str, value: Any, path: str = "") -> Iterator[str]:
    """Yield each key of a JSON document with the type of its value. The keys of a list's items appear once."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from key_lines(title, inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value[:1]:
            yield from key_lines(title, inner, f"{path}[]")
    else:
        yield f"json {title} {path}: {type(value).__name__}"


def json_lines(arena: str, log: str) -> Iterator[str]:
    """Yield the keys of the JSON that the commands print."""
    looks = [("stat", "--once"), ("inspect",), ("inspect", "--slots"), ("inspect", "--slot", "0"), ("check",)]
    for command, *arguments in [*looks, ("health",)]:
        yield from printed(f"{command} {' '.join(arguments)}", command, arena, *arguments, "--json")
    yield from listed_lines(arena)
    yield from printed("log inspect", "log", "inspect", log, "--json")
    yield from printed("log cat", "log", "cat", log, "--json")


def listed_lines(arena: str) -> Iterator[str]:
    """Yield the keys of the row that ``shmaccum ls`` prints for an arena."""
    done = subprocess.run([sys.executable, "-m", "shmaccum", "ls", "--json"], capture_output=True, text=True)
    rows = [row for row in json.loads(done.stdout) if row["name"] == arena]
    yield from key_lines("ls", rows)


def printed(title: str, *arguments: str) -> Iterator[str]:
    """Return the keys of the first line of a command's output. If it prints nothing, return its exit code."""
    program = [sys.executable, "-m", "shmaccum", *arguments]
    done = subprocess.run(program, capture_output=True, text=True)
    line = (done.stdout.splitlines() or [""])[0]
    if not line.startswith(("{", "[")):
        yield f"json {title.strip()}: exit code {done.returncode}"
        return
    yield from key_lines(title.strip(), json.loads(line))


def work_lines() -> Iterator[str]:
    """Yield the metrics and the keys of all JSON, from an arena in use."""
    with tempfile.TemporaryDirectory() as folder:
        place = f"shmaccum-reference-{os.getpid()}"
        with (
            shmaccum.Arena.create(place, topics={"words": 1}) as arena,
            shmaccum.Sender(arena, f"log:{folder}/log") as sender,
            shmaccum.Producer(arena) as producer,
        ):
            sender.open()
            future = producer.send("words", b"hello", key=b"a")
            while not future.is_done:
                sender.run_once()
            producer.send("words", b"waiting")
            yield from metric_lines(arena, sender, producer)
            yield from json_lines(place, f"{folder}/log")
            producer.close(timeout=0)
            sender.close()
            shmaccum.Arena.remove(place)


def metric_lines(arena: Any, sender: Any, producer: Any) -> Iterator[str]:
    """Yield the metrics of an arena, its sender and a producer."""
    registry = CollectorRegistry()
    registry.register(ArenaCollector(arena))
    for family in registry.collect():
        labels = sorted({label for sample in family.samples for label in sample.labels})
        yield f"metric {family.name} ({family.type}) {labels}: {family.documentation}"
    yield from (f"metric of the sender: {name}" for name in sender.metrics())
    for group, numbers in producer.metrics().items():
        yield from (f"metric of a producer: {group} {name}" for name in numbers)


def reference() -> list[str]:
    """Return all lines, sorted."""
    lines = [
        *option_lines(),
        *command_lines(command_group, "shmaccum"),
        *name_lines("shmaccum", shmaccum.__all__),
        *(line for name in (*PUBLIC_MODULES, *COMPAT_MODULES) for line in name_lines(name, own_names(name))),
        *work_lines(),
    ]
    return sorted(set(lines))


if __name__ == "__main__":
    Path("/dev/stdout").write_text("\n".join(reference()) + "\n")
