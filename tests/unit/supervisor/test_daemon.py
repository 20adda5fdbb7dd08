# SPDX-License-Identifier: Apache-2.0
"""A sender's daemon inherits nothing harmful, and imports only its starter's package."""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shmaccum
from shmaccum.arena import Arena
from shmaccum.config import KafkaSinkOptions, SenderOptions, ServerOptions
from shmaccum.exceptions import SenderNotStartedError
from shmaccum.sender import daemon
from shmaccum.supervisor import Recipe, ensure_sender, inheritance, start
from tests.support.arenas import end_senders, sender_pid
from tests.support.descriptors import await_no_other, open_descriptors
from tests.support.processes import WATCHDOG_S, wait_until

PLANTED = ("posix_ipc", "msgpack", "json", "shmaccum", "kafka", "sitecustomize", "usercustomize")
"""Modules that a sender may import and another user could plant."""

BURDENED = """
import os, resource, signal, sys
os.umask(0)
os.nice(5)
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
open("/proc/self/oom_score_adj", "w").write("321")
for name, soft in (("CPU", 600), ("NOFILE", 200), ("FSIZE", 1 << 30)):
    limit = getattr(resource, "RLIMIT_" + name)
    resource.setrlimit(limit, (soft, resource.getrlimit(limit)[1]))
os.set_inheritable(os.open("/dev/null", os.O_RDONLY), True)
for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGALRM})
import shmaccum
with shmaccum.Producer(sys.argv[1], sink="log:" + sys.argv[2]) as producer:
    producer.send("t", b"x").get(30)
"""


@pytest.fixture
def arena(arena_name: str) -> Iterator[Arena]:
    with Arena.create(arena_name, buffer_memory="256KiB", batch_size="4KiB") as arena:
        yield arena
        end_senders(arena)


def run(code: str, *arguments: object, cwd: Path, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    command = [python, "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=2 * WATCHDOG_S, check=False, env=without_python_path()
    )


def without_python_path() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def pid_of(arena: Arena) -> int:
    wait_until(lambda: sender_pid(arena) is not None, "the sender is named")
    pid = sender_pid(arena)
    assert pid is not None
    return pid


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def signals(mask: str) -> set[int]:
    return {number + 1 for number in range(64) if int(mask, 16) >> number & 1}


# --- reset state


def test_a_daemon_has_no_attribute_that_its_starter_changed(arena: Arena, tmp_path: Path) -> None:
    done = run(BURDENED, arena.name, tmp_path / "log", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    pid = pid_of(arena)
    status = status_of(pid)
    assert signals(status["SigBlk"]) == set()
    # Python ignores two signals, and glibc reserves two that no program can reset.
    assert signals(status["SigIgn"]) - {32, 33} == {signal.SIGPIPE, signal.SIGXFSZ}
    assert int(status["Umask"], 8) == 0o077
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert os.sched_getaffinity(pid) == os.sched_getaffinity(1)
    assert os.getsid(pid) not in {os.getsid(0), pid}
    for limit in (resource.RLIMIT_CPU, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE):
        soft, hard = resource.prlimit(pid, limit)
        assert soft == hard


@pytest.mark.skipif(os.geteuid() != 0, reason="the kernel lets root alone lower a niceness")
def test_a_daemon_has_the_niceness_and_the_oom_score_of_the_system(arena: Arena, tmp_path: Path) -> None:
    assert run(BURDENED, arena.name, tmp_path / "log", cwd=tmp_path).returncode == 0
    pid = pid_of(arena)
    assert os.getpriority(os.PRIO_PROCESS, pid) == 0
    assert Path(f"/proc/{pid}/oom_score_adj").read_text() == Path("/proc/1/oom_score_adj").read_text()


def test_a_reset_that_the_kernel_refuses_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "setpriority", refuse)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    assert [sentence.partition(" of ")[0] for sentence in daemon._refusals()] == ["the niceness"]


def test_sigterm_ends_a_sender_whose_starter_blocked_it(arena: Arena, tmp_path: Path) -> None:
    assert run(BURDENED, arena.name, tmp_path / "log", cwd=tmp_path).returncode == 0
    os.kill(pid_of(arena), signal.SIGTERM)
    wait_until(lambda: not arena.native.sender_is_alive, "the sender has left")
    assert not arena.native.sender_died


@pytest.mark.parametrize(("mode", "umask"), [(0o600, 0o077), (0o640, 0o027), (0o660, 0o027), (0o666, 0o022)])
def test_files_of_a_daemon_are_read_by_those_who_read_the_arena_and_written_by_no_other_user(
    mode: int, umask: int
) -> None:
    assert inheritance.daemon_umask(mode) == umask


# --- imported modules

STARTER = """
import sys
sys.path[:] = {path!r}
import shmaccum
with shmaccum.Producer({name!r}, sink="log:{log}") as producer:
    producer.send("t", b"x").get(30)
"""


LOADED = "import json, msgpack, shmaccum.arena.named_objects, shmaccum.supervisor"
"""Imports for the starter, before the folder of planted modules is on its path."""


def plant(folder: Path, mark: Path) -> None:
    """Create modules that write to *mark* when they are imported."""
    folder.mkdir(exist_ok=True)
    for name in PLANTED:
        (folder / f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write({name!r})\nraise SystemExit(3)\n")


def test_no_module_of_the_working_folder_runs_in_a_daemon(arena: Arena, tmp_path: Path) -> None:
    plant(tmp_path / "spool", tmp_path / "mark")
    path = [entry for entry in sys.path if os.path.isabs(entry)]
    code = STARTER.format(path=path, name=arena.name, log=tmp_path / "log")
    done = run("import sys; sys.path.pop(0)\n" + code, cwd=tmp_path / "spool")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "mark").exists()


def test_no_module_of_a_folder_that_others_may_write_runs_in_a_daemon(arena: Arena, tmp_path: Path) -> None:
    plant(tmp_path / "open", tmp_path / "mark")
    (tmp_path / "open").chmod(0o1777)
    path = [entry for entry in sys.path if os.path.isabs(entry)]
    code = STARTER.format(path=path, name=arena.name, log=tmp_path / "log")
    code = code.replace("with shm", f"{LOADED}\nsys.path.insert(0, {str(tmp_path / 'open')!r})\nwith shm")
    done = run("import sys; sys.path.pop(0)\n" + code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "mark").exists()


def base_python() -> str:
    """The base interpreter of the virtual environment, which has none of its packages."""
    path = os.path.join(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    if not os.path.exists(path) or run("import shmaccum", cwd=Path("/"), python=path).returncode == 0:
        pytest.skip("no interpreter here is without shmaccum")
    return path


def test_a_daemon_finds_the_package_that_its_starter_found_by_its_path(arena: Arena, tmp_path: Path) -> None:
    path = [inheritance.package_root(), *(entry for entry in sys.path if entry.endswith("site-packages"))]
    code = f"import sys; sys.path[:0] = {path!r}\n" + STARTER.partition("\n")[2].partition("\n")[2].partition("\n")[2]
    code = code.format(name=arena.name, log=tmp_path / "log")
    done = run(code, cwd=tmp_path, python=base_python())
    assert done.returncode == 0, done.stderr


def test_a_daemon_runs_the_package_of_its_starter_where_another_one_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shmaccum").mkdir()
    (tmp_path / "shmaccum" / "__init__.py").write_text("place = __file__\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "shmaccum"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", list(sys.path))
    daemon.import_root(str(tmp_path), [])
    assert sys.modules["shmaccum"].place == str(tmp_path / "shmaccum" / "__init__.py")


def test_the_path_of_a_daemon_begins_with_the_standard_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", "relative", "/usr/lib/python3", "/opt/venv/lib/site-packages"])
    monkeypatch.setitem(sys.modules, "shmaccum", shmaccum)
    daemon.import_root(inheritance.package_root(), ["/opt/vendored", "/opt/venv/lib/site-packages"])
    assert sys.path == ["/usr/lib/python3", "/opt/vendored", "/opt/venv/lib/site-packages"]


def test_a_daemon_gets_neither_empty_nor_relative_entries_nor_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    safe = tmp_path.parent
    monkeypatch.setattr(sys, "path", ["", ".", "lib", str(tmp_path), "/nowhere/at/all", str(safe)])
    monkeypatch.setattr(inheritance, "is_safe", lambda _: True)
    assert inheritance.daemon_path() == [str(safe)]


def test_a_daemon_gets_no_entry_of_another_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [None, os.fsencode(tmp_path), 3, tmp_path, str(tmp_path)])
    monkeypatch.setattr(inheritance, "is_safe", lambda _: True)
    assert inheritance.daemon_path() == [str(tmp_path)]


@pytest.mark.parametrize("program", [None, "", "/usr/sbin/uwsgi"])
def test_a_daemon_of_a_program_that_embeds_python_runs_its_interpreter(
    monkeypatch: pytest.MonkeyPatch, program: str | None
) -> None:
    expected = start._interpreter()
    monkeypatch.setattr(sys, "executable", program)
    assert os.path.samefile(start._interpreter(), expected)
    monkeypatch.setattr(sys, "exec_prefix", "/nowhere/at/all")
    assert start._interpreter() == (program or "python3")


def test_a_folder_is_safe_when_no_other_user_can_create_a_file_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "above" / "folder"
    folder.mkdir(parents=True)
    assert inheritance.is_safe(str(folder))
    folder.chmod(0o1777)
    assert not inheritance.is_safe(str(folder))
    folder.chmod(0o755)
    folder.parent.chmod(0o777)
    assert not inheritance.is_safe(str(folder))
    folder.parent.chmod(0o1777)  # /tmp is such a folder
    assert inheritance.is_safe(str(folder))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_folder_of_another_user_or_group_is_not_safe(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o755)
    os.chown(folder, 65534, 65534)
    assert not inheritance.is_safe(str(folder))
    os.chown(folder, 0, 65534)
    assert inheritance.is_safe(str(folder))
    folder.chmod(0o775)
    assert not inheritance.is_safe(str(folder))


def test_a_missing_package_is_reported_with_a_reason(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shmaccum.supervisor.start.package_root", lambda: "/nowhere")
    real = subprocess.run

    def started(command: list[str], **options: Any) -> Any:
        return real([*command[:2], daemon.__file__, *command[3:]], **options)

    monkeypatch.setattr("shmaccum.supervisor.start.subprocess.run", started)
    with pytest.raises(SenderNotStartedError, match=r"/nowhere has no package shmaccum.*install shmaccum"):
        ensure_sender(arena, "null:")


@pytest.mark.parametrize(
    ("program", "reason"),
    [("sys.exit('the first line\\nthe reason')", "the reason"), ("sys.exit(75)", "it ended without a message")],
)
def test_a_starter_that_fails_is_reported_with_its_last_line(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, reason: str
) -> None:
    log = tmp_path / "sender.log"
    log.write_text("of an earlier sender\n")
    monkeypatch.setattr(Recipe, "command", lambda *_: [sys.executable, "-c", f"import sys; {program}"])
    before = open_descriptors()
    with pytest.raises(SenderNotStartedError, match=f"could not start: {reason}$"):
        ensure_sender(arena, "null:", log_path=log)
    await_no_other(before)


def test_a_starter_ends_after_its_fork_and_with_a_code_that_means_try_again_if_it_cannot_fork(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "_exit", sys.exit)
    for fork, code in ((refuse, os.EX_TEMPFAIL), (lambda: 7, os.EX_OK)):
        monkeypatch.setattr(os, "fork", fork)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{}")))
        with pytest.raises(SystemExit) as ended:
            daemon.begin()
        assert ended.value.code == code
    assert capsys.readouterr() == ("", f"OSError: no process could be forked: {os.strerror(errno.EAGAIN)}\n")


# --- relative paths


def test_paths_of_the_caller_are_absolute_for_a_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = Recipe(
        "log:out",
        {"dead_letter": "log:dead", "overflow": "log:over", "retries": 7, "idle_exit_ms": None},
        {"ssl.certfile": "a.pem", "ssl_keyfile": "/etc/b.pem", "ssl_password": "file:c", "users_file": "none"},
    )
    assert recipe.sink == f"log:{tmp_path}/out"
    assert recipe.options == {"dead_letter": f"log:{tmp_path}/dead", "overflow": f"log:{tmp_path}/over", "retries": 7}
    assert recipe.sink_options == {
        "ssl.certfile": f"{tmp_path}/a.pem",
        "ssl_keyfile": "/etc/b.pem",
        "ssl_password": f"file:{tmp_path}/c",
        "users_file": "none",
    }


def test_every_option_with_a_path_is_known_by_its_name() -> None:
    """If the help of an option mentions a file, `Recipe` must have its name."""
    for table in (KafkaSinkOptions, ServerOptions, SenderOptions):
        for name, option in table.table().items():
            if option.kind == "text" and "PEM file" in option.sentence:
                assert name.endswith("file")


def test_an_arena_and_a_log_with_relative_paths_work_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Arena.create("here/../arena", buffer_memory="256KiB", batch_size="4KiB") as arena:
        with shmaccum.Producer(arena, sink="log:log", dead_letter="log:dead", idle_exit_ms=9999) as producer:
            producer.send("t", b"x").get(WATCHDOG_S)
        end_senders(arena)
    Arena.remove(tmp_path / "arena")
    assert (tmp_path / "log" / "t-0").is_dir()
    assert (tmp_path / "dead").is_dir()


def test_the_input_of_a_daemon_is_json(arena: Arena) -> None:
    given = {"root": inheritance.package_root(), "path": inheritance.daemon_path(), "umask": 0o077}
    assert json.loads(json.dumps(given)) == given
    assert Recipe("null:").command(arena)[1:3] == ["-I", daemon.__file__]
