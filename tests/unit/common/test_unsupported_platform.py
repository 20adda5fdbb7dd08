# SPDX-License-Identifier: Apache-2.0
"""The wheel without the extension works on macOS and Windows.

The test builds and installs this wheel. A process without the packages and modules that Linux alone has then sets
``sys.platform`` before it imports shmaccum.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import Distribution
from pathlib import Path

import packaging.tags
import packaging.utils
import pytest
from packaging.requirements import Requirement

from setup import ROOT, is_pure

WATCHDOG_S = 120
LINUX_ONLY = ["fcntl", "posix_ipc", "numpy", "msgpack", "crc32c", "click", "psutil", "resource", "termios"]
PRELUDE = f"""
import asyncio, importlib, pkgutil, runpy, sys, warnings
sys.meta_path.insert(0, importlib.machinery.PathFinder)  # as an import hook that was installed earlier
for library in ("aiokafka", "confluent_kafka.aio", "kafka"):
    importlib.import_module(library)
if sys.argv[1] != "linux":
    sys.platform = sys.argv[1]
    sys.modules.update(dict.fromkeys({LINUX_ONLY}))

def sentence(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except Exception as error:
        return f"{{type(error).__name__}}: {{error}}"
"""
WARNED = "shmaccum.compat has the libraries' own producers here"
REMEDY = (
    "run the program on Linux, in a container or in WSL 2, or use a producer of shmaccum.compat, which is the "
    "library's own here"
)
ELSEWHERE = ("darwin", "win32")

pytestmark = pytest.mark.xdist_group("unsupported platform")  # one wheel for all tests


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of macOS and Windows."""
    folder = tmp_path_factory.mktemp("wheel")
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    environment = os.environ | {"SHMACCUM_PURE": "1"}
    # From a source distribution's files: a folder of an earlier build would add its modules.
    subprocess.run(["cp", "-a", *(ROOT / name for name in ("pyproject.toml", "setup.py")), folder], check=True)
    for name in ("README.rst", "LICENSE", "shmaccum"):
        (folder / name).symlink_to(ROOT / name)
    done = subprocess.run([sys.executable, "-c", build, "."], cwd=folder, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """A folder in which pip has installed the wheel for Windows."""
    folder = wheel.parent / "installed"
    options = ["--no-deps", "--only-binary", ":all:", "--platform", "win_amd64", "--target", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, str(wheel)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


def run(installed: Path, program: str, platform: str = "win32") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(installed)}
    command = [sys.executable, "-W", "always::RuntimeWarning:__main__", "-c", PRELUDE + program, platform]
    return subprocess.run(command, cwd=installed, env=environment, capture_output=True, text=True, timeout=WATCHDOG_S)


def output(installed: Path, program: str, platform: str = "win32") -> list[str]:
    done = run(installed, program, platform)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_an_installer_selects_the_wheel_on_macos_and_windows_alone(wheel: Path) -> None:
    tags = {tag.platform for tag in packaging.utils.parse_wheel_filename(wheel.name)[3]}
    for version, machine in (((10, 15), "x86_64"), ((14, 0), "x86_64"), ((11, 0), "arm64"), ((15, 0), "arm64")):
        assert tags & {*packaging.tags.mac_platforms(version, machine)}, (version, machine)
    assert {"win32", "win_amd64", "win_arm64"} <= tags
    assert not tags & {tag.platform for tag in packaging.tags.sys_tags()}, "this is Linux"


def test_the_wheel_has_no_extension_and_no_data_source_of_spark_and_requires_nothing(installed: Path) -> None:
    assert [path for path in installed.rglob("*") if path.suffix in {".so", ".pyd", ".c"}] == []
    assert not (installed / "pyspark_shmaccum").exists(), "Spark imports it in each session"
    assert (installed / "shmaccum/py.typed").is_file()
    assert (installed / "shmaccum/_native.pyi").is_file(), "a type checker reads it"
    (info,) = installed.glob("shmaccum-*.dist-info")
    required = [Requirement(line) for line in Distribution.at(info).requires or []]
    assert len(required) > 6
    for platform in ELSEWHERE:
        environment = {"sys_platform": platform, "extra": ""}
        assert [str(one) for one in required if one.marker is None or one.marker.evaluate(environment)] == []


def test_the_switch_and_both_platforms_select_the_wheel() -> None:
    assert is_pure({"SHMACCUM_PURE": "1"}, "linux")
    assert not is_pure({}, "linux")
    assert all(is_pure({}, platform) for platform in ELSEWHERE)
    assert not is_pure({}, "freebsd14"), "the build names Linux there"


@pytest.mark.parametrize("platform", ELSEWHERE)
def test_the_drop_ins_are_the_producers_of_the_libraries_with_one_warning(installed: Path, platform: str) -> None:
    program = """
import aiokafka, confluent_kafka, confluent_kafka.aio, kafka
with warnings.catch_warnings(record=True) as found:
    from shmaccum.compat.kafka_python import KafkaProducer
    from shmaccum.compat.confluent import AIOProducer, Producer, SerializingProducer
    from shmaccum.compat import aiokafka as ours
print(KafkaProducer.__base__ is kafka.KafkaProducer, Producer.__base__ is confluent_kafka.Producer)
print(SerializingProducer.__base__ is confluent_kafka.SerializingProducer)
print(AIOProducer.__base__ is confluent_kafka.aio.AIOProducer)
print(ours.AIOKafkaProducer.__base__ is aiokafka.AIOKafkaProducer)
print(ours.AIOKafkaProducer is ours.AIOKafkaProducer)
print(*(f"{one.category.__name__} {one.filename}: {one.message}" for one in found))
print(sentence(getattr, ours, "Nothing"))
"""
    name = {"darwin": "macOS", "win32": "Windows"}[platform]
    assert output(installed, program, platform) == [
        "True True",
        *["True"] * 4,
        f"RuntimeWarning <string>: shmaccum needs Linux, and this is {name}: {WARNED}",
        "AttributeError: aiokafka has no 'Nothing'",
    ]


PRODUCERS_WITH_OUR_OPTIONS = """
import kafka
with warnings.catch_warnings(record=True) as found:
    from shmaccum.compat.confluent import AIOProducer, Producer, SerializingProducer
    from shmaccum.compat.aiokafka import AIOKafkaProducer
    from shmaccum.compat.kafka_python import KafkaProducer
options = {"bootstrap.servers": "127.0.0.1:1", "shmaccum.arena": "events"}
async def make():
    yield AIOKafkaProducer(bootstrap_servers="127.0.0.1:1", shmaccum_arena="events")
    yield AIOProducer(options, max_workers=1)
    yield AIOProducer(producer_conf=options)
async def names():
    return [type(one).__mro__[1].__module__.rpartition(".")[2] async for one in make()]
print(type(Producer(options)).__mro__[1].__module__, type(SerializingProducer(options)).__mro__[1].__module__)
print(*asyncio.run(names()))
kafka.KafkaProducer.__init__ = lambda self, **options: print(*options)
KafkaProducer(bootstrap_servers="127.0.0.1:1", shmaccum_arena="events").__class__
print(*(f"{one.category.__name__} {one.filename}: {one.message}" for one in found))
import shmaccum
print(shmaccum.Producer.__module__, sentence(shmaccum.Arena.attach, "shmaccum-test-missing").partition(":")[0])
"""


def test_a_variable_gives_a_program_on_linux_the_producers_of_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHMACCUM_COMPAT", "library")
    assert output(ROOT, PRODUCERS_WITH_OUR_OPTIONS, "linux") == [
        "cimpl confluent_kafka.serializing_producer",
        "producer _AIOProducer _AIOProducer",
        "bootstrap_servers",
        f"RuntimeWarning <string>: SHMACCUM_COMPAT=library: {WARNED}",
        "shmaccum.supervisor.kept_producer ArenaNotFoundError",
    ]


def test_a_wrong_value_of_the_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHMACCUM_COMPAT", "libraries")
    program = "print(sentence(importlib.import_module, 'shmaccum.compat.confluent'))"
    (line,) = output(ROOT, program, "linux")
    assert line.startswith("InvalidArgumentError: SHMACCUM_COMPAT is 'libraries': set it to library, or remove it")


def test_a_drop_in_without_its_library_names_the_package(installed: Path) -> None:
    program = "sys.modules['aiokafka'] = None; print(sentence(importlib.import_module, 'shmaccum.compat.aiokafka'))"
    (line,) = output(installed, program)
    assert line.startswith("PackageMissingError: shmaccum.compat.aiokafka needs the package aiokafka: pip install")


@pytest.mark.parametrize("platform", ELSEWHERE)
def test_a_program_imports_everything_and_a_use_raises_a_sentence(installed: Path, platform: str) -> None:
    program = """
import shmaccum
from shmaccum import *
for found in pkgutil.walk_packages(shmaccum.__path__, "shmaccum."):
    importlib.import_module(found.name)
from shmaccum.sender.sinks import SynchronousSink
class OwnSink(SynchronousSink):
    pass
def deliver(sender: "Sender | None") -> list[shmaccum.DeliveryFuture]: ...
print(sentence(Producer, "events", sink="kafka:broker:9092"))
print(sentence(shmaccum.ensure_sender, "events").partition(":")[0], sentence(OwnSink).partition(":")[0])
print(sentence(lambda: Arena.create("events")).partition(": run")[0])
print(sentence(importlib.import_module, "shmaccum.nothing"))
print(issubclass(UnsupportedPlatformError, ShmaccumError), "shmaccum.logging" in sys.modules)
"""
    found = output(installed, program, platform)
    name = {"darwin": "macOS", "win32": "Windows"}[platform]
    refusal = f"UnsupportedPlatformError: shmaccum.{{}} needs Linux, and this is {name}"
    assert found[0] == f"{refusal.format('supervisor.kept_producer.Producer')}: {REMEDY}"
    assert found[1:] == [
        "UnsupportedPlatformError UnsupportedPlatformError",
        refusal.format("arena.Arena.create"),
        "ModuleNotFoundError: No module named 'shmaccum.nothing'",
        "True True",
    ]


def test_the_command_ends_with_the_sentence(installed: Path) -> None:
    done = run(installed, "sys.argv[1:] = ['ls']; runpy.run_module('shmaccum', run_name='__main__')")
    assert done.returncode == 1
    assert done.stderr.startswith("the command shmaccum needs Linux, and this is Windows: ")
    assert "Traceback" not in done.stderr


def test_linux_has_no_substitute_and_never_imports_their_module() -> None:
    program = (
        "import shmaccum; print(shmaccum.Producer.__module__, 'shmaccum.common.unsupported_platform' in sys.modules)"
    )
    assert output(ROOT, program, "linux") == ["shmaccum.supervisor.kept_producer False"]
