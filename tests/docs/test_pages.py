# SPDX-License-Identifier: Apache-2.0
"""Every code block of README, CONTRIBUTING and docs runs as printed, or the page's source gives the reason."""

from __future__ import annotations

import configparser
import contextlib
import importlib.util
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from setup import ROOT
from shmaccum.arena import Arena
from tests.docs.blocks import read_page, read_rules
from tests.docs.page import RUN, Block, Page, PageError
from tests.support.arenas import left_in_shared_memory

PATHS = sorted([*ROOT.glob("*.rst"), *(ROOT / "docs").rglob("*.rst")])
PAGE_S, SLOW_PAGE_S = 500.0, 2000.0
TOKEN = "SHMACCUM_REHEARSAL"

_numbers = itertools.count()


def paths_with(*languages: str) -> list[Path]:
    """The pages with a block in one of the languages. Each worker needs them before its first test."""
    beginning = re.compile(rf"^ *\.\. code-block:: (?:{'|'.join(languages)})$", re.MULTILINE)
    return [path for path in PATHS if beginning.search(path.read_text(encoding="utf-8"))]


def name_of(path: Path) -> str:
    return Page(path).name


@pytest.fixture
def name() -> Iterator[str]:
    """A unique name. The processes that a page started end with it, and its arenas are removed."""
    name = f"shmaccum-docs-{os.getpid()}-{next(_numbers)}"
    yield name
    _end_processes(name)
    for left in {found.split(".")[0].removeprefix("sem.") for found in left_in_shared_memory(name)}:
        Arena.remove(left, missing_ok=True)
    assert left_in_shared_memory(name) == []


def _end_processes(name: str) -> None:
    """End each process with the token of a rehearsal until none is left, even if it has left its group."""
    while started := [process for process in psutil.process_iter() if _token(process) == name]:
        for process in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(started, timeout=1)


def _token(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(TOKEN)
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return None


def rehearse(page: Page, name: str, folder: Path, timeout_s: float = PAGE_S) -> str | None:
    """Run the blocks of a page in `folder`. Return the failure, or None."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "PYTHONPATH": f"{ROOT}{os.pathsep}.", TOKEN: name}
    environment.pop("COLUMNS", None)  # a pipe has no width, and an arena of another test may have a long name
    command = [sys.executable, "-m", "tests.docs.rehearsal", name]
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            output, _ = process.communicate(page.to_json(), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            _end_processes(name)
            return f"{page.name} did not end within {timeout_s:g} s"
    return output if process.returncode else None


def limit_s(page: Page) -> float:
    """The seconds after which a page fails."""
    return SLOW_PAGE_S if "slow" in page.marks else PAGE_S


def _parameters() -> Iterator[object]:
    for path in paths_with(*RUN):
        page = read_rules(path)
        marks = [pytest.mark.timeout(limit_s(page) + 100), *(getattr(pytest.mark, mark) for mark in page.marks)]
        yield pytest.param(path, id=page.name, marks=marks)


@pytest.mark.parametrize("path", list(_parameters()))
def test_the_blocks_of_a_page_run(path: Path, name: str, tmp_path: Path) -> None:
    page = read_page(path)
    for module in page.needs:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"the page {page.name} was not tested, because {module} is not installed")
    fault = rehearse(page, name, tmp_path, limit_s(page)) if page.is_run else None
    assert fault is None, fault


def test_the_rules_of_a_page_are_read_without_its_blocks() -> None:
    """Otherwise, the page's own test would not have its marks."""
    for path in paths_with(*RUN):
        page, rules = read_page(path), read_rules(path)
        assert (rules.marks, rules.needs, rules.replacements) == (page.marks, page.needs, page.replacements), path


DJANGO_WITH_A_FULL_ARENA = """
import django
django.setup()
from django.apps import apps
from django.test import Client
import shmaccum

class Full:
    def send(self, *_, **__):
        raise shmaccum.BufferExhaustedError("no buffer")

apps.get_app_config("orders").producer = Full()
answer = Client(HTTP_HOST="127.0.0.1").get("/order/1")
print(answer.status_code, answer.headers["Retry-After"])
"""


def test_a_view_of_django_answers_503_if_the_arena_is_full(name: str, tmp_path: Path) -> None:
    pytest.importorskip("django")
    for source in (ROOT / "examples" / "django").glob("*.py"):
        (tmp_path / source.name).write_text(source.read_text().replace('"shop"', f'"{name}"'))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": "settings", TOKEN: name}
    run = subprocess.run(
        [sys.executable, "-c", DJANGO_WITH_A_FULL_ARENA], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert run.stdout == "503 1\n", run.stderr


def blocks_in(path: Path, language: str) -> list[Block]:
    return [block for block in read_page(path).blocks if block.language == language]


@pytest.mark.parametrize("path", paths_with("yaml"), ids=name_of)
def test_a_kubernetes_manifest_parses(path: Path) -> None:
    for block in blocks_in(path, "yaml"):
        documents = list(yaml.safe_load_all(block.text))
        assert documents
        assert all({"apiVersion", "kind", "metadata"} <= set(document) for document in documents if "kind" in document)


@pytest.mark.parametrize("path", paths_with("ini"), ids=name_of)
def test_a_systemd_unit_is_one(path: Path, tmp_path: Path) -> None:
    for block in blocks_in(path, "ini"):
        check_unit(block, tmp_path)


def check_unit(block: Block, tmp_path: Path) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(block.text)
    assert {"Unit", "Service"} <= set(unit.sections()) or {"Unit", "Socket"} <= set(unit.sections())
    if unit.get("Service", "Restart", fallback="no") == "always":
        assert unit["Unit"].get("StartLimitIntervalSec") == "0"  # otherwise systemd gives up after five starts
    if shutil.which("systemd-analyze") is None:
        return
    # The programs of a unit may be missing here: only the directives of the unit are checked.
    path = tmp_path / "shmaccum-events.service"
    path.write_text("".join(_with_a_program(line) for line in block.text.splitlines(keepends=True)), encoding="utf-8")
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(path)]
    verified = subprocess.run(command, capture_output=True, text=True)
    assert path.name not in verified.stderr, verified.stderr


def _with_a_program(line: str) -> str:
    key, _, rest = line.partition("=")
    return f"{key}=/bin/true {rest.partition(' ')[2]}" if key.startswith("Exec") else line


# --- the runner itself, on planted pages


HEAD = "Title\n=====\n\n"


def planted(folder: Path, text: str) -> Page:
    path = folder / "page.rst"
    path.write_text(HEAD + text, encoding="utf-8")
    return read_page(path)


def block(language: str, *lines: str) -> str:
    return f".. code-block:: {language}\n\n" + "".join(f"   {line}\n" for line in lines) + "\n"


def test_blocks_share_a_namespace_a_folder_and_files(name: str, tmp_path: Path) -> None:
    text = block("python", "number = 6") + ".. saved as: answer.py\n\n" + block("python", "print(42)")
    text += block("sh", "python answer.py") + ".. output\n\n" + block("text", "42")
    text += block("python", "print(number * 7, 'of', 42)") + ".. output\n\n" + block("text", "42 of ...")
    assert rehearse(planted(tmp_path, text), name, tmp_path) is None


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (block("python", "x = 1", "raise RuntimeError('no such luck')"), "RuntimeError: no such luck"),
        (block("sh", "true", "false"), "CalledProcessError"),
        (block("sh", "echo 41") + ".. output\n\n" + block("text", "42"), "and this was printed\n41"),
    ],
    ids=["python", "shell", "output"],
)
def test_a_block_that_fails_is_reported_with_its_page(name: str, tmp_path: Path, text: str, fault: str) -> None:
    found = rehearse(planted(tmp_path, text), name, tmp_path)
    assert found is not None
    assert fault in found
    assert "page.rst:" in found


def test_a_block_that_hangs_is_ended_with_what_it_started(name: str, tmp_path: Path) -> None:
    page = planted(tmp_path, block("sh", "setsid sleep 1000 &", "sleep 1000"))
    found = rehearse(page, name, tmp_path, timeout_s=2)
    assert found == "page.rst did not end within 2 s"
    assert [process for process in psutil.process_iter() if _token(process) == name] == []


def test_an_included_program_is_saved_whole_under_its_own_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "tell.py").write_text("word = 'events'\nprint(word)\n")
    text = ".. rehearsal\n   events = {name}\n\n.. literalinclude:: sources/tell.py\n   :lines: 2-\n\n"
    text += block("sh", "python tell.py; wc -l < tell.py") + ".. output\n\n" + block("text", "events", "2")
    page = planted(tmp_path, text)
    assert [each.file for each in page.blocks] == ["tell.py", None, None]
    assert rehearse(page, name, tmp_path) is None


def test_each_example_is_included_by_a_page_that_kills_a_process() -> None:
    programs = ROOT.glob("examples/*/*.py")
    found = {path.relative_to(ROOT): path.name for path in programs if path.parent.name != "flights"}
    assert len(found) > 12, "the examples are not found"
    texts = [path.read_text(encoding="utf-8") for path in paths_with(*RUN)]
    for path in found:
        including = [text for text in texts if f":: ../../{path}\n" in text]
        assert including, f"no page that is run includes {path}"
        assert any("kill -KILL" in text or "SIGKILL" in text or "kills itself" in text for text in including), path


def test_names_are_replaced_as_whole_words_and_read_back(name: str, tmp_path: Path) -> None:
    text = ".. rehearsal\n   events = {name}\n\n" + block("sh", "echo events my_events events.log")
    text += ".. output\n\n" + block("text", "events my_events events.log")
    text += block("python", "assert 'events' != 'ev' 'ents'")
    assert rehearse(planted(tmp_path, text), name, tmp_path) is None


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("::\n\n   echo\n\n", "no language"),
        (block("java", "class A {}"), "a block in java"),
        (".. not run: because\n\n" + block("sh", "true"), "needs its reason"),
        (".. output\n\n" + block("text", "42"), "no block before"),
        (".. rehearsal\n   sometimes\n\n", "no replacement"),
        (".. literalinclude:: missing.py\n\n", "missing.py is neither"),
    ],
    ids=["no language", "unknown language", "no reason", "output of nothing", "unknown word", "no such file"],
)
def test_an_invalid_mark_of_a_page_is_rejected(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(PageError, match=fault):
        planted(tmp_path, text)


def test_a_block_with_a_reason_is_not_run(name: str, tmp_path: Path) -> None:
    page = planted(tmp_path, ".. not run: it needs a second host\n\n" + block("sh", "false"))
    assert not page.is_run
    assert rehearse(page, name, tmp_path) is None


def test_each_page_reports_how_its_blocks_run() -> None:
    for path in PATHS:
        read_page(path)  # an error names the page


def test_a_how_to_page_has_fewer_than_200_lines() -> None:
    counts = {path.name: len(path.read_text("utf-8").splitlines()) for path in PATHS if path.parent.name == "how-to"}
    assert len(counts) > 30
    assert {name: count for name, count in counts.items() if count >= 200} == {}


def test_the_pages_with_programs_are_found() -> None:
    names = {name_of(path) for path in paths_with(*RUN)}
    assert {"README.rst", "CONTRIBUTING.rst", "docs/getting-started.rst", "docs/how-to/spark.rst"} <= names
