# SPDX-License-Identifier: Apache-2.0
"""Build the peers of ``bench/java`` by Maven and run them by JMH, iteration by iteration.

JMH forks the JVM, warms it up, and prints a line for each iteration. The benchmark's gate blocks each iteration until a
byte arrives through a pipe. Both JVMs are stopped until then, so JVMs and other contenders run in turn.
``python -m bench.harness.jvm`` only builds.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from bench.harness.question import Contender, Guarantees, Measurement, UnavailableError
from bench.harness.stopped_processes import StoppedProcesses
from setup import ROOT

PROJECT = ROOT / "bench" / "java"
POM = PROJECT / "pom.xml"
BUILD = ROOT / "build" / "bench" / "java"
BUILT = BUILD / "built"
BUILD_TIMEOUT_S = 900
END_TIMEOUT_S = 10
ITERATION_TIMEOUT_S = 40
READ_SIZE = 1 << 16
LINES_KEPT = 20
ERROR_SIZE_MAX = 500

ROUNDS = ("-i", "100000", "-r", "500ms")
WARM_UP = ("-wi", "5", "-w", "1s")
JMH_OPTIONS = ("-bm", "thrpt", "-tu", "s", "-f", "1", "-foe", "true", *WARM_UP, *ROUNDS)
ITERATION = re.compile(r"Iteration +\d+: ([\d.]+) ops/s")
VM = re.compile(r"# VM version: (JDK [\w.+-]+)")


def pom_version(name: str) -> str:
    """Return the version of ``NAME.version`` in the pom."""
    match = re.search(rf"<{name}\.version>(.+?)</", POM.read_text(encoding="utf-8"))
    assert match is not None, f"the pom has no {name}.version"
    return match[1]


def iteration(line: str) -> float | None:
    """Return operations per second if this line of JMH reports a measured iteration."""
    match = ITERATION.match(line)
    return float(match[1]) if match else None


def classpath() -> str:
    """Return the class path of the built benchmarks and their dependencies.

    Raises:
        UnavailableError: there is no Java or no Maven, or Maven failed.
    """
    for program, package in (("java", "a JDK, 17 or newer"), ("mvn", "Maven")):
        if shutil.which(program) is None:
            raise UnavailableError(f"`{program}` is missing: install {package}")
    newest = max(path.stat().st_mtime for path in [POM, *PROJECT.rglob("*.java")])
    if not BUILT.exists() or BUILT.stat().st_mtime < newest:
        _build()
    return f"{BUILD / 'classes'}:{BUILD / 'dependency'}/*"


@cache
def _build() -> None:
    """Build from Maven's cache, and from the network only if the cache does not suffice."""
    if _maven("--offline").returncode == 0 or (online := _maven()).returncode == 0:
        BUILT.touch()
        return
    raise UnavailableError(f"mvn could not build bench/java: {(online.stdout + online.stderr)[-ERROR_SIZE_MAX:]}")


def _maven(*reach: str) -> subprocess.CompletedProcess[str]:
    goals = ["compile", "dependency:copy-dependencies", f"-DoutputDirectory={BUILD / 'dependency'}"]
    command = ["mvn", "--quiet", "--batch-mode", *reach, "--file", str(POM), *goals]
    return subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)


class Lines:
    """The lines that a program prints, with a deadline."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._rest = b""

    def next(self, deadline_s: float) -> str | None:
        """Return the next line, or None at the end of the program or at the deadline of the monotonic clock."""
        while b"\n" not in self._rest:
            left_s = max(deadline_s - time.monotonic(), 0)
            is_readable = bool(select.select([self._file], [], [], left_s)[0])
            more = os.read(self._file, READ_SIZE) if is_readable else b""
            if not more:
                return None
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode(errors="replace")


class Jmh:
    """A benchmark of ``bench/java``, stopped between iterations. The JVM starts with the first iteration.

    Args:
        name: ``Class.method``.
        thread_count: threads that call the method.
    """

    def __init__(self, name: str, thread_count: int) -> None:
        self._name = name
        self._thread_count = thread_count
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: Lines | None = None
        self._gate = -1
        self._vm = ""
        self.stopped = StoppedProcesses()

    def run(self) -> Measurement:
        """Run an iteration of half a second."""
        if self._process is None:
            self._start()
        os.write(self._gate, b"!")
        return {"records_per_s": self._next_iteration(time.monotonic() + ITERATION_TIMEOUT_S)}

    def version(self) -> str:
        """Return the versions of JMH and of the JVM."""
        return f"JMH {pom_version('jmh')}, {self._vm}"

    def _start(self) -> None:
        command = self._command(classpath())
        folder = Path(tempfile.mkdtemp(prefix="shmaccum-bench-jmh-"))
        path = folder / "gate"
        os.mkfifo(path)
        self._gate = os.open(path, os.O_RDWR)
        atexit.register(self._end, folder)
        command += [self._name, "-t", str(self._thread_count), "-jvmArgsPrepend", f"-Dshmaccum.gate={path}"]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        self.stopped.add(self._process.pid)
        assert self._process.stdout is not None
        self._lines = Lines(self._process.stdout.fileno())

    def _command(self, path: str) -> list[str]:
        """Return the command. It makes JMH print decimal points, and ignore its lock, which stopped JMH runs may
        hold.
        """
        properties = ["-Duser.language=en", "-Djmh.ignoreLock=true"]
        return ["java", *properties, "-cp", path, "org.openjdk.jmh.Main", *JMH_OPTIONS]

    def _next_iteration(self, deadline_s: float) -> float:
        assert self._lines is not None
        said: list[str] = []
        while (line := self._lines.next(deadline_s)) is not None:
            if (operations_per_s := iteration(line)) is not None:
                return operations_per_s
            if match := VM.match(line):
                self._vm = match[1]
            said = [*said, line][-LINES_KEPT:]
        raise UnavailableError(f"JMH measured nothing within {ITERATION_TIMEOUT_S} s: {' '.join(said)}")

    def _end(self, folder: Path) -> None:
        """Close the gate, so that the JVM exits, kill it after the time-out, and remove the gate."""
        os.close(self._gate)
        if self._process is not None:
            with self.stopped.running(), contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_TIMEOUT_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def contenders(
    product: str, benchmark: str, names: Mapping[str, int], guarantees: Guarantees
) -> Callable[[], list[Contender]]:
    """Return a function that makes a contender for each number of threads. The pom gives the version of `product`."""

    def one(name: str, thread_count: int) -> Contender:
        jmh = Jmh(benchmark, thread_count)
        version = f"{product} {pom_version(product.lower())}"
        return Contender(
            name, jmh.run, version=lambda: f"{version}, {jmh.version()}", guarantees=guarantees, stopped=jmh.stopped
        )

    return lambda: [one(name, thread_count) for name, thread_count in names.items()]


def main() -> None:
    """Build the peers before any question, or print why this fails."""
    try:
        print(f"the peers in Java are in {classpath().partition(':')[0]}")
    except UnavailableError as error:
        print(f"without the peers in Java: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
